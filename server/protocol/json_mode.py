"""Streams of JSON messages: their text is stored unchanged, every digit of every number.

An append of messages is one record: each message's text, followed by a comma. So the contents of a range of records
become a JSON array by putting brackets around them and leaving out the last comma.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from opslog.server.protocol.refusals import Refused

_messages = msgspec.json.Decoder(list[msgspec.Raw])
_message = msgspec.json.Decoder(msgspec.Raw)
_SPACE = b" \t\n\r"


def record(body: bytes) -> bytes:
    """The record of an append: the elements of an array, one level deep, or one message of anything else.

    :returns: b"" for an empty array.
    :raises Refused: this is not JSON; 400.
    """
    text = body.strip(_SPACE)
    try:
        text.decode()  # the decoder does not check strings
        if not text.startswith(b"["):
            return bytes(_message.decode(text)) + b","
        return b"".join([b"%b," % message for message in _messages.decode(text)])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = str(error)
    # Out here, so that it has no context, which would keep the body in memory as long as the error.
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
