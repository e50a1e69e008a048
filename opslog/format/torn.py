"""What a power cut can leave at the end of a segment, and how to distinguish it from damage. Pure.

An append is durable before the next one to its segment begins. So only the last append can be partly on disk, in any
form: cut short, or with zeros for bytes that did not get there, since a file's length can reach the disk before they
do. No line of JSON has a zero byte.

Zeros in acknowledged commits, however, are damage, and must not pass for a torn tail. The lines behind them distinguish
the two. Every line of an append except the first has ``"joined":true``: it was written together with the line before
it. A whole line without it, somewhere behind the zeros, began another append, so everything before it had been
durable.
"""

from __future__ import annotations

import msgspec

_ZERO = b"\0"
_JOINED = b',"joined":true}\n'


def joined(line: bytes) -> bytes:
    """A line that is written in one append with the line before it."""
    return line[:-2] + _JOINED


def last_append(data: bytes, is_start: bool) -> int | None:
    """The beginning of the last append whose first line is whole, in `data`, the end of a segment; None if it is
    before `data`.

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
    """How much of `data`, the rest of a segment from the beginning of a line on, is to be read: up to the line in which
    zeros begin, if everything from there on can be one append that was never acknowledged, else up to the last newline.
    In the second case zeros are damage, and reading that line reports it."""
    zeros = data.find(_ZERO)
    end = data.rfind(b"\n") + 1
    if zeros < 0 or zeros >= end or any(map(_begins_append, data[zeros:end].split(b"\n"))):
        return end
    return data.rfind(b"\n", 0, zeros) + 1


def _begins_append(line: bytes) -> bool:
    """Whether a line, here without its newline, is the whole first line of an append. If it has zeros, only the part
    after the last of them counts."""
    rest = line.rpartition(_ZERO)[2]
    if not rest.startswith(b"{") or rest.endswith(_JOINED[:-1]):
        return False
    try:
        msgspec.json.decode(rest, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False  # the end of a longer line
    return True
