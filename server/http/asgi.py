"""The ASGI application: which request goes where."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from opslog.doors.access import Asked, Receive, Request, Scope, Send, request_of
from opslog.doors.metrics import CONTENT_TYPE, exposition
from opslog.doors.tokens import Right, Tokens
from opslog.environment import REAL, Environment
from opslog.errors import CommitUnknownError, OpslogError, ReopenError, WriteFailedError
from opslog.server.http import requests
from opslog.server.http.admission import Admission, check
from opslog.server.http.budget import Budget
from opslog.server.http.origins import check_local
from opslog.server.http.page_routes import PageRoutes
from opslog.server.http.rates import Rates
from opslog.server.http.reading import Reading
from opslog.server.http.replies import METHODS, PREFLIGHT, TEXT, refuse, reply
from opslog.server.http.requests import DisconnectedError
from opslog.server.http.rest.announcing import Announcing
from opslog.server.http.rest.serving import Rest
from opslog.server.http.subscription_routes import RESERVED, SubscriptionRoutes, route_of
from opslog.server.http.writing import Writing
from opslog.server.metrics import Collector, Gauges, Metrics
from opslog.server.options import Options
from opslog.server.protocol.refusals import Refused
from opslog.server.protocol.storage import Storage
from opslog.server.registry import Registry
from opslog.server.storage.memory import MemoryStorage
from opslog.server.stores.feed import FOLDER, Feed, is_feed
from opslog.server.stores.served import ServedStore, ServedStores
from opslog.server.streams import REGISTRY, Observer, Streams
from opslog.server.subscriptions.service import Subscriptions
from opslog.server.subscriptions.webhook_delivery import Delivery

_log = logging.getLogger("opslog.server")
# Answers a request for a path, and returns the status of the answer.
Handler = Callable[[str, Scope, Receive, Send], Awaitable[int]]

_READING = frozenset({"GET", "HEAD"})
_FAULT = "this failed in the server, and may or may not have been done; the server's log says how"
# Operations of stores whose responses last as long as the client waits for more.
_LIVE = frozenset({"feed", "listen"})


class App:
    """An ASGI application that serves a storage.

    Requests for streams are dispatched by hand, without a framework, so an append costs little more than its parsing.

    :ivar streams: the same operations without HTTP.
    :ivar metrics: figures of this application.
    :ivar budget: counts the bytes of requests in memory.
    :ivar subscriptions: the service for the reserved paths that begin with ``__ds/``.
    :ivar stores: the stores that are served beside streams.
    """

    def __init__(
        self,
        storage: Storage,
        options: Options,
        tokens: Tokens | None = None,
        environment: Environment = REAL,
        stores: ServedStores | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.budget = Budget(options.max_buffered_bytes)
        self.streams = Streams(storage, environment, self.metrics, options.retain_bytes)
        self.options = options
        self._storage = storage
        self._admission = Admission(tokens, Rates(options.rate, environment.monotonic) if options.rate else None)
        self._registry = Registry(self.streams) if options.registry else None
        self._started: asyncio.Task[None] | None = None
        self._stopping = False
        self._root = options.root
        delivery = Delivery(allow_loopback=options.webhook_loopback)
        self.subscriptions = Subscriptions(self.streams, delivery, environment, rotate_keys=options.rotate_keys)
        self._control = SubscriptionRoutes(self.subscriptions, options, environment.time, self.budget)
        self._page = PageRoutes(self.streams, self.subscriptions, options)
        self.stores = stores or ServedStores({}, "")
        self._feeds: dict[str, Feed] = {}
        self._rest = Rest(
            self.stores,
            options,
            admission=self._admission,
            budget=self.budget,
            announcing=Announcing(self.streams, options),
            wrote=self._wake_feed,
        )
        writing = Writing(self.streams, options, self.metrics, self.budget)
        reading = Reading(
            self.streams, options, lambda below: int(environment.nonce(), 16) % below, private=tokens is not None
        )
        self._handlers: dict[str, Handler] = {
            "POST": writing.append,
            "GET": reading.get,
            "PUT": writing.create,
            "HEAD": reading.head,
            "DELETE": writing.delete,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise NotImplementedError(f"{scope['type']} is not served here")
        if self._started is None or not self._started.done():
            await self.start()
        method = scope["method"]
        request = Request(scope, send)
        try:
            status = await self._answer_or_refuse(method, scope, receive, request.send)
        except DisconnectedError:
            request.end()
            return  # the client is gone
        except Exception:  # a bug; the server that runs the application logs it
            try:
                if request.status is None:
                    await self._refuse(scope, request.send, Refused(500, _FAULT))
            finally:
                self._count(method, 500, request.asked, request.end(raised=True))
            raise
        except BaseException:
            request.end(raised=True)
            raise
        self._count(method, status, request.asked, request.end())

    def _count(self, method: str, status: int, asked: Asked | None, seconds: float) -> None:
        self.metrics.requests[method, status] += 1
        # A request that was not admitted is not counted here, because its client could invent names.
        if asked is not None:
            self.metrics.doors.requests[*asked, str(status)] += 1
            if asked[2] not in _LIVE:
                self.metrics.doors.seconds[asked[:2]].observe(seconds)

    async def _answer_or_refuse(self, method: str, scope: Scope, receive: Receive, send: Send) -> int:
        try:
            return await self._answer(method, scope, receive, send)
        # Without its traceback: the frames there refer to the body, and to futures and lists that hold the error. Such
        # a cycle would keep the body in memory until Python's collector finds it, beyond any budget.
        except Refused as refused:
            return await refuse(send, refused.with_traceback(None), head=method == "HEAD")
        except OpslogError as error:
            _log.error("a request failed", extra={"method": method, "path": scope["path"], "error": str(error)})
            return await refuse(send, _failure(error.with_traceback(None)), head=method == "HEAD")

    async def _refuse(self, scope: Scope, send: Send, refused: Refused) -> int:
        if self._rest.answers(scope["path"]):
            return await self._rest.refuse(scope, send, refused)
        return await refuse(send, refused, head=scope["method"] == "HEAD")

    async def _answer(self, method: str, scope: Scope, receive: Receive, send: Send) -> int:
        path: str = scope["path"]
        if self._rest.answers(path):
            return await self._rest.answer(scope, receive, send)
        if not path.startswith(self._root):
            return await self._answer_outside(method, path, scope, receive, send)
        if method == "OPTIONS":
            return await reply(send, 204, PREFLIGHT)
        name = path[len(self._root) :]
        if name == RESERVED or name.startswith(f"{RESERVED}/"):
            return await self._answer_reserved(method, name, scope, receive, send)
        name = requests.check_path(name)
        handler = self._handlers.get(method)
        if handler is None:
            raise Refused(405, f"{method} is not a method of streams", [(b"allow", METHODS)])
        scope["opslog.token"] = self._admission.admit(scope, name, _right(method))
        if name.startswith(FOLDER):
            await self._check_feed(method, name, scope)
        # A fork of the registry may be of an earlier version, or of a time when the server kept no registry.
        if self._names_local_stores and self.streams.has_data_of(name, REGISTRY):
            check_local(scope)
        return await handler(name, scope, receive, send)

    async def _answer_reserved(self, method: str, name: str, scope: Scope, receive: Receive, send: Send) -> int:
        """Answer requests for subscriptions."""
        route = route_of(scope, self._root)
        own_token = route is not None and route.carries_own_token
        token = self._admission.admit(scope, name, _right(method), wants_token=not own_token)
        if not own_token and self._names_local_stores:
            check_local(scope)
        return await self._control(route, token, scope, receive, send)

    async def _check_feed(self, method: str, name: str, scope: Scope) -> None:
        """
        :raises Refused: 405, only the server writes a feed. The feed of a store that is no longer served may be
            deleted. 403, as for its store.
        """
        feed = self._feeds.get(name)
        if self.options.local_stores and (feed is not None or is_feed(self.streams, name)):
            check_local(scope)
        if method not in _READING and (feed is not None or (method != "DELETE" and is_feed(self.streams, name))):
            raise Refused(405, "this stream is the feed of a store, and read-only", [(b"allow", b"GET, HEAD, OPTIONS")])
        if feed is not None:
            request_of(scope).asked = Asked("feed", name.removeprefix(FOLDER), "feed")
            await feed.current()

    @property
    def _names_local_stores(self) -> bool:
        """Whether lists of streams name stores that are for this machine alone."""
        return self.options.local_stores and bool(self.stores.names)

    def _wake_feed(self, store: ServedStore) -> None:
        with suppress(KeyError):
            self._feeds[FOLDER + store.name].wake()

    async def _answer_outside(self, method: str, path: str, scope: Scope, receive: Receive, send: Send) -> int:
        """Answer requests outside of the root: those of monitoring, and of the page."""
        if path not in {"/healthz", "/readyz", "/metrics", *self._page.paths}:
            raise Refused(404, f"streams are below {self._root}")
        if method not in _READING:
            raise Refused(405, f"{method} is not a method of {path}", [(b"allow", b"GET, HEAD")])
        # The figures, and the data of the page, contain names of stores and numbers of documents.
        says_nothing = path in {"/healthz", "/readyz", *self._page.public}
        if self._names_local_stores and not says_nothing:
            check_local(scope)
        if path in self._page.paths:
            token = None if path in self._page.public else self._admission.admit_to_list(scope)
            return await self._page.answer(path, scope, receive, send, token)
        if path == "/metrics":
            self._check_reads_all(scope)
            gauges = Gauges(
                self.streams.usage,
                lambda: self.streams.followers.count,
                lambda: self.streams.waiting,
                lambda: self.budget.held,
                [await asyncio.to_thread(store.figures) for store in self.stores],
            )
            body = exposition(Collector(self.metrics, gauges))
            return await reply(send, 200, [(b"content-type", CONTENT_TYPE.encode())], body)
        problem = self._problem() if path == "/readyz" else None
        status, text = (503, problem) if problem else (200, "ok")
        return await reply(send, status, [TEXT], f"{text}\n".encode(), head=method == "HEAD")

    def _problem(self) -> str | None:
        if self._stopping:
            return "the server is stopping"
        ended = (f"the feed {feed.path} has ended" for feed in self._feeds.values() if feed.has_ended)
        return self.streams.failure or next(ended, None)

    def _check_reads_all(self, scope: Scope) -> None:
        if (token := self._admission.token(scope)) is not None:
            check(token, "", "read")

    async def start(self) -> None:
        """Open for requests. The lifespan events of a server do this; otherwise the first request does."""
        if self._started is None:
            self._started = asyncio.get_running_loop().create_task(self._start())
        await asyncio.shield(self._started)

    async def _start(self) -> None:
        await self.streams.start()
        await self.subscriptions.start()
        if self._registry is not None:
            await self._registry.start()
        for store in self.stores:
            feed = Feed(
                store.name,
                self.streams,
                changes=store.changes,
                in_thread=store.call_for_feed,
                poll_seconds=self.options.feed_seconds,
                snapshot_bytes=self.options.feed_snapshot_bytes,
            )
            feed.start()
            self._feeds[feed.path] = feed

    def end_live_reads(self) -> None:
        """End all live reads, and those that begin later. Clients come back, to this server or the next one."""
        self._stopping = True
        self.streams.followers.stop()
        self._page.stop()

    async def stop(self) -> None:
        """End live reads, finish all other requests, and close the storage."""
        self.end_live_reads()
        if self._started is not None:
            for feed in self._feeds.values():
                await feed.stop()
            await self.subscriptions.stop()
            if self._registry is not None:
                await self._registry.stop()
            await self.streams.stop()
        await asyncio.to_thread(self.stores.close)
        self._storage.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})


def _right(method: str) -> Right:
    return "read" if method in _READING else "write"


def _failure(error: OpslogError) -> Refused:
    """What a client learns about a fault of the server. The details are in the log."""
    if isinstance(error, WriteFailedError):
        return Refused(507, "the storage does not take it; nothing was changed")
    if isinstance(error, CommitUnknownError):
        return Refused(500, "the storage failed; it is unknown whether this was done")
    if isinstance(error, ReopenError):
        return Refused(503, "the storage cannot be read until the server is started again")
    return Refused(500, "the storage cannot be read")


def app(
    data: str | Path | None = None,
    *,
    shards: int | None = None,
    tokens: Tokens | None = None,
    options: Options | None = None,
    observers: Sequence[Observer] = (),
    stores: Mapping[str, str] | None = None,
    agent: str = "main",
) -> App:
    """An ASGI application that serves streams over HTTP by the Durable Streams protocol, and stores.

    :param data: the directory where streams are kept; None keeps them in memory.
    :param shards: of a new directory, into how many databases streams are divided.
    :param tokens: say who may read and write what; None: everyone may do everything.
    :param observers: called with what commits did, see `opslog.server.protocol.transaction.Events`.
    :param stores: the stores to serve, by name: their URLs. They are opened when the application starts.
    :param agent: the author of writes to stores by clients that name none.
    :raises OpslogError: the directory cannot be served, see `opslog.server.storage.directory.DirectoryStorage`.
    """
    storage: Storage = MemoryStorage()
    if data is not None:
        from opslog.server.storage.directory import DirectoryStorage

        storage = DirectoryStorage(data, shards=shards)
    application = App(storage, options or Options(), tokens, stores=ServedStores(stores or {}, agent))
    application.streams.observers.extend(observers)
    return application
