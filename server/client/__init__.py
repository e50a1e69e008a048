"""A client of Durable Streams servers, opslog's or others': needs httpx (``opslog[client]``) and nothing of the
server.

    from opslog.server.client import Client

    with Client("http://127.0.0.1:4437/v1/stream") as client:
        stream = client.stream("events/build")
        stream.create("application/json")
        with stream.producer("builder-1", claim=True) as producer:   # exactly once, whatever happens on the way
            producer.append({"step": 1}, {"step": 2})
        for batch in stream.follow():                                # ends when the stream is closed
            print(batch.messages, batch.next_offset)

`AsyncClient` is the same for asyncio. `Client.subscription` and `Client.verify_webhook` are for workers that the server
wakes. Only the modules `sync`, `aio` and `transport` do I/O; all others are the core.
"""

from __future__ import annotations

from opslog.server.client.aio import AsyncClaim, AsyncClient, AsyncProducer, AsyncStream, AsyncSubscription
from opslog.server.client.errors import (
    AlreadyClaimedError,
    NoPendingWorkError,
    OutcomeUnknownError,
    ProducerError,
    ProducerFencedError,
    ProtocolError,
    RequestRefusedError,
    SequenceGapError,
    StreamClosedError,
    StreamConflictError,
    StreamError,
    StreamGoneError,
    StreamNotFoundError,
    SubscriptionConflictError,
    SubscriptionError,
    SubscriptionNotFoundError,
    UnavailableError,
    WakeLostError,
    WebhookError,
)
from opslog.server.client.messages import NOW, START, Appended, Batch, Metadata
from opslog.server.client.retrying import Retrying
from opslog.server.client.subscribing import LinkedStream, PendingStream, SubscriptionInfo, Wake
from opslog.server.client.sync import Claim, Client, Producer, Stream, Subscription

__all__ = [
    "NOW",
    "START",
    "AlreadyClaimedError",
    "Appended",
    "AsyncClaim",
    "AsyncClient",
    "AsyncProducer",
    "AsyncStream",
    "AsyncSubscription",
    "Batch",
    "Claim",
    "Client",
    "LinkedStream",
    "Metadata",
    "NoPendingWorkError",
    "OutcomeUnknownError",
    "PendingStream",
    "Producer",
    "ProducerError",
    "ProducerFencedError",
    "ProtocolError",
    "RequestRefusedError",
    "Retrying",
    "SequenceGapError",
    "Stream",
    "StreamClosedError",
    "StreamConflictError",
    "StreamError",
    "StreamGoneError",
    "StreamNotFoundError",
    "Subscription",
    "SubscriptionConflictError",
    "SubscriptionError",
    "SubscriptionInfo",
    "SubscriptionNotFoundError",
    "UnavailableError",
    "Wake",
    "WakeLostError",
    "WebhookError",
]
