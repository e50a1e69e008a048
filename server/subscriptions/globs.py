"""Patterns over stream paths: ``*`` is one segment, ``**`` any number of them, also none; ``%2A`` is a literal
star."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern as one regular expression over the path with a slash behind each segment. A run of ``**`` means the
    same as one, so matching takes at most the square of the path's length for each ``**`` in it."""
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
