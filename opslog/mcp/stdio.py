"""The transport for the client at standard input and output: in both directions, each line is a message of JSON-RPC.

It stands in place of the one of the SDK, which waits for a thread that reads, so that Ctrl-C would have no effect as
long as the client sends nothing. That one also drops a message that it cannot read: the client would wait for ever.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import types
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from opslog.logs import logger

R = TypeVar("R")
_log = logger("mcp")

_CHUNK = 1 << 16
# No request has a longer number as its id, and Python refuses to convert thousands of digits.
_ID_DIGITS = 20


async def serve(server: Server[Any]) -> None:
    """Serve the client until it disconnects. A call that is under way then is finished, and its result is dropped.

    :raises OSError: input or output failed in another way than by the client's end.
    """
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception]()
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage]()
    failures: list[OSError] = []
    with _diverted() as (source, target):
        async with anyio.create_task_group() as tasks:

            @contextmanager
            def ending() -> Iterator[None]:
                """What the client's end makes fail also ends the rest, without a traceback."""
                try:
                    yield
                except OSError as error:
                    failures.append(error)
                    tasks.cancel_scope.cancel()

            async def read(answers: MemoryObjectSendStream[SessionMessage]) -> None:
                async with to_server, answers:
                    with ending():
                        await _read(source, to_server, answers)

            async def write() -> None:
                async with from_server:
                    with ending():
                        await _write(target, from_server)

            tasks.start_soon(read, to_client.clone())
            tasks.start_soon(write)
            await server.run(from_client, to_client, server.create_initialization_options())
    for failure in failures:
        if not isinstance(failure, ConnectionError):
            raise failure


@contextmanager
def _diverted() -> Iterator[tuple[int, int]]:
    """The descriptors that lead to the client. Meanwhile standard input is empty, and standard output is stderr: what
    a library prints must not come among the messages."""
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    try:
        yield source, target
    finally:
        # The others stay open: a thread may still wait for the client.
        os.dup2(source, 0)
        os.dup2(target, 1)


async def _read(
    source: int,
    to_server: MemoryObjectSendStream[SessionMessage | Exception],
    answers: MemoryObjectSendStream[SessionMessage],
) -> None:
    """Pass on the client's messages. Those that cannot be read are answered here."""
    async for line in _lines(source):
        try:
            message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError as error:
            await answers.send(SessionMessage(_refused(line, error)))
        else:
            await to_server.send(SessionMessage(message))


async def _lines(source: int) -> AsyncIterator[bytes]:
    """The client's lines, without empty ones."""
    pending = bytearray()
    while chunk := await _in_thread(partial(os.read, source, _CHUNK)):
        pending += chunk
        if b"\n" in chunk:
            *lines, pending = pending.split(b"\n")
            for line in lines:
                if line.strip():
                    yield bytes(line)
    if pending.strip():
        yield bytes(pending)


async def _write(target: int, from_server: MemoryObjectReceiveStream[SessionMessage]) -> None:
    """Send the client what is for it."""
    async for sent in from_server:
        text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
        await _in_thread(partial(_write_all, target, text.encode() + b"\n"))


def _write_all(target: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(target, rest) :]


def _refused(line: bytes, error: ValidationError) -> types.JSONRPCError:
    """The answer to a message that cannot be read. The log has no part of the message."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        code, reason = types.PARSE_ERROR, first["msg"]
    else:
        code, reason = types.INVALID_REQUEST, "it is not a message of JSON-RPC"
    _log.warning("a message of the client cannot be read", extra={"reason": reason, "bytes": len(line)})
    problem = types.ErrorData(code=code, message=f"the message cannot be read: {reason}")
    return types.JSONRPCError(jsonrpc="2.0", id=_id_of(line), error=problem)


def _id_of(line: bytes) -> types.RequestId | None:
    """The id of a request that cannot be read; None: it has none, or is not even JSON. Python's parser also takes half
    of a surrogate pair, and more levels than the one of the SDK."""

    def number(digits: str) -> int | None:
        return int(digits) if len(digits) <= _ID_DIGITS else None

    try:
        message = json.loads(line.decode(errors="replace"), parse_int=number)
        if not isinstance(message, dict) or "method" not in message:  # an id of a response is not the client's
            return None
        id = message.get("id")
        if isinstance(id, str):
            id.encode()
            return id
    except (ValueError, RecursionError):
        return None
    return id if type(id) is int else None


async def _in_thread(call: Callable[[], R]) -> R:
    """The result of a call that may wait for the client for ever. Neither a cancellation nor the end of the process
    waits for the call."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[R] = loop.create_future()

    def settle(outcome: Callable[[], None]) -> None:
        if not result.done():  # it was cancelled
            outcome()

    def run() -> None:
        try:
            outcome = partial(result.set_result, call())
        except OSError as error:
            outcome = partial(result.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, name="opslog-stdio", daemon=True).start()
    return await result
