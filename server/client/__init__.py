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

`AsyncClient` is the same for asyncio. The core (`messages`, `retrying`, `events`, `following`, `producing`, `calls`)
does no I/O.
"""

from __future__ import annotations

from opslog.server.client.aio import AsyncClient, AsyncProducer, AsyncStream
from opslog.server.client.errors import (
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
    UnavailableError,
)
from opslog.server.client.messages import NOW, START, Appended, Batch, Metadata
from opslog.server.client.retrying import Retrying
from opslog.server.client.sync import Client, Producer, Stream

__all__ = [
    "NOW",
    "START",
    "Appended",
    "AsyncClient",
    "AsyncProducer",
    "AsyncStream",
    "Batch",
    "Client",
    "Metadata",
    "OutcomeUnknownError",
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
    "UnavailableError",
]
