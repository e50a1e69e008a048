"""Entity tags, conditional requests, and how long caches may keep a response."""

from __future__ import annotations

import re

_TAG = re.compile(r'(?:W/)?"([^"]*)"')
_MAX_AGE, _STALE = 60, 300


def entity_tag(storage: str, stream_id: int, start: int, stop: int, *, closed: bool) -> str:
    """The tag of a range, without its quotes. Streams that had the same path one after the other have different tags,
    and so has the end of a stream before and after it was closed."""
    return f"{storage}-{stream_id}:{start}:{stop}{':c' if closed else ''}"


def encoded_tag(tag: str, encoding: str | None) -> str:
    """The tag of the same range under a content encoding, since a strong tag must change with the bytes."""
    return f'"{tag};{encoding}"' if encoding else f'"{tag}"'


def matches(if_none_match: str, tag: str) -> bool:
    """Whether the client has this range, in any encoding."""
    if if_none_match.strip() == "*":
        return True
    return any(known.partition(";")[0] == tag for known in _TAG.findall(if_none_match))


def cache_control(expires_in: float | None, *, private: bool) -> bytes:
    """The value of Cache-Control for a response whose bytes never change: as the protocol says, but never longer than
    the stream lives.

    :param private: the response depends on the client.
    """
    scope = "private" if private else "public"
    if expires_in is None:
        return f"{scope}, max-age={_MAX_AGE}, stale-while-revalidate={_STALE}".encode()
    age = max(0, min(_MAX_AGE, int(expires_in)))
    stale = max(0, min(_STALE, int(expires_in) - age))
    return f"{scope}, max-age={age}, stale-while-revalidate={stale}".encode()
