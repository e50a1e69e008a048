"""Server-sent events: the form in which they carry any content."""

from __future__ import annotations

import base64
import re

from hypothesis import given
from hypothesis import strategies as st

from opslog.server.protocol import sse
from opslog.server.protocol.model import Stream


def stream(content_type: str) -> Stream:
    return Stream(id=1, path="a", content_type=content_type, created=0.0, accessed=0.0)


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
