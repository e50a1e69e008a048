"""Streams of JSON messages: their text is stored unchanged, with every digit of every number.

Each append is one record: the text of each message, followed by a comma. So a range of records becomes a JSON array if
brackets are put around it, and its last comma is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import msgspec

from opslog.server.protocol.refusals import Refused

_messages = msgspec.json.Decoder(list[msgspec.Raw])
_message = msgspec.json.Decoder(msgspec.Raw)
_SPACE = b" \t\n\r"
# A string, or one byte of the structure around strings.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},]')


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
    return accumulate((len(message) + 1 for message in messages(record)), initial=0)


def messages(record: bytes) -> Iterator[bytes]:
    """The text of each message of a record."""
    try:
        return map(bytes, _messages.decode(array([record])))
    except RecursionError:
        # How many levels the decoder takes depends on the calls around it. When the record was written, it took these.
        return _divided(record)


def _divided(record: bytes) -> Iterator[bytes]:
    """As `messages`, for any number of levels, but many times slower."""
    depth = start = 0
    for token in _TOKEN.finditer(record):
        byte = token[0]
        if byte in (b"[", b"{"):
            depth += 1
        elif byte in (b"]", b"}"):
            depth -= 1
        elif byte == b"," and not depth:
            yield record[start : token.start()]
            start = token.end()
