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
# How many arrays and objects of a message may be inside each other. The deeper the calls around the decoder are, the
# fewer it takes, from about 980 on: with this limit, whatever was written can be read.
LEVELS_MAX = 500
_TOO_DEEP = f"a message has more than {LEVELS_MAX} arrays and objects inside each other"
# Strings and all else up to the next bytes of the structure, and these: brackets that open, that close, or a comma.
_TOKEN = re.compile(rb'(?:[^"\[\]{},]++|"(?:[^"\\]++|\\.)*+")*+([\[{]++|[\]}]++|,)', re.DOTALL)
_BRACKETS = bytes.maketrans(b"[{]}", b"(())")
_NO_STRUCTURE = bytes(set(range(256)) - set(b'[{]}"'))
_STRING = re.compile(rb'"[^"]*+"')
_RUNS = re.compile(rb"(\(*+)(\)++)")


def record(body: bytes) -> bytes:
    """The record of an append. The elements of an array, one level deep, are the messages; any other value is one.

    :returns: b"" for an empty array.
    :raises Refused: 400, the body is not JSON.
    """
    text = body.strip(_SPACE)
    try:
        text.decode()  # the decoder does not check strings
        found = _messages.decode(text) if text.startswith(b"[") else [_message.decode(text)]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = f"the body is not valid JSON: {error}"
    except RecursionError:
        problem = _TOO_DEEP
    else:
        # Each level takes two bytes, so the length alone decides for most messages.
        if not any(len(message) > 2 * LEVELS_MAX and _is_too_deep(bytes(message)) for message in found):
            return b"".join([b"%b," % message for message in found])
        problem = _TOO_DEEP
    # Raised outside the `except`: an error with a context would keep the body in memory as long as itself.
    raise Refused(400, problem)


def _is_too_deep(message: bytes) -> bool:
    """Whether a message, which is JSON, has more than `LEVELS_MAX` levels. Almost all of this runs in C."""
    if message.count(b"[") + message.count(b"{") <= LEVELS_MAX:
        return False
    if b"\\" in message:
        message = message.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = message.translate(_BRACKETS, _NO_STRUCTURE)
    if b'"' in structure:  # first the strings without brackets, which are most of them
        structure = _STRING.sub(b"", structure.replace(b'""', b""))
    removed = 0
    # Each turn removes the innermost level of every part. Of an ordinary message a few turns leave nothing; if a turn
    # leaves most, what is left has few parts, each a long run of brackets.
    while (length := len(structure)) > 2 * (LEVELS_MAX - removed):
        structure = structure.replace(b"()", b"")
        removed += 1
        if len(structure) >= length * 3 // 4:
            break
    depth = removed
    for run in _RUNS.finditer(structure):
        depth += run.end(1) - run.start(1)
        if depth > LEVELS_MAX:
            return True
        depth -= run.end(2) - run.start(2)
    return depth > LEVELS_MAX


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
        # An earlier version wrote it: it took as many levels as the decoder did at the time.
        return _divided(record)


def _divided(record: bytes) -> Iterator[bytes]:
    """As `messages`, for any number of levels, but many times slower."""
    depth = start = 0
    for token in _TOKEN.finditer(record):
        run = token[1]
        if run == b",":
            if not depth:
                yield record[start : token.start(1)]
                start = token.end()
        else:
            depth += len(run) if run[0] in b"[{" else -len(run)
