"""Patterns over stream paths: ``*`` matches one segment, ``**`` any number of segments, even none; ``%2A`` is a literal
star."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern as one regular expression. It is for the path with a slash after each segment. Several ``**`` in a
    row mean the same as one, so each ``**`` in it costs at most the square of the path's length."""
    parts: list[str] = []
    for segment in pattern.split("/"):
        if segment == "**":
            if not parts or parts[-1] != _ANY:
                parts.append(_ANY)
        elif segment == "*":
            parts.append("[^/]+/")
        else:
            parts.append(re.escape(re.sub("%2a", "*", segment, flags=re.IGNORECASE)) + "/")
    return re.compile("".join(parts))


_ANY = "(?:[^/]+/)*"


def matches(pattern: str, path: str) -> bool:
    return compiled(pattern).fullmatch(f"{path}/") is not None
