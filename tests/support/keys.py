"""Keys of requests."""

from __future__ import annotations

import os
import time
import uuid


def key_made(seconds_ago: float = 0.0) -> str:
    """A UUID of version 7 that was made at that time."""
    made = int((time.time() - seconds_ago) * 1000)
    number = (made << 80) | int.from_bytes(os.urandom(10), "big")
    number = number & ~(0xF << 76) | 0x7 << 76
    return str(uuid.UUID(int=number & ~(0x3 << 62) | 0x2 << 62))
