"""Compressed responses for clients that accept them."""

from __future__ import annotations

import zlib

# Below this, a response would hardly get smaller.
MIN_BYTES = 1024

# Above this, compressing takes longer than handing it to another thread.
IN_THREAD_BYTES = 64 * 1024

_PACKED = ("audio/", "image/", "video/", "application/gzip", "application/zip", "application/zstd")
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


def choose(accept_encoding: str | None, media_type: str) -> str | None:
    """``gzip`` or ``deflate``, if the client accepts one (``q=0`` refuses it) and this type of content
    is not compressed already."""
    if not accept_encoding or media_type.startswith(_PACKED):
        return None
    quality: dict[str, float] = {}
    for item in accept_encoding.lower().split(","):
        name, _, parameters = item.partition(";")
        quality[name.strip()] = _quality(parameters)
    offered = {name: quality.get(name, quality.get("*", 0.0)) for name in _WINDOWS}
    best = max(offered, key=lambda name: offered[name])
    return best if offered[best] > 0 else None


def _quality(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def compress(body: bytes, encoding: str) -> bytes:
    """Compresses fast rather than well, because streams are read while they grow."""
    packer = zlib.compressobj(level=1, wbits=_WINDOWS[encoding])
    return packer.compress(body) + packer.flush()
