"""The client behind the line protocol of the official suite for clients: a JSON command a line on standard input, a
JSON result a line on standard output.

    python client_conformance.py threads|asyncio
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx

from opslog import __version__
from opslog.errors import OpslogError, UsageError
from opslog.server.client import (
    AsyncClient,
    Batch,
    Client,
    OutcomeUnknownError,
    ProducerFencedError,
    ProtocolError,
    RequestRefusedError,
    Retrying,
    StreamClosedError,
    StreamConflictError,
    StreamError,
    StreamGoneError,
    StreamNotFoundError,
    UnavailableError,
)

JSON = "application/json"
PATIENCE = Retrying(seconds=20)
FEATURES = ("batching", "sse", "longPoll", "auto", "streaming", "dynamicHeaders", "strictZeroValidation")

Command = Mapping[str, Any]
Result = dict[str, Any]


class Computed:
    """The headers or parameters that the suite wants computed for each request.

    :ivar sent: the values sent with the last request. :ivar fixed: the fixed values of the current command.
    """

    def __init__(self) -> None:
        self.sent: dict[str, str] = {}
        self.fixed: dict[str, str] = {}
        self._functions: dict[str, Callable[[], str]] = {}

    def set(self, command: Command) -> None:
        initial = command.get("initialValue", "")
        counted = iter(range(1, sys.maxsize))
        self._functions[command["name"]] = (
            (lambda: initial) if command["valueType"] == "token" else (lambda: str(next(counted)))
        )

    def clear(self) -> None:
        self._functions.clear()

    def __call__(self) -> dict[str, str]:
        self.sent = {name: value() for name, value in self._functions.items()}
        return {**self.sent, **self.fixed}


class Adapter:
    """The common part of both clients: commands, results and errors."""

    def __init__(self) -> None:
        self.headers = Computed()
        self.params = Computed()
        self.types: dict[str, str] = {}
        self._streams: dict[str, Any] = {}
        self._producers: dict[tuple[str, str, int], Any] = {}

    def handle(self, command: Command) -> Result:
        kind = command["type"]
        self.headers.sent, self.params.sent = {}, {}
        self.headers.fixed = dict(command.get("headers") or {})
        try:
            found = self._command(kind)(command)
        except OpslogError as error:
            return {"type": "error", "success": False, "commandType": kind, **described(kind, error)}
        except NotImplementedError as error:
            unsupported = {"errorCode": "NOT_SUPPORTED", "message": str(error)}
            return {"type": "error", "success": False, "commandType": kind, **unsupported}
        sent = {"headersSent": self.headers.sent or None, "paramsSent": self.params.sent or None}
        result = {"type": kind, "success": True, "status": 200, **sent, **found}
        return {name: value for name, value in result.items() if value is not None}

    def _command(self, kind: str) -> Callable[[Command], Result]:
        found = getattr(self, kind.replace("-", "_"), None)
        if found is None:
            raise NotImplementedError(f"the client has nothing for {kind}")
        return found  # type: ignore[no-any-return]  # its methods of that name are commands

    # What differs between the clients

    def open(self, url: str) -> None:
        raise NotImplementedError

    def disconnect(self) -> None:
        raise NotImplementedError

    def stream(self, path: str) -> Any:
        raise NotImplementedError

    def run(self, done: Any) -> Any:
        raise NotImplementedError

    def batches(self, path: str, command: Command, seconds: float) -> Iterator[Batch | None]:
        """The batches, and None as soon as the time is over."""
        raise NotImplementedError

    def enter(self, producer: Any) -> Any:
        raise NotImplementedError

    def leave(self, producer: Any) -> None:
        raise NotImplementedError

    # Commands

    def init(self, command: Command) -> Result:
        self.open(command["serverUrl"])
        features = dict.fromkeys(FEATURES, True)
        return {"clientName": "opslog", "clientVersion": __version__, "features": features}

    def shutdown(self, command: Command) -> Result:
        for producer in self._producers.values():
            self.leave(producer)
        self.disconnect()
        return {}

    def set_dynamic_header(self, command: Command) -> Result:
        self.headers.set(command)
        return {}

    def set_dynamic_param(self, command: Command) -> Result:
        self.params.set(command)
        return {}

    def clear_dynamic(self, command: Command) -> Result:
        self.headers.clear()
        self.params.clear()
        return {}

    def create(self, command: Command) -> Result:
        path = command["path"]
        stream = self.stream(path)
        try:
            self.run(stream.head())
            status = 200
        except StreamError:
            status = 201
        content_type = command.get("contentType", "application/octet-stream")
        data = command.get("data")
        made = self.run(
            stream.create(
                content_type,
                None if data is None else contents(data, content_type)[0],
                ttl=command.get("ttlSeconds"),
                expires_at=command.get("expiresAt"),
                closed=bool(command.get("closed")),
            )
        )
        self.types[path] = made.content_type
        return {"status": status, "offset": made.next_offset}

    def connect(self, command: Command) -> Result:
        return self.head(command)

    def head(self, command: Command) -> Result:
        found = self.run(self.stream(command["path"]).head())
        self.types[command["path"]] = found.content_type
        return {
            "offset": found.next_offset,
            "contentType": found.content_type,
            "ttlSeconds": found.ttl,
            "expiresAt": found.expires_at,
            "streamClosed": found.closed,
        }

    def delete(self, command: Command) -> Result:
        self.run(self.stream(command["path"]).delete())
        self._streams.pop(command["path"], None)
        return {}

    def append(self, command: Command) -> Result:
        path = command["path"]
        data = base64.b64decode(command["data"]) if command.get("binary") else command["data"]
        seq = command.get("seq")
        found = contents(data, self._type(path))
        done = self.run(self.stream(path).append(*found, seq=None if seq is None else str(seq), at_least_once=True))
        return {"offset": done.next_offset}

    def close(self, command: Command) -> Result:
        path, data = command["path"], command.get("data")
        stream = self.stream(path)
        found = [] if data is None else contents(data, self._type(path))
        done = self.run(stream.append(*found, close=True) if found else stream.close())
        return {"finalOffset": done.next_offset}

    def read(self, command: Command) -> Result:
        path = command["path"]
        offset = command.get("offset") or "-1"
        most = command.get("maxChunks") or 100
        chunks: list[Result] = []
        up_to_date = closed = False
        for batch in self.batches(path, {**command, "offset": offset}, (command.get("timeoutMs") or 5000) / 1000):
            if batch is None:
                up_to_date = True  # nothing more came
                break
            offset, up_to_date, closed = batch.next_offset, batch.up_to_date, batch.closed
            if batch.data:
                chunks.append({"data": shown(batch), "offset": offset})
            if len(chunks) >= most or (command.get("waitForUpToDate") and up_to_date):
                break
        status = 204 if command.get("live") == "long-poll" and not chunks else 200
        return {"status": status, "chunks": chunks, "offset": offset, "upToDate": up_to_date, "streamClosed": closed}

    def idempotent_append(self, command: Command) -> Result:
        key, producer = self._producer(command)
        self._with(key, producer, [command["data"]])
        return {}

    def idempotent_append_batch(self, command: Command) -> Result:
        path = command["path"]
        in_flight = command.get("maxInFlight") or 1
        producer = self.enter(
            self.stream(path).producer(
                command["producerId"],
                epoch=command["epoch"],
                claim=command["autoClaim"],
                max_in_flight=in_flight,
                max_batch_bytes=1 if in_flight > 1 else 1 << 20,
            )
        )
        try:
            for item in command["items"]:
                self.run(producer.append(message(item, self._type(path))))
            self.run(producer.flush())
        finally:
            self.leave(producer)
        return {}

    def idempotent_close(self, command: Command) -> Result:
        key, producer = self._producer(command)
        if producer in self._ended:
            return {"finalOffset": self._ended[producer]}
        self._with(key, producer, [command["data"]] if command.get("data") else [])
        end = self.run(producer.end())
        self._ended[producer] = end
        return {"finalOffset": end}

    def idempotent_detach(self, command: Command) -> Result:
        key, producer = self._producer(command)
        del self._producers[key]
        self.leave(producer)
        return {}

    def validate(self, command: Command) -> Result:
        target = command["target"]
        if target["target"] != "idempotent-producer":
            raise NotImplementedError(target["target"])
        names = {"epoch": "epoch", "maxBatchBytes": "max_batch_bytes"}
        options = {names[name]: value for name, value in target.items() if name in names}
        AsyncClient("http://127.0.0.1").stream("x").producer(target.get("producerId", "p"), **options)
        return {}

    _ended: dict[Any, str]

    def _producer(self, command: Command) -> tuple[tuple[str, str, int], Any]:
        key = command["path"], command["producerId"], command["epoch"]
        if key not in self._producers:
            stream = self.stream(command["path"])
            claim = bool(command.get("autoClaim"))
            self._producers[key] = self.enter(stream.producer(key[1], epoch=key[2], claim=claim, max_in_flight=1))
        return key, self._producers[key]

    def _with(self, key: tuple[str, str, int], producer: Any, items: list[str]) -> None:
        try:
            for item in items:
                self.run(producer.append(message(item, self._type(key[0]))))
            self.run(producer.flush())
        except StreamError:
            del self._producers[key]
            self.leave(producer)
            raise

    def _type(self, path: str) -> str:
        if path not in self.types:
            self.types[path] = self.run(self.stream(path).head()).content_type
        return self.types[path]


class Threads(Adapter):
    def __init__(self) -> None:
        super().__init__()
        self._ended = {}
        self._http = httpx.Client(timeout=30)

    def open(self, url: str) -> None:
        self._url = url
        self._client = self._over(self._http)

    def _over(self, connections: httpx.Client) -> Client:
        return Client(self._url, headers=self.headers, params=self.params, retrying=PATIENCE, http=connections)

    def disconnect(self) -> None:
        self._http.close()

    def stream(self, path: str) -> Any:
        return self._streams.setdefault(path, self._client.stream(path.removeprefix("/")))

    def run(self, done: Any) -> Any:
        return done

    def batches(self, path: str, command: Command, seconds: float) -> Iterator[Batch | None]:
        if not command.get("live"):
            yield from self.stream(path).read(command["offset"])
            return
        arrived = threading.Condition()
        found: list[Batch | BaseException | None] = []

        connections = httpx.Client(timeout=30, verify=False)
        stream = self._over(connections).stream(path.removeprefix("/"))

        def follow() -> None:
            try:
                for batch in stream.follow(command["offset"], live(command)):
                    with arrived:
                        found.append(batch)
                        arrived.notify()
                ended: BaseException | None = None
            except OpslogError as error:
                ended = error
            with arrived:
                found.append(ended)
                arrived.notify()

        threading.Thread(target=follow, daemon=True).start()
        try:
            yield from self._arriving(arrived, found, seconds)
        finally:
            connections.close()  # this ends the thread

    def _arriving(
        self, arrived: threading.Condition, found: list[Batch | BaseException | None], seconds: float
    ) -> Iterator[Batch | None]:
        while True:
            with arrived:
                if not arrived.wait_for(lambda: found, seconds):
                    yield None
                    return
                next_one = found.pop(0)
            if next_one is None:
                return
            if isinstance(next_one, BaseException):
                raise next_one
            yield next_one

    def enter(self, producer: Any) -> Any:
        return producer.__enter__()

    def leave(self, producer: Any) -> None:
        producer._stop()


class Tasks(Adapter):
    def __init__(self) -> None:
        super().__init__()
        self._ended = {}
        self._runner = asyncio.Runner()
        self._http = httpx.AsyncClient(timeout=30)

    def open(self, url: str) -> None:
        self._client = AsyncClient(url, headers=self.headers, params=self.params, retrying=PATIENCE, http=self._http)

    def disconnect(self) -> None:
        self._runner.run(self._http.aclose())
        self._runner.close()

    def stream(self, path: str) -> Any:
        return self._streams.setdefault(path, self._client.stream(path.removeprefix("/")))

    def run(self, done: Any) -> Any:
        async def awaited() -> Any:
            return await done

        return self._runner.run(awaited())

    def batches(self, path: str, command: Command, seconds: float) -> Iterator[Batch | None]:
        stream = self.stream(path)
        following = (
            stream.follow(command["offset"], live(command)) if command.get("live") else stream.read(command["offset"])
        )

        async def next_one() -> Any:
            async with asyncio.timeout(seconds):
                return await anext(following, "ended")

        try:
            while (batch := self._runner.run(next_one())) != "ended":
                yield batch
        except TimeoutError:
            yield None
        finally:
            self._runner.run(following.aclose())

    def enter(self, producer: Any) -> Any:
        return self.run(producer.__aenter__())

    def leave(self, producer: Any) -> None:
        error = RuntimeError("left")
        self.run(producer.__aexit__(type(error), error, None))


def live(command: Command) -> Any:
    return "auto" if command["live"] is True else command["live"]


def contents(data: Any, content_type: str) -> list[Any]:
    """The messages that a body appends: the elements of a JSON array."""
    if not content_type.startswith(JSON):
        return [data if isinstance(data, bytes) else data.encode()]
    found = json.loads(data)
    return found if isinstance(found, list) else [found]


def message(data: str, content_type: str) -> Any:
    """The message that a producer appends. Here an array is one message, too."""
    return json.loads(data) if content_type.startswith(JSON) else data.encode()


def shown(batch: Batch) -> str:
    if batch.content_type.startswith(JSON):
        return json.dumps(batch.messages, ensure_ascii=False, separators=(",", ":"))
    return batch.data.decode("utf-8", "replace")


def described(kind: str, error: OpslogError) -> Result:
    """The suite's word for an error."""
    status = getattr(error, "status", None)
    codes: list[tuple[type[OpslogError], str]] = [
        (UsageError, "INVALID_ARGUMENT"),
        (StreamNotFoundError, "NOT_FOUND"),
        (StreamGoneError, "UNEXPECTED_STATUS"),
        (StreamClosedError, "STREAM_CLOSED"),
        (StreamConflictError, "CONFLICT"),
        (ProtocolError, "PARSE_ERROR"),
        (ProducerFencedError, "FORBIDDEN"),
        (RequestRefusedError, "INVALID_OFFSET" if kind == "read" and status == 400 else "UNEXPECTED_STATUS"),
        (UnavailableError, "NETWORK_ERROR" if status is None else "UNEXPECTED_STATUS"),
        (OutcomeUnknownError, "NETWORK_ERROR" if status is None else "UNEXPECTED_STATUS"),
    ]
    code = next((code for one, code in codes if isinstance(error, one)), "INTERNAL_ERROR")
    if code == "CONFLICT" and "sequence" in getattr(error, "detail", "").lower():
        code = "SEQUENCE_CONFLICT"
    # The suite uses JavaScript's names for arguments.
    message = re.sub(r"_([a-z])", lambda found: found[1].upper(), str(error))
    return {"errorCode": code, "message": message, **({} if status is None else {"status": status})}


def main() -> None:
    adapter: Adapter = Threads() if sys.argv[1] == "threads" else Tasks()
    for line in sys.stdin:
        command = json.loads(line)
        sys.stdout.write(json.dumps(adapter.handle(command)) + "\n")
        sys.stdout.flush()
        if command["type"] == "shutdown":
            return


if __name__ == "__main__":
    main()
