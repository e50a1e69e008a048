"""Faults on demand, for tests of clients: responses that fail, come late, or break, as on the reference server.

``POST /_test/inject-error`` takes a JSON object and applies it to the next requests for a path. ``DELETE`` of the same
path forgets all faults. Never enable it on a server for others: anyone who can reach the server can break it.

Every response has the id of its request. The application adds it to its own responses, and `accounted` to those that
are made here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec.structs import replace

from opslog.doors.access import Message, Receive, Scope, Send, accounted
from opslog.format.prepared import prepare
from opslog.server.http import requests
from opslog.server.http.asgi import App
from opslog.server.http.replies import refuse, reply
from opslog.server.protocol.refusals import Refused

PATH = "/_test/inject-error"
_BODY_BYTES, _BODY_SECONDS = 64 * 1024, 30.0


class SseEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event to send before all others."""

    event_type: str
    data: str


class Fault(msgspec.Struct, frozen=True, rename="camel"):
    """What happens to the next `count` requests for `path` (of a URL), by `method` if one is given.

    :ivar status: of the response, which asks the client to wait for `retry_after` seconds.
    :ivar delay_ms: wait this long first, and up to `jitter_ms` longer.
    :ivar drop_connection: end the connection after the headers.
    :ivar truncate_body_bytes: send only this much of the body.
    :ivar corrupt_body: change its first bytes.
    :ivar probability: of the fault, for each request.
    """

    path: str
    status: int | None = None
    count: int = 1
    retry_after: int | None = None
    delay_ms: float = 0
    jitter_ms: float = 0
    drop_connection: bool = False
    truncate_body_bytes: int | None = None
    corrupt_body: bool = False
    probability: float = 1.0
    method: str | None = None
    inject_sse_event: SseEvent | None = None

    def is_one(self) -> bool:
        """Whether it does anything at all."""
        changes = (self.status, self.truncate_body_bytes, self.inject_sse_event)
        return any(change is not None for change in changes) or bool(
            self.delay_ms or self.drop_connection or self.corrupt_body
        )


prepare(Fault)


class FaultyApp:
    """An application with faults in front of it.

    :param random: a number from 0 to 1.
    """

    def __init__(self, application: App, random: Callable[[], float]) -> None:
        self.application = application
        self._random = random
        self._faults: dict[str, Fault] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        if scope["path"] == PATH:
            await accounted(self._control)(scope, receive, send)
            return
        fault = self._take(scope["path"], scope["method"])
        if fault is None:
            await self.application(scope, receive, send)
            return
        await asyncio.sleep((fault.delay_ms + fault.jitter_ms * self._random()) / 1000)
        if fault.status is not None or fault.drop_connection:
            await accounted(partial(_fail, fault))(scope, receive, send)
        else:
            await self.application(scope, receive, _broken(fault, send))

    async def _control(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["method"] == "DELETE":
                self._faults.clear()
            elif scope["method"] == "POST":
                fault = await self._fault(scope, receive)
                self._faults[fault.path] = fault
            else:
                raise Refused(405, "faults are set with POST and forgotten with DELETE", [(b"allow", b"POST, DELETE")])
        except Refused as refused:
            await refuse(send, refused)
            return
        await reply(send, 200, [(b"content-type", b"application/json")], b'{"ok":true}')

    async def _fault(self, scope: Scope, receive: Receive) -> Fault:
        given = requests.fields(scope["headers"])
        with self.application.budget.holding() as holding:
            body = await requests.body(receive, given, _BODY_BYTES, _BODY_SECONDS, holding)
        try:
            fault = msgspec.json.decode(body, type=Fault)
        except msgspec.DecodeError as error:
            raise Refused(400, f"this is no fault: {error}") from None
        if not fault.is_one():
            raise Refused(400, "this fault does nothing")
        return fault

    def _take(self, path: str, method: str) -> Fault | None:
        fault = self._faults.get(path)
        if fault is None or (fault.method or method).upper() != method or self._random() > fault.probability:
            return None
        if fault.count > 1:
            self._faults[path] = replace(fault, count=fault.count - 1)
        else:
            del self._faults[path]
        return fault


async def _fail(fault: Fault, scope: Scope, receive: Receive, send: Send) -> None:
    """Respond instead of the application."""
    if fault.status is not None:
        retry = [] if fault.retry_after is None else [(b"retry-after", b"%d" % fault.retry_after)]
        await refuse(send, Refused(fault.status, "this fault was asked for", retry))
    else:
        # A server ends the connection if an application promises more than it sends.
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})


def _broken(fault: Fault, send: Send) -> Send:
    """A function that sends the application's messages with the fault."""
    left = fault.truncate_body_bytes
    first = True

    async def send_broken(message: Message) -> None:
        nonlocal left, first
        body: bytes = message.get("body", b"")
        if message["type"] == "http.response.start":
            headers = message["headers"]
            if fault.truncate_body_bytes is not None:  # otherwise the connection would end in the middle of the body
                headers = [(name, value) for name, value in headers if name != b"content-length"]
            await send({**message, "headers": headers})
            if fault.inject_sse_event is not None:
                event = fault.inject_sse_event
                injected = f"event: {event.event_type}\ndata: {event.data}\n\n".encode()
                await send({"type": "http.response.body", "body": injected, "more_body": True})
            return
        if first and fault.corrupt_body:
            body = b"XY"[: len(body)] + body[2:]
        first = first and not body
        if left is not None:
            body, left = body[:left], max(0, left - len(body))
        await send({**message, "body": body})

    return send_broken
