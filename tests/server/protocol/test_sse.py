"""The pure functions that decide and encode, without a server."""

from __future__ import annotations

import base64
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslog.server.protocol import json_mode, sse
from opslog.server.protocol.cursors import Cursors
from opslog.server.protocol.model import Producer, Stream
from opslog.server.protocol.offsets import format_offset, parse_offset
from opslog.server.protocol.producers import Stamp, admit
from opslog.server.protocol.refusals import Refused

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
positions = st.integers(0, 10**16 - 1)


def stream(content_type: str) -> Stream:
    return Stream(id=1, path="a", content_type=content_type, created=0.0, accessed=0.0)


@given(values, st.sampled_from([None, 1]), st.booleans())
def test_json_comes_back_as_it_was(value: object, indent: int | None, ascii: bool) -> None:
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=ascii).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return
    if re.search(rb"\\ud[89a-f]", text):
        return
    record = json_mode.record(text)
    expected = value if isinstance(value, list) else [value]
    assert json.loads(json_mode.array([record] if record else [])) == expected
    ends = list(json_mode.boundaries(record)) if record else [0]
    assert len(ends) == len(expected) + 1
    assert ends[-1] == len(record)
    for count, end in enumerate(ends):
        assert json.loads(json_mode.array([record[:end]] if end else [])) == expected[:count]


@given(st.text())
def test_events_carry_any_text(text: str) -> None:
    """A reader of events, written as browsers read them, gets the same lines back."""
    event = sse.data_event(stream("text/plain"), [text.encode("utf-8", "replace")]).decode()
    head, *lines = event.split("\n")
    assert head == "event: data"
    assert lines[-2:] == ["", ""]
    assert all(line.startswith("data:") for line in lines[:-2])
    payload = "\n".join(line[5:].removeprefix(" ") for line in lines[:-2])
    assert payload == re.sub("\r\n|\r", "\n", text.encode("utf-8", "replace").decode())


@given(st.lists(st.binary()))
def test_events_carry_any_bytes(chunks: list[bytes]) -> None:
    event = sse.data_event(stream("application/octet-stream"), chunks)
    found = re.fullmatch(rb"event: data\ndata:([A-Za-z0-9+/=]*)\n\n", event)
    assert found is not None
    assert base64.b64decode(found[1], validate=True) == b"".join(chunks)


@given(st.text(min_size=1), st.data())
def test_a_cut_within_a_character_is_seen(text: str, data: st.DataObject) -> None:
    encoded = text.encode("utf-8", "replace")
    place = data.draw(st.integers(1, len(encoded)))
    cut = encoded[:place]
    extra = sse.incomplete_bytes(cut)
    cut[: len(cut) - extra].decode()
    assert extra < 4
    assert (extra == 0) == (len(cut.decode("utf-8", "ignore").encode()) == len(cut))


@given(positions, positions)
def test_offsets_sort_as_positions_do(one: int, other: int) -> None:
    assert (format_offset(one) < format_offset(other)) == (one < other)
    assert parse_offset(format_offset(one)) == one
    assert not set(format_offset(one)) & set(",&=?/")


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30))
def test_a_producer_is_admitted_once_per_number(stamps: list[tuple[int, int]]) -> None:
    """Checked against the rules of the protocol, as a table of what was accepted."""
    known: Producer | None = None
    taken: list[tuple[int, int]] = []
    for epoch, seq in stamps:
        newest = max((found[0] for found in taken), default=-1)
        count = sum(1 for found in taken if found[0] == epoch)
        if epoch < newest or seq > count:
            status = 403 if epoch < newest else 400 if epoch > newest >= 0 else 409
            with pytest.raises(Refused) as refused:
                admit(known, Stamp("p", epoch, seq))
            assert refused.value.status == status
            continue
        producer = admit(known, Stamp("p", epoch, seq))
        if producer is None:
            assert (epoch, seq) in taken
        else:
            assert (epoch >= newest, seq, (epoch, seq) in taken) == (True, count, False)
            taken.append((epoch, seq))
            known = producer


@pytest.mark.parametrize("given_cursor", [None, "", "x", "-5", "9" * 40, "999"])
def test_a_cursor_is_the_interval(given_cursor: str | None) -> None:
    cursors = Cursors(interval_seconds=20, epoch=1000.0)
    assert cursors.next(given_cursor, 1000.0 + 20 * 1000 + 19.9, lambda below: 0) == "1000"


def test_a_cursor_before_its_epoch_is_a_number_all_the_same() -> None:
    cursors = Cursors(interval_seconds=20, epoch=1000.0)
    assert cursors.next(None, 0.0, lambda below: 0) == "0"
    assert cursors.next("0", 0.0, lambda below: 19) == "1"


@given(st.integers(1000, 10**9), st.integers(0, 3599))
def test_a_cursor_always_goes_on(cursor: int, random: int) -> None:
    cursors = Cursors(interval_seconds=20, epoch=1000.0)
    found = int(cursors.next(str(cursor), 1000.0 + 20 * 1000, lambda below: random))
    assert cursor < found <= cursor + 180
