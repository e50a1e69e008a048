"""Patterns over stream paths: ``*`` matches one segment, ``**`` any number of segments, even none; ``%2A`` is a literal
star. Neither of them matches an empty segment."""

from __future__ import annotations

import re
from functools import lru_cache


class Pattern:
    """A pattern, for comparing it with many paths.

    It is compared with all parts of the pattern at once while the path is read, segment by segment: bit *i* of a number
    says that the part *i* may be the next one. So the time grows with the length of the path alone, however many ``**``
    the pattern has. A regular expression would try every way to divide the path among them.
    """

    def __init__(self, pattern: str) -> None:
        self._named: dict[str, int] = {}
        self._one = self._many = 0
        bit, before = 1, ""
        for part in pattern.split("/"):
            if part == before == "**":
                continue  # several in a row mean the same as one
            if part == "**":
                self._many |= bit
            elif part == "*":
                self._one |= bit
            else:
                name = re.sub("%2a", "*", part, flags=re.IGNORECASE)
                self._named[name] = self._named.get(name, 0) | bit
            bit, before = bit << 1, part
        self._end = bit

    def matches(self, path: str) -> bool:
        next_parts = self._with_none(1)
        for segment in path.split("/"):
            passed = next_parts & self._named.get(segment, 0)
            stayed = 0
            if segment:
                passed |= next_parts & self._one
                stayed = next_parts & self._many
            next_parts = self._with_none(passed << 1 | stayed)
        return bool(next_parts & self._end)

    def _with_none(self, next_parts: int) -> int:
        """With the parts behind each ``**``, because that may match no segment at all."""
        return next_parts | (next_parts & self._many) << 1


_pattern = lru_cache(maxsize=4096)(Pattern)


def matches(pattern: str, path: str) -> bool:
    return _pattern(pattern).matches(path)
