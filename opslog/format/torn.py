"""What a power cut can leave at the end of a segment, and how to distinguish it from damage. Pure.

An append is durable before the next one to its segment begins. So only the last append can be in part on disk, in any
part: cut short, or with zeros where bytes did not get there, since a file's length can reach the disk before they do.
No line of JSON holds a zero byte.

Zeros in what was acknowledged are damage, though, and must not pass for a torn tail. What distinguishes them is what
follows. Every line but the first of an append carries ``"joined":true``: it was written together with the line before
it. A whole line without that, somewhere behind the zeros, began another append, so what stood before it had been
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
    """Where the last append begins whose first line is whole, in `data`, the end of a segment; None where that is
    further in front.

    :param is_start: whether `data` begins with the beginning of a line, where nothing in front matters.
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
    zeros begin, if all from there on can be one append that was never acknowledged, else up to the last newline. Then
    the zeros, if there are any, are damage, and reading that line will say so."""
    zeros = data.find(_ZERO)
    end = data.rfind(b"\n") + 1
    if zeros < 0 or zeros >= end or any(map(_begins_append, data[zeros:end].split(b"\n"))):
        return end
    return data.rfind(b"\n", 0, zeros) + 1


def _begins_append(line: bytes) -> bool:
    """Whether a line, here without its newline, or what zeros have left of its end, is the whole first line of an
    append."""
    rest = line.rpartition(_ZERO)[2]
    if not rest.startswith(b"{") or rest.endswith(_JOINED[:-1]):
        return False
    try:
        msgspec.json.decode(rest, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False  # the end of a longer line
    return True
