"""Server-sent events arrive in pieces of any size."""

from __future__ import annotations

from itertools import pairwise

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
def test_where_pieces_end_changes_nothing(cuts: list[int]) -> None:
    data = TEXT.encode()
    places = [0, *sorted(cuts), len(data)]
    parser = EventParser()
    found = [event for start, stop in pairwise(places) for event in parser.feed(data[start:stop])]
    assert found == EVENTS
