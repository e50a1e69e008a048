"""Offsets: positions in a stream as clients see them, opaque tokens that sort as the positions do."""

from __future__ import annotations

import re

# Clients may send these in place of an offset: the beginning of the stream, and its present end.
BEGINNING, NOW = "-1", "now"

_OFFSET = re.compile(r"[0-9]{16}_([0-9]{16})", re.ASCII)


def format_offset(position: int) -> str:
    """``0000000000000000_0000000000000042``: digits and an underscore, as the reference server writes them."""
    return f"0000000000000000_{position:016}"


def parse_offset(text: str) -> int | None:
    """The position, or None if no server can have given out this offset."""
    match = _OFFSET.fullmatch(text)
    if match is None:
        return None
    # No server gives out any other first half, so such an offset counts as behind the end of every stream.
    return int(match[1]) if text.startswith("0000000000000000_") else 10**16
