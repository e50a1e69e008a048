"""Server-sent events arrive in chunks of any size."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslog.server.client.events import Event, EventParser

TEXT = (
    "event: data\ndata: é1\r\ndata:2\n: a comment\r\n\n"
    'event: control\rdata: {"a":1}\r\r\n'
    "data:\n\n"
    "event: cut\ndata: x\n"
)
EVENTS = [Event("data", "é1\n2"), Event("control", '{"a":1}'), Event("message", "")]


@given(st.lists(st.integers(0, len(TEXT.encode()))))
def test_where_chunks_end_changes_nothing(cuts: list[int]) -> None:
    data = TEXT.encode()
    places = [0, *sorted(cuts), len(data)]
    parser = EventParser()
    found = [event for start, stop in pairwise(places) for event in parser.feed(data[start:stop])]
    assert found == EVENTS


def test_the_byte_order_mark_of_an_answer_is_no_part_of_it() -> None:
    assert EventParser().feed(b"\xef\xbb\xbfevent: data\ndata: \xef\xbb\xbf1\n\n") == [Event("data", "\ufeff1")]


def test_text_that_is_not_utf_8_is_refused_instead_of_replaced() -> None:
    with pytest.raises(UnicodeDecodeError):
        EventParser().feed(b"data: \xff\n\n")
