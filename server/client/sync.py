"""The client for threads. The core makes all decisions; this module sends requests, waits, and runs threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from inspect import isawaitable, iscoroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar

import httpx

from opslog.concurrency.locking import reentered
from opslog.errors import UsageError
from opslog.server.client.calls import Calls
from opslog.server.client.computed import Computed, Values
from opslog.server.client.endpoint import Endpoint
from opslog.server.client.following import Following, Live
from opslog.server.client.messages import START, Batch, Reply, Request
from opslog.server.client.producing import Options, Producing, Until
from opslog.server.client.retrying import Pause, Retrying, described
from opslog.server.client.subscribing import Held, Holding, Subscribing
from opslog.server.client.transport import FAILURES, lost, patience, settings

Step = TypeVar("Step")
Core = TypeVar("Core")
T = TypeVar("T")
P = ParamSpec("P")


def drive(steps: Generator[Step, Any, T], perform: Callable[[Step], Any]) -> T:
    """Perform each step, and send or throw the result into it."""
    try:
        step = next(steps)
        while True:
            try:
                result = perform(step)
            except BaseException as error:  # noqa: BLE001  (the steps let through what they do not know)
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a generator's return value has no type there


class Connection:
    """Performs the steps of the calls on one server."""

    def __init__(self, endpoint: Endpoint, http: httpx.Client | None) -> None:
        self._endpoint = endpoint
        self._own = http is None
        self._http = http or httpx.Client(**settings())

    def perform(self, step: Request | Pause | Computed) -> Any:
        if isinstance(step, Request):
            return self.send(step)
        if isinstance(step, Pause):
            return self._endpoint.policy.environment.sleep(step.seconds)
        if isawaitable(step.returned):
            if iscoroutine(step.returned):
                step.returned.close()
            raise UsageError("headers= and params= of this client are plain functions: AsyncClient awaits others")
        return step.returned

    def send(self, request: Request) -> Reply:
        url, headers = self._prepared(request)
        try:
            answer = self._http.request(request.method, url, headers=headers, content=request.content)
        except FAILURES as error:
            raise lost(error) from error
        return Reply(answer.status_code, answer.headers, answer.content)

    def read(self, following: Following) -> Iterator[Batch]:
        while (request := following.request()) is not None:
            url, headers = self._prepared(request)
            timeout = patience(self._http, live=following.is_live)
            try:
                with self._http.stream(request.method, url, headers=headers, timeout=timeout) as answer:
                    following.opened(answer.status_code, answer.headers)
                    for chunk in answer.iter_bytes():
                        yield from following.received(chunk)
                        if following.ended:
                            return
                yield from following.finished()
            except FAILURES as error:
                following.lost(lost(error))
            if following.pause:
                self.perform(Pause(following.pause))

    def close(self) -> None:
        if self._own:
            self._http.close()

    def _prepared(self, request: Request) -> tuple[str, dict[str, str]]:
        if self._http.is_closed:
            raise UsageError("this client is closed: make another one")
        return drive(self._endpoint.extras.prepared(request), self.perform)


class Handle(Generic[Core]):
    """The base of the public classes: performs the calls of the core."""

    def __init__(self, connection: Connection, core: Core) -> None:
        self._connection = connection
        self._core = core

    def _run(self, steps: Generator[Any, Any, T]) -> T:
        return drive(steps, self._connection.perform)


def blocking(
    method: Callable[Concatenate[Core, P], Generator[Any, Any, T]],
) -> Callable[Concatenate[Handle[Core], P], T]:
    """The same call on a handle, which returns when it is done."""

    def call(self: Handle[Core], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._core, *args, **kwargs))

    return described(call, method)


class Client(Handle[Endpoint]):
    """Streams below one address. Thread-safe; keeps connections open until it is closed.

        with Client("http://127.0.0.1:4437/v1/stream") as client:
            stream = client.stream("events/build")
            stream.create("application/json")
            stream.append({"step": 1})
            for batch in stream.follow():
                print(batch.messages, batch.next_offset)

    :param url: the address below which all streams are.
    :param token: sent as a bearer token.
    :param retrying: the retry policy.
    :param headers: names and values that are sent with every request. A value may be a function, which is called for
        each request, each retry and each reconnection. Or one function may return all of them. An error of such a
        function ends the call.
    :param params: the same for parameters of the address; errors do not show them.
    :param http: an `httpx.Client` of your own, for certificates, proxies and timeouts; the client does not close it.
        Live reads wait 90 seconds for a byte, or longer if its timeout is longer.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Values | None = None,
        params: Values | None = None,
        retrying: Retrying | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        endpoint = Endpoint(url, token, headers, params, retrying)
        super().__init__(Connection(endpoint, http), endpoint)

    def stream(self, path: str) -> Stream:
        """A handle on a stream, whether it exists or not; sends no request.

        :raises UsageError: the path is invalid.
        """
        return Stream(self._connection, self._core.stream(path))

    def subscription(self, id: str) -> Subscription:
        """A handle on a subscription, whether it exists or not; sends no request. The client's address must be that of
        the server's stream root.

        :raises UsageError: the id is invalid.
        """
        return Subscription(self._connection, self._core.subscription(id))

    def verify_webhook(self, body: bytes, signature: str) -> Claim:
        """The wake in a webhook, if the webhook is from this server; needs ``opslog[webhooks]``. The server's public
        keys are requested when they are needed, and kept for five minutes.

        :param body: the body of the request, exactly as received.
        :param signature: its header ``Webhook-Signature``.
        :raises WebhookError: it is not from the server, or is older than five minutes: answer with 401.
        """
        return Claim(self._connection, self._run(self._core.verified(body, signature)))

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Stream(Handle[Calls]):
    """One stream of a `Client`. For the errors of each call see `opslog.server.client.errors`."""

    @property
    def url(self) -> str:
        return self._core.url

    create = blocking(Calls.create)
    append = blocking(Calls.append)
    close = blocking(Calls.close)
    delete = blocking(Calls.delete)
    head = blocking(Calls.head)

    def fork(
        self,
        path: str,
        *,
        at: str | None = None,
        sub_offset: int = 0,
        ttl: int | None = None,
        expires_at: str | None = None,
    ) -> Stream:
        """Create a stream at `path` that begins with the contents of this one before the offset `at`; None: all of
        them.

        :param sub_offset: how many messages (of a JSON stream) or bytes after `at` to include as well.
        """
        return Stream(self._connection, self._run(self._core.fork(path, at, sub_offset, ttl, expires_at)))

    def read(self, offset: str = START) -> Iterator[Batch]:
        """Everything after `offset`, one batch per request. The last batch is up to date, and may be empty."""
        return self._connection.read(self._core.read(offset))

    def follow(self, offset: str = START, live: Live | Literal["auto"] = "auto") -> Iterator[Batch]:
        """Like `read`, and then new data, until the stream is closed. The last batch then has `closed`.

        Broken connections are made again, and nothing is returned twice. To resume later, start at the `next_offset` of
        the last batch that you are done with.

        :param live: how to wait for more. Server-sent events do not keep the line ends of text, so "auto" means long
            polls for text.
        :raises StreamNotFoundError: the stream is gone.
        """
        return self._connection.read(self._core.follow(offset, live))

    def producer(
        self,
        id: str,
        *,
        epoch: int = 0,
        claim: bool = False,
        max_in_flight: int = Options.max_in_flight,
        max_batch_bytes: int = Options.max_batch_bytes,
        max_buffered_bytes: int = Options.max_buffered_bytes,
    ) -> Producer:
        """A producer, for use in a ``with`` block. It appends in the background, in batches, exactly once.

        :param id: the producer's id, the same each time it is started.
        :param epoch: greater each time it is started.
        :param claim: find an epoch that is newer than all before, by requests to the server. This shuts out other users
            of the id.
        :param max_in_flight: how many batches are under way at once, each with a thread of its own.
        :param max_batch_bytes: the most bytes of messages in a batch; a larger message has a batch of its own. Servers
            have limits, too.
        :param max_buffered_bytes: `append` waits while this much is not yet acknowledged.
        :raises UsageError: one of these is invalid.
        """
        options = Options(id, epoch, claim, max_in_flight, max_batch_bytes, max_buffered_bytes)
        core = Producing(self._core, options)
        self._run(core.begin())
        return Producer(self._connection, core)


