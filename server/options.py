"""The options of a server."""

from __future__ import annotations

from dataclasses import dataclass, field

from opslog.errors import UsageError
from opslog.server.protocol.cursors import Cursors


@dataclass(frozen=True, slots=True)
class Options:
    """:ivar root: the path below which streams are; begins and ends with a slash.
    :ivar long_poll_seconds: how long a long-poll waits for data. After the same time without data an SSE reader gets a
        sign that it is still connected.
    :ivar sse_seconds: how long an SSE response lasts. It ends so that caches in between can serve many readers with one
        request.
    :ivar chunk_bytes: about how much data one response to a read has.
    :ivar max_body_bytes: the largest body of an append.
    :ivar max_buffered_bytes: the most that all unanswered requests, of any kind, may take in memory; further ones are
        answered with 503.
    :ivar body_seconds: how long a client may take to send a body.
    :ivar send_seconds: how long a client may take to make room for the next part of a response.
    :ivar rate: requests a second that one client (a token, or else an address) may make; None for any number.
    :ivar retain_bytes: how much of each stream is kept at least. Older data is deleted, and reads of it are answered
        with 410; data that forks read stays, and so do the registry and feeds. None keeps everything.
    :ivar registry: whether created and deleted streams are announced, see `opslog.server.registry`.
    :ivar compression: whether responses are compressed for clients that accept it.
    :ivar public_url: the address at which clients reach this server, such as ``https://streams.example``, for the
        addresses in webhooks. None: the address that the client used when it created the subscription.
    :ivar feed_seconds: seconds between two checks of a served store for writes of other processes. Writes of this
        server's clients are in its feed at once.
    :ivar feed_snapshot_bytes: a feed gets a new snapshot once the messages after the last snapshot take this many
        bytes, and twice as many as that snapshot.
    :ivar local_stores: whether only clients that address this machine by a local name or address may use stores and
        their feeds, and what names the stores, such as subscriptions; web pages of other sites, and requests by other
        names that lead here, may not. For a server without tokens at an address that only this machine has.
    :ivar webhook_loopback: whether webhooks may go to this machine, also by http; for development.
    :ivar rotate_keys: whether to replace the key that signs webhooks, see `opslog.server.subscriptions.webhook_keys`;
        has no effect while an earlier rotation is under way.
    """

    root: str = "/v1/stream/"
    long_poll_seconds: float = 30.0
    sse_seconds: float = 60.0
    chunk_bytes: int = 1024 * 1024
    max_body_bytes: int = 16 * 1024 * 1024
    max_buffered_bytes: int = 256 * 1024 * 1024
    body_seconds: float = 30.0
    send_seconds: float = 30.0
    rate: float | None = None
    retain_bytes: int | None = None
    registry: bool = False
    compression: bool = True
    public_url: str | None = None
    webhook_loopback: bool = False
    rotate_keys: bool = False
    feed_seconds: float = 0.5
    feed_snapshot_bytes: int = 4 * 1024 * 1024
    local_stores: bool = False
    cursors: Cursors = field(default_factory=Cursors)

    def __post_init__(self) -> None:
        """:raises UsageError: options contradict each other."""
        if self.max_buffered_bytes < self.max_body_bytes:
            raise UsageError(
                f"max_buffered_bytes is {self.max_buffered_bytes}, so that no body of max_body_bytes "
                f"({self.max_body_bytes}) would ever fit: make it at least as large"
            )
