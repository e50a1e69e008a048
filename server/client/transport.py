"""What both clients know of httpx."""

from __future__ import annotations

from typing import Any

import httpx

from opslog.server.client.retrying import Lost

# Without a byte for so long a connection counts as broken. Servers say something at least every 30 seconds or so.
IDLE_SECONDS = 90.0

# What httpx raises instead of an answer, or before its end. Of addresses, those in the answer are meant: a redirect
# that leads nowhere. The address of a request is checked before.
FAILURES = (httpx.RequestError, httpx.InvalidURL)


def settings() -> dict[str, Any]:
    """How clients are made: a connection for each follower, and time enough for long polls."""
    return {
        "timeout": httpx.Timeout(10.0, read=IDLE_SECONDS),
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
    }


def patience(http: httpx.Client | httpx.AsyncClient, *, live: bool) -> httpx.Timeout:
    """The timeouts of the caller's own client, but for live reads: there a server may say nothing for so long."""
    known = http.timeout
    read = known.read if known.read is None or not live else max(known.read, IDLE_SECONDS)
    return httpx.Timeout(connect=known.connect, read=read, write=known.write, pool=known.pool)


def lost(error: Exception) -> Lost:
    """:param error: one of `FAILURES`."""
    not_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    reason = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
    # All others are of the connection: no answer came, or not to its end.
    return Lost(reason, sent=not not_sent, answered=not isinstance(error, httpx.TransportError))
