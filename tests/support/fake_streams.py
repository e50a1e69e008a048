"""A stream server in a dictionary, for clients: the necessary part of the protocol, and everything that goes wrong on a
network."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class FakeStream:
    messages: list[Any] = field(default_factory=list)
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)
    closed: bool = False


class FakeServer:
    """JSON streams at any path. Offsets are numbers of messages.

    :param seed: None: nothing goes wrong. Otherwise each request or its answer may be lost, or the server may be too
        busy.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.streams: dict[str, FakeStream] = {}
        self.requests: list[httpx.Request] = []
        self.answers: list[httpx.Response | Exception] = []
        """Answers that it gives instead of its own ones, until none is left."""
        self._random = None if seed is None else random.Random(seed)
        self._lock = threading.Lock()

    def handle(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            self.requests.append(request)
            if self.answers:
                answer = self.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer
            fate = self._random.random() if self._random else 1.0
            if fate < 0.1:
                raise httpx.ConnectError("refused")
            if fate < 0.2:
                raise httpx.ReadError("lost before it was carried out")
            if fate < 0.3:
                return httpx.Response(503)
            answer = self._answer(request)
            if fate < 0.4:
                raise httpx.ReadError("lost after it was carried out")
            if fate < 0.5:
                return httpx.Response(502)
            return answer

    async def handle_later(self, request: httpx.Request) -> httpx.Response:
        return self.handle(request)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        stream = self.streams.get(request.url.path)
        if request.method == "PUT":
            stream = self.streams.setdefault(request.url.path, FakeStream())
            return self._reply(stream, 201)
        if stream is None:
            return httpx.Response(404, text="no such stream")
        if request.method == "DELETE":
            del self.streams[request.url.path]
            return httpx.Response(204)
        if request.method == "POST":
            return self._append(stream, request)
        if request.method == "HEAD":
            return self._reply(stream, 200)
        return self._read(stream, request)

    def _reply(self, stream: FakeStream, status: int, **headers: str) -> httpx.Response:
        headers = {
            "Content-Type": "application/json",
            "Stream-Next-Offset": f"{len(stream.messages):05}",
            **({"Stream-Closed": "true"} if stream.closed else {}),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        return httpx.Response(status, headers=headers)

    def _append(self, stream: FakeStream, request: httpx.Request) -> httpx.Response:
        id = request.headers.get("producer-id")
        if stream.closed and not (id and self._known(stream, request)):
            return self._reply(stream, 204 if not request.content else 409)
        echoed: dict[str, str] = {}
        if id is not None:
            epoch, number = (int(request.headers[f"producer-{name}"]) for name in ("epoch", "seq"))
            known_epoch, known_number = stream.producers.get(id, (epoch, -1))
            if epoch < known_epoch:
                return httpx.Response(403, headers={"Producer-Epoch": str(known_epoch)})
            if epoch > known_epoch:
                known_number = -1
            if number <= known_number:
                return self._reply(stream, 204, Producer_Epoch=str(epoch), Producer_Seq=str(known_number))
            if number > known_number + 1:
                expected = {"Producer_Expected_Seq": str(known_number + 1), "Producer_Received_Seq": str(number)}
                return self._reply(stream, 409, **expected)
            stream.producers[id] = epoch, number
            echoed = {"Producer_Epoch": str(epoch), "Producer_Seq": str(number)}
        if request.content:
            sent = json.loads(request.content)
            stream.messages += sent if isinstance(sent, list) else [sent]
        stream.closed = stream.closed or request.headers.get("stream-closed") == "true"
        return self._reply(stream, 200 if id else 204, **echoed)

    def _known(self, stream: FakeStream, request: httpx.Request) -> bool:
        last = stream.producers.get(request.headers["producer-id"])
        return last == (int(request.headers["producer-epoch"]), int(request.headers["producer-seq"]))

    def _read(self, stream: FakeStream, request: httpx.Request) -> httpx.Response:
        offset = request.url.params.get("offset", "-1")
        if offset not in {"-1", "now"} and not (offset.isascii() and offset.isdecimal() and len(offset) < 10):
            return httpx.Response(400, text="malformed offset")
        start = len(stream.messages) if offset == "now" else max(0, int(offset))
        found = stream.messages[start : start + 3]
        content = json.dumps(found).encode()
        end = start + len(found)
        at_tail = end == len(stream.messages)
        headers = {"Stream-Next-Offset": f"{end:05}", "Stream-Cursor": str(end)}
        if at_tail:
            headers["Stream-Up-To-Date"] = "true"
        if at_tail and stream.closed:
            headers["Stream-Closed"] = "true"
        if request.url.params.get("live") == "sse":
            control: dict[str, Any] = {"streamNextOffset": f"{end:05}", "streamCursor": str(end)}
            control |= {"upToDate": True} if at_tail else {}
            control |= {"streamClosed": True} if at_tail and stream.closed else {}
            events = f"event: data\ndata: {content.decode()}\n\n" if found else ""
            events += f"event: control\ndata: {json.dumps(control)}\n\n"
            return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, stream=self._torn(events))
        if request.url.params.get("live") == "long-poll" and not found:
            return httpx.Response(204, headers=headers)
        return httpx.Response(200, headers={"Content-Type": "application/json", **headers}, content=content)

    def _torn(self, events: str) -> Chunks:
        data = events.encode()
        if self._random is None or self._random.random() < 0.5:
            return Chunks(data, len(data))
        return Chunks(data, self._random.randrange(len(data)))


class Chunks(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in chunks of seven bytes that breaks off after `whole` bytes, unless that is the whole body."""

    def __init__(self, data: bytes, whole: int) -> None:
        self._data = data
        self._whole = whole

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, self._whole, 7):
            yield self._data[start : min(start + 7, self._whole)]
        if self._whole < len(self._data):
            raise httpx.ReadError("the connection broke")

    async def __aiter__(self) -> Any:
        for chunk in self:
            yield chunk
