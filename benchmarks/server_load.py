"""The clients of a stream server that is measured, in a process of their own: one workload as JSON on the command
line, its figures as JSON on standard output.

    python -m benchmarks.server_load URL PID WORKLOAD OPTIONS

PID is the server's process. The processor time that it takes for one append or one delivered event is a figure, too: it
varies less than times do when other programs run on the machine.

Requests are written as bytes and answers are taken apart by httptools, so that the clients cost as little as possible:
they share the machine with the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httptools
import uvloop

MESSAGE = b'{"agent":"planner","n":"%09d","note":"' + b"x" * 55 + b'"}'
"""100 bytes when filled in."""

_JSON = "application/json"


class Answer:
    """Takes one answer after the other from the bytes of a connection."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.body: list[bytes] = []
        self.complete = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.headers, self.body, self.complete = {}, [], False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.complete = True

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())


class Connection:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, root: str) -> None:
        self._reader = reader
        self._writer = writer
        self._root = root
        self.answer = Answer()

    @classmethod
    async def open(cls, url: str) -> Self:
        parts = urlsplit(url)
        assert parts.hostname is not None
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)
        return cls(reader, writer, parts.path)

    async def request(self, method: str, path: str, body: bytes = b"", content_type: str = _JSON) -> Answer:
        self.send(method, path, body, content_type)
        answer = self.answer
        answer.complete = False
        while not answer.complete:
            await self.more()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {b''.join(answer.body)!r}")
        return answer

    def send(self, method: str, path: str, body: bytes = b"", content_type: str = "") -> None:
        head = f"{method} {self._root}/{path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n"
        head += f"Content-Type: {content_type}\r\n\r\n" if content_type else "\r\n"
        self._writer.write(head.encode() + body)

    async def more(self) -> None:
        data = await self._reader.read(1 << 20)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.answer.feed(data)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


