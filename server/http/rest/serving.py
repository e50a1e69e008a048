"""Requests for stores: finding their route, checking who may make them, and responding."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import msgspec

from opslog.backends.remote.protocol import CONTENT_TYPE
from opslog.doors.access import Asked, Receive, Scope, Send, request_of
from opslog.doors.arguments import converted
from opslog.doors.once import Once
from opslog.doors.tokens import Right, Token
from opslog.environment import format_ts
from opslog.errors import OpslogError
from opslog.format import exact
from opslog.format.documents import Document
from opslog.format.layout import check_agent
from opslog.server.http import requests
from opslog.server.http.admission import Admission, author_of, check
from opslog.server.http.budget import Budget, Holding
from opslog.server.http.live import Patience
from opslog.server.http.origins import check_local
from opslog.server.http.replies import NO_STORE, STORE_PREFLIGHT, begin, reply
from opslog.server.http.requests import Fields
from opslog.server.http.rest import problems
from opslog.server.http.rest.announcing import Announcing
from opslog.server.http.rest.handlers import ROUTES
from opslog.server.http.rest.openapi import description
from opslog.server.http.rest.problems import PreconditionError, ProblemDocument
from opslog.server.http.rest.routes import Answer, Call, Route, point_of
from opslog.server.options import Options
from opslog.server.protocol import compression, conditional
from opslog.server.protocol.refusals import Headers, Refused
from opslog.server.stores.feed import FOLDER
from opslog.server.stores.rights import EVERYBODY, Client
from opslog.server.stores.served import ServedStore, ServedStores

ROOT = "/v1/store/"
LIST = "/v1/stores"
DESCRIPTION = "/v1/openapi.json"
_log = logging.getLogger("opslog.server")
# Below the address of a store, for remote agents with replicas of their own.
STORAGE = "/storage"
# Files of a store, as a part of a snapshot, are larger than documents.
_STORAGE_BYTES_MAX = 128 * 1024 * 1024
# How much of an answer is handed on at once.
_PART_BYTES = 256 * 1024
_STORAGE_TYPE = (b"content-type", CONTENT_TYPE.encode())
_JSON = (b"content-type", b"application/json")
_READING = frozenset({"GET", "HEAD"})
_RIGHTS: tuple[Right, ...] = ("read", "write", "operate")


class Rest:
    """Answers requests for stores.

    :param announcing: answers clients that wait for writes.
    :param wrote: called on the event loop with a store after a write.
    """

    def __init__(
        self,
        stores: ServedStores,
        options: Options,
        *,
        admission: Admission,
        budget: Budget,
        announcing: Announcing,
        wrote: Callable[[ServedStore], None],
    ) -> None:
        self._stores = stores
        self._options = options
        self._admission = admission
        self._budget = budget
        self._announcing = announcing
        self._wrote = wrote
        self._description = msgspec.json.encode(description(ROUTES, ROOT))

    def answers(self, path: str) -> bool:
        """Whether a request for this path is for a store."""
        return path.startswith(ROOT) or path in {LIST, DESCRIPTION}

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Answer a request, also if it fails. Returns the status.

        :raises DisconnectedError: the client is gone.
        """
        head = scope["method"] == "HEAD"
        try:
            if scope["method"] == "OPTIONS":
                return await reply(send, 204, STORE_PREFLIGHT)
            if self._options.local_stores:
                check_local(scope)
            if scope["path"] == DESCRIPTION:
                _check_reads(scope["method"])
                return await self._send(scope, send, Answer(200, self._description), head=head)
            if scope["path"] == LIST:
                _check_reads(scope["method"])
                return await self._send(scope, send, Answer(200, self._list(scope)), head=head)
            name, path = _split(scope)
            if path == STORAGE and scope["method"] == "GET":
                return await self._announce(name, scope, receive, send)
            if path == STORAGE:
                return await self._call_storage(name, scope, receive, send)
            with self._budget.holding() as holding:
                found = await self._call(name, path, scope, receive, holding)
                return await self._send(scope, send, found, head=head)
        # Without their tracebacks, as the application does it: their frames refer to the body.
        except PreconditionError as error:
            document, headers = problems.document_of(error.error.with_traceback(None), 412, self._namer(scope))
        except OpslogError as error:
            document, headers = problems.document_of(error.with_traceback(None), None, self._namer(scope))
            if document.status >= 500:
                extra = {"method": scope["method"], "path": scope["path"], "error": str(error)}
                _log.error("a request failed", extra=extra)
        return await self._send_problem(scope, send, document, headers)

    async def refuse(self, scope: Scope, send: Send, refused: Refused) -> int:
        """Answer with a refusal that `answer` did not raise."""
        return await self._send_problem(scope, send, *problems.document_of(refused))

    async def _send_problem(self, scope: Scope, send: Send, document: ProblemDocument, headers: Headers) -> int:
        document.request_id = request_of(scope).id
        body = msgspec.json.encode(document)
        head = scope["method"] == "HEAD"
        return await reply(send, document.status, [problems.CONTENT_TYPE, NO_STORE, *headers], body, head=head)

    def _namer(self, scope: Scope) -> Callable[[str], str]:
        """A function that replaces the place of the request's store by its name, in messages."""
        asked = request_of(scope).asked
        return str if asked is None else self._stores.find(asked.store).named

    def _list(self, scope: Scope) -> dict[str, Any]:
        """The stores that this token may read, what else it may do with each, and its agent."""
        token = self._admission.admit_to_list(scope)
        rights = {name: _rights(token, name) for name in self._stores.names}
        readable = {name: allowed for name, allowed in rights.items() if "read" in allowed}
        return {"stores": list(readable), "rights": readable, "agent": token and token.author()}

    async def _announce(self, name: str, scope: Scope, receive: Receive, send: Send) -> int:
        """A remote agent with a replica of its own waits for writes."""
        self._admission.admit(scope, FOLDER + name, "read")
        self._stores.find(name)
        request_of(scope).asked = Asked("remote", name, "listen")
        return await self._announcing.answer(name, receive, send)

    async def _call_storage(self, name: str, scope: Scope, receive: Receive, send: Send) -> int:
        """A request of a remote agent with a replica of its own: `opslog.backends.remote.protocol`."""
        if scope["method"] != "POST":
            raise Refused(405, f"{scope['method']} is not a method of {STORAGE}", [(b"allow", b"GET, POST, OPTIONS")])
        token = self._admission.admit(scope, FOLDER + name, "read")
        served = self._stores.find(name)
        request_of(scope).asked = Asked("remote", name, "storage")
        client = EVERYBODY if token is None else _client_of(token, FOLDER + name)
        options = self._options
        most = max(options.max_body_bytes, min(_STORAGE_BYTES_MAX, options.max_buffered_bytes))
        with self._budget.holding() as holding:
            fields = requests.fields(scope["headers"])
            data = await requests.body(receive, fields, most, options.body_seconds, holding)
            answer, has_written = await served.call(partial(served.storage.answer, data, client, holding.hold_answer))
            if has_written:
                self._wrote(served)
            # If there is no room, the client asks again, and gets the same answer.
            holding.hold_answer(len(answer))
            return await self._send_parts(send, 200, [_STORAGE_TYPE, NO_STORE], answer)

    async def _send_parts(self, send: Send, status: int, headers: Headers, body: bytes) -> int:
        """Send an answer that may be large. Returns when the client has taken almost all of it. If the client reads
        nothing for too long, it is dropped."""
        length = (b"content-length", b"%d" % len(body))
        async with Patience(send, self._options.send_seconds) as patient:
            await begin(patient.send, status, [*headers, length])
            for start in range(0, max(len(body), 1), _PART_BYTES):
                stop = start + _PART_BYTES
                part = {"type": "http.response.body", "body": body[start:stop], "more_body": stop < len(body)}
                await patient.send(part)
        return status

    async def _call(self, name: str, path: str, scope: Scope, receive: Receive, holding: Holding) -> Answer:
        """The answer to a request, with its body as bytes.

        :param holding: the request's share of the budget, which includes the answer of a read afterwards. An answer to
            a write is never refused for lack of room, since the write was made.
        """
        route, rest = _route(scope["method"], path)
        # Writing shows documents: in responses to conditions that do not hold, and in the result of a change.
        token = self._admission.admit(scope, FOLDER + name, "read")
        if token is not None:
            check(token, FOLDER + name, route.right)
        served = self._stores.find(name)
        request_of(scope).asked = Asked("http", name, route.name)
        headers = requests.fields(scope["headers"])
        _check_conditions(route, headers)
        author = None if route.right == "read" else _author(token, headers)
        given = route.parse(scope["query_string"])
        id = _decoded(rest)
        data = await self._data(route, headers, receive, holding)
        key = headers.get(b"idempotency-key")
        if key is not None and not route.is_keyed:
            raise Refused(400, f"{route.method} {route.path} takes no Idempotency-Key: send it again without one")
        as_of = given.get("as_of")

        def call() -> Answer:
            # Bodies are decoded and answers encoded in this thread, too: large ones would delay all other requests.
            body, once = _body(route, data), None
            if as_of is not None:
                return served.as_of(
                    point_of(as_of),
                    lambda past: _encoded_answer(route.handler(Call(served, past, id, given, headers, body))),
                )
            if key is not None:
                conditions = [headers.get(b"if-match", ""), headers.get(b"if-none-match", "")]
                asked = [route.method, path, *conditions, data.decode("latin-1")]
                once = served.once(key, msgspec.json.encode(asked))
            answer = route.handler(Call(served, served.operations(author, once), id, given, headers, body))
            if once is not None:
                answer.headers.extend(_keyed(once))
            return _encoded_answer(answer)

        if route.is_in_turn:
            answer = await served.call_in_turn(call)
        elif route.is_long or as_of is not None:
            answer = await served.call_long(call)
        else:
            answer = await served.call(call)
        if scope["method"] not in _READING:
            self._wrote(served)
        else:
            holding.hold_answer(len(answer.body or b""))
        return answer

    async def _data(self, route: Route, headers: Fields, receive: Receive, holding: Holding) -> bytes:
        if route.method == "GET":
            return b""
        options = self._options
        return await requests.body(receive, headers, options.max_body_bytes, options.body_seconds, holding)

    async def _send(self, scope: Scope, send: Send, answer: Answer, *, head: bool) -> int:
        if answer.body is None:
            return await reply(send, answer.status, answer.headers)
        body = answer.body if isinstance(answer.body, bytes) else msgspec.json.encode(answer.body)
        headers: Headers = [_JSON, (b"vary", b"Accept-Encoding"), *answer.headers]
        if not any(name == b"cache-control" for name, _ in headers):
            headers.append(NO_STORE)
        encoding = None
        if self._options.compression and len(body) >= compression.MIN_BYTES:
            wanted = requests.fields(scope["headers"]).get(b"accept-encoding")
            encoding = compression.choose(wanted, "application/json")
        if encoding is not None:
            body = await _compressed(body, encoding)
            headers = [(name, _encoded(value, encoding) if name == b"etag" else value) for name, value in headers]
            headers.append((b"content-encoding", encoding.encode()))
        if head or len(body) <= _PART_BYTES:
            return await reply(send, answer.status, headers, body, head=head)
        return await self._send_parts(send, answer.status, headers, body)