class Producer(Handle[Producing]):
    """See `Stream.producer`. Thread-safe. An error ends the producer: the next call raises it, and so does the end of
    the block. A signal handler that interrupts a call must not call the same producer: that raises `UsageError`."""

    def __init__(self, connection: Connection, core: Producing) -> None:
        super().__init__(connection, core)
        self._changed = threading.Condition(threading.Lock())
        self._inside: set[int] = set()  # the threads that are in a call, and perhaps hold the lock
        self._threads = [
            threading.Thread(target=self._run, args=(core.work(),), daemon=True)
            for _ in range(core.options.max_in_flight)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def epoch(self) -> int:
        return self._core.epoch

    append = blocking(Producing.append)
    flush = blocking(Producing.flush)
    end = blocking(Producing.end)

    def close(self) -> None:
        """Flush, and stop the threads."""
        try:
            if not self._core.closed:
                self.flush()
        finally:
            self._stop()

    def _stop(self) -> None:
        self._enter(self._join)

    def _join(self) -> None:
        with self._changed:
            self._core.closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._stop()

    def _run(self, steps: Generator[Any, Any, T]) -> T:
        return self._enter(lambda: self._drive(steps))

    def _enter(self, call: Callable[[], T]) -> T:
        """
        :raises UsageError: the thread is in a call already. It may hold the lock, and would wait for itself.
        """
        me = threading.get_ident()
        if me in self._inside:
            raise reentered("the same producer")
        try:
            self._inside.add(me)
            return call()
        finally:
            self._inside.discard(me)

    def _drive(self, steps: Generator[Any, Any, T]) -> T:
        """Run the steps. Holds the lock, except while a step waits."""
        with self._changed:
            try:
                return drive(steps, self._perform)
            finally:
                self._changed.notify_all()

    def _perform(self, step: Request | Until) -> Any:
        self._changed.notify_all()
        if isinstance(step, Until):
            return self._changed.wait_for(step.condition, step.seconds)
        me = threading.get_ident()
        self._changed.release()
        self._inside.discard(me)  # a hook of the transport may append
        try:
            return self._connection.send(step)
        finally:
            self._inside.add(me)
            self._changed.acquire()


class Subscription(Handle[Subscribing]):
    """A handle on a subscription, whether it exists or not. For the errors of each call see
    `opslog.server.client.errors`."""

    @property
    def id(self) -> str:
        return self._core.id

    create = blocking(Subscribing.create)
    get = blocking(Subscribing.get)
    delete = blocking(Subscribing.delete)
    add = blocking(Subscribing.add)
    remove = blocking(Subscribing.remove)

    def claim(self, worker: str) -> Claim:
        """Take the pending work of a subscription with a wake_stream.

        :param worker: a name that shows others who has the work.
        :raises AlreadyClaimedError: another worker has it; wait for the next wake.
        :raises NoPendingWorkError: wait for the next wake.
        """
        return Claim(self._connection, self._run(self._core.claim(worker)))


class Claim(Held, Handle[Holding]):
    """The wake that a worker holds, by a claim or by a webhook. The end of the ``with`` block releases a claim that is
    not done, so that another worker gets it."""

    acknowledge = blocking(Holding.acknowledge)
    finish = blocking(Holding.finish)
    release = blocking(Holding.release)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._core.leave(error))
