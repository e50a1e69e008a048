"""What both clients know of httpx."""

from __future__ import annotations

from typing import Any

import httpx

IDLE_SECONDS = 90.0
"""Without a byte for so long a connection counts as broken. Servers say something at least every 30 seconds or so."""

REASONS = (httpx.TransportError,)
"""No answer, or none to its end."""


def settings() -> dict[str, Any]:
    """How clients are made: a connection for each follower, and time enough for long polls."""
    return {
        "timeout": httpx.Timeout(10.0, read=IDLE_SECONDS),
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
    }


def not_sent(error: httpx.TransportError) -> bool:
    """Whether the server cannot have got the request."""
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.UnsupportedProtocol)


def reason_of(error: httpx.TransportError) -> str:
    return f"{type(error).__name__}{f': {error}' if str(error) else ''}"


def head_of(answer: httpx.Response) -> tuple[int, dict[str, str]]:
    """Status and headers by lower-case name."""
    return answer.status_code, dict(answer.headers)