def _client_of(token: Token, path: str) -> Client:
    """The rights of a token on a storage."""
    writes, operates = token.covers(path, "write"), token.covers(path, "operate")
    author = token.author()
    return Client(author or "", writes=writes and author is not None, operates=operates)


def _body(route: Route, data: bytes) -> Any:
    """The body of a request, as the route's type.

    :raises Refused: 400, it is not JSON.
    :raises UsageError: it is JSON, but not of that type.
    """
    if route.body is None or (not data and route.is_optional):
        return None
    try:
        if route.body == Document:
            return exact.load_document(data)
        value = exact.loads(data)
    except exact.InexactError as error:
        where = f", byte {error.offset}" if isinstance(error, exact.NotJsonError) else ""
        raise Refused(400, f"the body cannot be read{where}: {error}") from None
    return converted(value, route.body, f"{route.method} {route.path}")


def _check_conditions(route: Route, headers: Fields) -> None:
    """Refuse a write with a condition that its route does not support. A read may ignore such a condition.

    :raises Refused: 400.
    """
    if route.method == "GET":
        return
    for name in ("If-Match", "If-None-Match"):
        if name.lower().encode() in headers and name not in route.conditions:
            raise Refused(400, f"{route.method} {route.path or '/'} takes no {name}: nothing was done")


