"""What a power cut can leave at the end of a segment, and how to distinguish it from damage. Pure.

An append is durable before the next one to its segment begins. So only the last append can be partly on disk. It may be
cut short, or have zeros in place of missing bytes, since a file's length can reach the disk before its bytes do. No
line of JSON has a zero byte.

Zeros in acknowledged commits, however, are damage, and must not pass for a torn tail. The lines after the zeros
distinguish the two. Every line of an append except the first has ``"joined":true``: it was written together with the
line before it. A whole line without it, anywhere after the zeros, began another append, so everything before that line
had been durable.
"""

from __future__ import annotations

import msgspec

_ZERO = b"\0"
_JOINED = b',"joined":true}\n'


def joined(line: bytes) -> bytes:
    """The line, marked as written in one append with the line before it."""
    return line[:-2] + _JOINED


def last_append(data: bytes, is_start: bool) -> int | None:
    """The offset at which the last append whose first line is whole begins; None if it begins before `data`.

    :param data: the end of a segment.
    :param is_start: whether `data` begins with the beginning of a line, so that nothing before it matters.
    """
    end = data.rfind(b"\n") + 1
    while end:
        start = data.rfind(b"\n", 0, end - 1) + 1
        if start and data.find(_ZERO, start, end) < 0 and not data.endswith(_JOINED, start, end):
            return start
        end = start
    return 0 if is_start else None


def sound_length(data: bytes) -> int:
    """How many bytes of `data` to read. If it has zeros, and everything from the line in which they begin can be one
    append that was never acknowledged, it is read up to that line. Otherwise, it is read up to the last newline; zeros
    are then damage, and decoding their line reports it.

    :param data: the rest of a segment, from the beginning of a line on.
    """
    zeros = data.find(_ZERO)
    end = data.rfind(b"\n") + 1
    if zeros < 0 or zeros >= end or any(map(_begins_append, data[zeros:end].split(b"\n"))):
        return end
    return data.rfind(b"\n", 0, zeros) + 1


def _begins_append(line: bytes) -> bool:
    """Whether a line, passed without its newline, is the whole first line of an append. If it has zeros, only the bytes
    after the last zero count."""
    rest = line.rpartition(_ZERO)[2]
    if not rest.startswith(b"{") or rest.endswith(_JOINED[:-1]):
        return False
    try:
        msgspec.json.decode(rest, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False  # the end of a longer line
    return True