Figures = dict[str, float]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def processor_seconds(pid: int) -> float:
    """What a process, with all its threads, has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def append(url: str, pid: int, *, connections: int, streams: int, seconds: float) -> Figures:
    """Each connection appends one message after the other, each to its own stream or all to one."""
    opened = [await Connection.open(url) for _ in range(connections)]
    for number in range(streams):
        await opened[0].request("PUT", f"append/{number}")
    taken: list[float] = []
    until = time.perf_counter() + seconds

    async def write(connection: Connection, path: str) -> None:
        number = 0
        while (start := time.perf_counter()) < until:
            await connection.request("POST", path, MESSAGE % number)
            taken.append(time.perf_counter() - start)
            number += 1

    start, before = time.perf_counter(), processor_seconds(pid)
    await asyncio.gather(*(write(one, f"append/{number % streams}") for number, one in enumerate(opened)))
    rate = len(taken) / (time.perf_counter() - start)
    each = (processor_seconds(pid) - before) / len(taken)
    for one in opened:
        await one.close()
    return {
        "appends/s": rate,
        "p50 ms": percentile(taken, 0.5) * 1e3,
        "p99 ms": percentile(taken, 0.99) * 1e3,
        "CPU µs/append": each * 1e6,
    }


async def catch_up(url: str, pid: int, *, bytes: int, large: bool) -> Figures:
    """Write a stream of so many bytes, in messages of a megabyte or of a kilobyte, and read it from its beginning."""
    connection = await Connection.open(url)
    kind = "application/octet-stream" if large else "application/json"
    await connection.request("PUT", "long", content_type=kind)
    size = min(bytes, 1 << 20)
    # A thousand small messages in one request, which the server takes apart.
    small = b"[" + b",".join([json.dumps("y" * 1000).encode()] * max(1, size // 1003)) + b"]"
    body = b"z" * size if large else small
    for _ in range(max(1, bytes // len(body))):
        await connection.request("POST", "long", body, kind)
    start, read, offset = time.perf_counter(), 0, "-1"
    while True:
        answer = await connection.request("GET", f"long?offset={offset}")
        read += sum(map(len, answer.body))
        offset = answer.headers[b"stream-next-offset"].decode()
        if answer.headers.get(b"stream-up-to-date") == b"true":
            break
    taken = time.perf_counter() - start
    await connection.close()
    if read < bytes * 0.9:
        raise RuntimeError(f"only {read} of {bytes} bytes came")
    return {"MB/s": read / taken / 1e6}


async def follow(url: str, pid: int, *, followers: int, messages: int, live: str) -> Figures:
    """So many followers of one stream; from the moment a message is sent until each of them has it. The next one is
    sent when all have it."""
    writer = await Connection.open(url)
    await writer.request("PUT", "followed")
    opened = [await Connection.open(url) for _ in range(followers)]
    delays: list[float] = []
    sent = [0.0] * messages
    seen = asyncio.Semaphore(0)
    listening = asyncio.Semaphore(0)

    def got(number: int) -> None:
        delays.append(time.perf_counter() - sent[number])
        seen.release()

    listen = _listen_to_events if live == "sse" else _poll
    tasks = [asyncio.create_task(listen(one, got, messages, listening)) for one in opened]
    for _ in range(followers):
        await listening.acquire()
    await asyncio.sleep(0.2)  # the last requests are on their way
    before = processor_seconds(pid)
    for number in range(messages):
        sent[number] = time.perf_counter()
        await writer.request("POST", "followed", b"[%d]" % number)
        for _ in range(followers):
            await seen.acquire()
        await asyncio.sleep(0.02)  # long polls come back
    await asyncio.gather(*tasks)
    each = (processor_seconds(pid) - before) / len(delays)
    for one in (*opened, writer):
        await one.close()
    return {
        "p50 ms": percentile(delays, 0.5) * 1e3,
        "p99 ms": percentile(delays, 0.99) * 1e3,
        "CPU µs/event": each * 1e6,
    }


async def append_followed(url: str, pid: int, *, followers: int, appends: int, live: str, pause: float) -> Figures:
    """The response times of one append after the other while others follow the stream, in a process of their own.
    A pause after each lets all followers get it."""
    writer = await Connection.open(url)
    await writer.request("PUT", "followed")
    options = json.dumps({"followers": followers, "live": live})
    command = [sys.executable, "-m", "benchmarks.server_load", url, str(pid), "only_follow", options]
    others = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert others.stdout is not None
    await others.stdout.readline()
    await asyncio.sleep(pause)  # the last requests are on their way
    taken: list[float] = []
    for number in range(appends):
        start = time.perf_counter()
        await writer.request("POST", "followed", b"[%d]" % number)
        taken.append(time.perf_counter() - start)
        await asyncio.sleep(pause)
    others.kill()
    await others.wait()
    await writer.close()
    return {"p50 ms": percentile(taken, 0.5) * 1e3, "p99 ms": percentile(taken, 0.99) * 1e3}


async def only_follow(url: str, pid: int, *, followers: int, live: str) -> Figures:
    """Say when all followers are there, and follow until the process is ended."""
    opened = [await Connection.open(url) for _ in range(followers)]
    listening = asyncio.Semaphore(0)
    listen = _listen_to_events if live == "sse" else _poll
    tasks = [asyncio.create_task(listen(one, lambda _: None, sys.maxsize, listening)) for one in opened]
    for _ in range(followers):
        await listening.acquire()
    print(flush=True)
    await asyncio.gather(*tasks)
    return {}


async def _listen_to_events(connection: Connection, got: Any, messages: int, listening: asyncio.Semaphore) -> None:
    connection.send("GET", "followed?live=sse&offset=now")
    left = messages
    text = b""
    answer = connection.answer
    reported = False
    while left:
        await connection.more()
        text += b"".join(answer.body)
        answer.body.clear()
        *events, text = text.split(b"\n\n")
        for event in events:
            if not reported:
                reported = True
                listening.release()
            if event.startswith(b"event: data"):
                payload = b"".join(line[5:].strip() for line in event.split(b"\n")[1:])
                for number in json.loads(payload):
                    got(number)
                    left -= 1


async def _poll(connection: Connection, got: Any, messages: int, listening: asyncio.Semaphore) -> None:
    answer = await connection.request("GET", "followed?offset=now")
    listening.release()
    left = messages
    while left:
        offset = answer.headers[b"stream-next-offset"].decode()
        answer = await connection.request("GET", f"followed?live=long-poll&offset={offset}")
        if answer.status == 200:
            for number in json.loads(b"".join(answer.body)):
                got(number)
                left -= 1


WORKLOADS: dict[str, Callable[..., Coroutine[Any, Any, Figures]]] = {
    "append": append,
    "catch_up": catch_up,
    "follow": follow,
    "append_followed": append_followed,
    "only_follow": only_follow,
}

if __name__ == "__main__":
    _url, _pid, _name, _options = sys.argv[1:]
    print(json.dumps(uvloop.run(WORKLOADS[_name](_url, int(_pid), **json.loads(_options)))))
