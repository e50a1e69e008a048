"""Streams of JSON messages: their text is stored unchanged, with every digit of every number.

Each append is one record: the text of each message, followed by a comma. So a range of records becomes a JSON array if
brackets are put around it, and its last comma is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from opslog.server.protocol.refusals import Refused

_messages = msgspec.json.Decoder(list[msgspec.Raw])
_message = msgspec.json.Decoder(msgspec.Raw)
_SPACE = b" \t\n\r"


def record(body: bytes) -> bytes:
    """The record of an append. The elements of an array, one level deep, are the messages; any other value is one.

    :returns: b"" for an empty array.
    :raises Refused: 400, the body is not JSON.
    """
    text = body.strip(_SPACE)
    try:
        text.decode()  # the decoder does not check strings
        if not text.startswith(b"["):
            return bytes(_message.decode(text)) + b","
        return b"".join([b"%b," % message for message in _messages.decode(text)])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = str(error)
    # Raised outside the `except`: an error with a context would keep the body in memory as long as itself.
    raise Refused(400, f"the body is not valid JSON: {problem}")


def array(records: Sequence[bytes]) -> bytes:
    """The messages of these records as one JSON array."""
    joined = b"".join([b"[", *records])
    return joined[:-1] + b"]" if records else b"[]"


def boundaries(record: bytes) -> Iterable[int]:
    """The positions in a record at which its messages begin, and its end."""
    end = 0
    yield end
    for message in _messages.decode(array([record])):
        end += len(bytes(message)) + 1
        yield end
