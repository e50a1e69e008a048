"""Server-sent events: how data and control events are written."""

from __future__ import annotations

import base64

import orjson

from opslog.server.protocol import json_mode
from opslog.server.protocol.model import Stream, media_type
from opslog.server.protocol.offsets import format_offset


def is_text(stream: Stream) -> bool:
    """Whether its data is written unchanged; that of other streams is written in base64."""
    return stream.is_json or media_type(stream.content_type).startswith("text/")


def data_event(stream: Stream, chunks: list[bytes]) -> bytes:
    """The bytes of one range: a JSON array, text, or base64."""
    if stream.is_json:
        return _event(b"data", json_mode.array(chunks))
    data = b"".join(chunks)
    return _event(b"data", data if is_text(stream) else base64.b64encode(data))


def control_event(position: int, *, cursor: str, up_to_date: bool, closed: bool) -> bytes:
    """The event with the reader's position. At the end of a closed stream it has no cursor, since the reader need not
    come back."""
    fields: dict[str, object] = {"streamNextOffset": format_offset(position)}
    if closed:
        fields["streamClosed"] = True
    else:
        fields["streamCursor"] = cursor
    if up_to_date:
        fields["upToDate"] = True
    return _event(b"control", orjson.dumps(fields))


def _event(name: bytes, payload: bytes) -> bytes:
    """An event. Each line of the payload becomes a line of the event, so no payload can end the event. Readers drop one
    space after the colon, so a line that begins with a space gets another one."""
    lines = b"\n" + payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return b"event: %b%b\n\n" % (name, lines.replace(b"\n ", b"\n  ").replace(b"\n", b"\ndata:"))


def incomplete_bytes(data: bytes) -> int:
    """The number of bytes at the end that belong to an incomplete UTF-8 character."""
    for count in range(1, min(4, len(data) + 1)):
        byte = data[-count]
        if byte & 0xC0 == 0x80:  # in the middle of a character
            continue
        length = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
        return count if length > count else 0
    return 0