def _encoded_answer(answer: Answer) -> Answer:
    """The answer, with its body as JSON."""
    if answer.body is None or isinstance(answer.body, bytes):
        return answer
    return replace(answer, body=msgspec.json.encode(answer.body))


def _keyed(once: Once) -> Headers:
    """The headers about its key: until when the request may be sent again, and whether it had come before."""
    headers = [(b"idempotency-until", format_ts(once.until).encode())]
    return [*headers, (b"idempotency-replayed", b"true")] if once.done is not None else headers


def _check_reads(method: str) -> None:
    if method not in _READING:
        raise Refused(405, f"{method} is not a method of this address", [(b"allow", b"GET, HEAD, OPTIONS")])


def _rights(token: Token | None, name: str) -> list[Right]:
    """The rights of a token on a store. A token that names no agent cannot write."""
    if token is None:
        return list(_RIGHTS)
    allowed = [right for right in _RIGHTS if token.covers(FOLDER + name, right)]
    return [right for right in allowed if right == "read" or token.author() is not None]


def _split(scope: Scope) -> tuple[str, str]:
    """The name of the store in an address, and what follows it, still percent-encoded."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    text = raw.partition(b"?")[0].decode("latin-1")
    name, slash, path = text.removeprefix(ROOT).partition("/")
    return unquote(name), slash + path if path else ""


def _route(method: str, path: str) -> tuple[Route, str]:
    """The route of an address, and the value of its name in braces.

    :raises Refused: 404, 405.
    """
    found = [(route, rest) for route in ROUTES if (rest := route.match(path)) is not None]
    for route, rest in found:
        if route.method == ("GET" if method == "HEAD" else method):
            return route, rest
    if not found:
        raise Refused(404, f"a store has no {path}: {DESCRIPTION} describes what it has")
    allowed = {route.method for route, _ in found} | {"OPTIONS"}
    allowed |= {"HEAD"} if "GET" in allowed else set()
    raise Refused(405, f"{method} is not a method of {path}", [(b"allow", ", ".join(sorted(allowed)).encode())])


def _decoded(text: str) -> str:
    try:
        return unquote(text.encode("latin-1"), errors="strict")
    except UnicodeDecodeError:
        raise Refused(400, "the id in the address is not UTF-8") from None


def _author(token: Token | None, headers: Fields) -> str | None:
    """The author of what a request writes; None: it names none.

    :raises Refused: 403, it names another author than its token's.
    :raises InvalidNameError: no agent can have such a name.
    """
    named = headers.get(b"opslog-agent")
    if token is None:
        return None if named is None else check_agent(named)
    author = author_of(token)
    if named not in (None, author):
        raise Refused(403, f"this token writes as {author!r}, and as nobody else")
    return author


def _encoded(tag: bytes, encoding: str) -> bytes:
    return conditional.encoded_tag(tag.decode().strip('"'), encoding).encode()


async def _compressed(body: bytes, encoding: str) -> bytes:
    if len(body) < compression.IN_THREAD_BYTES:
        return compression.compress(body, encoding)
    return await asyncio.to_thread(compression.compress, body, encoding)
