"""The part of both clients that knows httpx."""

from __future__ import annotations

from typing import Any

import httpx

from opslog.server.client.retrying import Lost

# Without a byte for so long, a connection counts as broken. Servers send something at least about every 30 seconds.
IDLE_SECONDS = 90.0

# The errors that httpx raises instead of a response, or before its end. An error about an address concerns one in a
# response, as in a bad redirect; the address of a request is checked before.
FAILURES = (httpx.RequestError, httpx.InvalidURL)


def settings() -> dict[str, Any]:
    """The settings of httpx's clients: a connection for each follower, and enough time for long polls."""
    return {
        "timeout": httpx.Timeout(10.0, read=IDLE_SECONDS),
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
    }


def patience(http: httpx.Client | httpx.AsyncClient, *, live: bool) -> httpx.Timeout:
    """The timeouts of the caller's own client. In live reads a server may be silent for longer."""
    known = http.timeout
    read = known.read if known.read is None or not live else max(known.read, IDLE_SECONDS)
    return httpx.Timeout(connect=known.connect, read=read, write=known.write, pool=known.pool)


def lost(error: Exception) -> Lost:
    """:param error: one of `FAILURES`."""
    not_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    reason = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
    # A TransportError concerns the connection: no response came, or only a part of one.
    return Lost(reason, sent=not not_sent, answered=not isinstance(error, httpx.TransportError))
