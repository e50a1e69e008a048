"""The client for threads. Everything that it decides is decided by the core; this sends, waits, and counts threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from inspect import isawaitable, iscoroutine
from types import TracebackType
from typing import Literal, Self, TypeVar

import httpx

from opslog.errors import UsageError
from opslog.server.client import arguments
from opslog.server.client.calls import Calls
from opslog.server.client.computed import Asking, Extras, Values
from opslog.server.client.following import Following, Live
from opslog.server.client.messages import START, Appended, Batch, Content, Metadata, Reply, Request, stream_url
from opslog.server.client.producing import Options, Producing, Sending
from opslog.server.client.retrying import Lost, Pause, Retrying, Steps
from opslog.server.client.subscribing import Subscribing
from opslog.server.client.subscriptions import Claim, Subscription
from opslog.server.client.transport import FAILURES, head_of, lost, patience, settings
from opslog.server.client.webhooks import Webhooks

T = TypeVar("T")


class Client:
    """Streams below one address. Thread-safe; keeps connections open until it is closed.

        with Client("http://127.0.0.1:4437/v1/stream") as client:
            stream = client.stream("events/build")
            stream.create("application/json")
            stream.append({"step": 1})
            for batch in stream.follow():
                print(batch.messages, batch.next_offset)

    :param url: what all paths are below.
    :param token: sent as a bearer token.
    :param retrying: how patient it is.
    :param headers: sent with every request: names and values, where a value may be a function that is called for each
        request, also for each retry and reconnection; or one function that gives all of them. What such a function
        raises ends the call.
    :param params: likewise, in the address; errors do not show them.
    :param http: an `httpx.Client` of one's own, for certificates, proxies and timeouts; it is not closed. Live reads
        wait 90 seconds for a byte, or longer if it says so.
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
        self._url = arguments.address(url)
        self._policy = retrying or Retrying()
        self._extras = Extras(token, headers, params)
        self._webhooks = Webhooks(self._url, self._policy)
        self._own = http is None
        self._http = http or httpx.Client(**settings())

    def stream(self, path: str) -> Stream:
        """A handle on a stream, whether it exists or not; asks nothing.

        :raises UsageError: that is no path.
        """
        return Stream(self, Calls(stream_url(self._url, path), self._policy))

    def subscription(self, id: str) -> Subscription:
        """A handle on a subscription, whether it exists or not; asks nothing. The client's address must be that of the
        server's stream root.

        :raises UsageError: that is no id.
        """
        return Subscription(self._run, Subscribing(self._url, id, self._policy))

    def verify_webhook(self, body: bytes, signature: str) -> Claim:
        """The wake that a webhook brings, if it is from this server; needs ``opslog[webhooks]``. The keys that the
        server publishes are asked for when they are needed, and kept for five minutes.

        :param body: of the request, byte by byte.
        :param signature: its header ``Webhook-Signature``.
        :raises WebhookError: it is not, or older than five minutes: answer with 401.
        """
        wake = self._run(self._webhooks.verified(body, signature))
        return Claim(self._run, Subscribing(self._url, wake.subscription_id, self._policy), wake)

    def close(self) -> None:
        if self._own:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    self._policy.environment.sleep(step.seconds)
                    step = next(steps)
                    continue
                try:
                    reply = self._send(step)
                except Lost as failure:
                    step = steps.throw(failure)
                else:
                    step = steps.send(reply)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # a generator's return value has no type there

    def _check_open(self) -> None:
        if self._http.is_closed:
            raise UsageError("this client is closed: make another one")

    def _send(self, request: Request) -> Reply:
        self._check_open()
        url, headers = _asked(self._extras.prepared(request))
        try:
            answer = self._http.request(request.method, url, headers=headers, content=request.content)
        except FAILURES as error:
            raise lost(error) from error
        return Reply(answer.status_code, answer.headers, answer.content)

    def _read(self, following: Following) -> Iterator[Batch]:
        while (request := following.request()) is not None:
            self._check_open()
            url, headers = _asked(self._extras.prepared(request))
            timeout = patience(self._http, live=following.is_live)
            try:
                with self._http.stream(request.method, url, headers=headers, timeout=timeout) as answer:
                    following.opened(*head_of(answer))
                    for piece in answer.iter_bytes():
                        yield from following.received(piece)
                        if following.ended:
                            return
                yield from following.finished()
            except FAILURES as error:
                following.lost(lost(error))
            if following.pause:
                self._policy.environment.sleep(following.pause)


def _asked(asking: Asking[T]) -> T:
    """What comes of the functions of the caller."""
    try:
        found = next(asking)
        while True:
            if isawaitable(found):
                if iscoroutine(found):
                    found.close()
                raise UsageError("headers= and params= of this client are plain functions: AsyncClient awaits others")
            found = asking.send(found)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a generator's return value has no type there


class Stream:
    """One stream of a `Client`. What each call raises: see `opslog.server.client.errors`."""

    def __init__(self, client: Client, calls: Calls) -> None:
        self._client = client
        self._calls = calls

    @property
    def url(self) -> str:
        return self._calls.url

    def create(
        self,
        content_type: str = "application/octet-stream",
        content: Content | None = None,
        *,
        ttl: int | None = None,
        expires_at: str | None = None,
        closed: bool = False,
    ) -> Metadata:
        """Make the stream, or find that it is there with the same configuration.

        :param content: its first bytes, or of a JSON stream its first message.
        :param ttl: seconds without use until it is deleted.
        :param expires_at: RFC 3339, when it is deleted.
        :param closed: nothing will follow.
        :raises StreamConflictError: it exists with another configuration, or is deleted while forks need it.
        """
        return self._client._run(self._calls.create(content_type, content, ttl, expires_at, closed=closed))

    def append(
        self, *contents: Content, seq: str | None = None, close: bool = False, at_least_once: bool = False
    ) -> Appended:
        """Append bytes, or messages of a JSON stream, all in one request. Durable on return.

        :param seq: must be greater than that of the append before, byte by byte.
        :param close: nothing will follow.
        :param at_least_once: if the answer is lost, or the server fails, send it again, though it may be there twice
            then (with `seq` a repetition is a StreamConflictError). A `producer` appends exactly once.
        :raises OutcomeUnknownError: the answer was lost: this may be there, or not.
        """
        return self._client._run(self._calls.append(list(contents), seq, close=close, at_least_once=at_least_once))

    def close(self) -> Appended:
        """Nothing can be appended any more. Closing twice is the same as once."""
        return self._client._run(self._calls.close())

    def delete(self) -> None:
        self._client._run(self._calls.delete())

    def head(self) -> Metadata:
        return self._client._run(self._calls.head())

    def fork(
        self,
        path: str,
        *,
        at: str | None = None,
        sub_offset: int = 0,
        ttl: int | None = None,
        expires_at: str | None = None,
    ) -> Stream:
        """A new stream at `path` that begins with what this one has before the offset `at`: everything, if None.

        :param sub_offset: so many more messages (of a JSON stream) or bytes behind `at`.
        """
        made = self._client.stream(path)
        self._client._run(made._calls.fork(self.url, at, sub_offset, ttl, expires_at))
        return made

    def read(self, offset: str = START) -> Iterator[Batch]:
        """Everything there is behind `offset`, one batch per request; the last one is up to date, and may be empty."""
        return self._client._read(Following(self.url, offset, None, self._calls.policy))

    def follow(self, offset: str = START, live: Live | Literal["auto"] = "auto") -> Iterator[Batch]:
        """Like `read`, and then what comes, until the stream is closed: the last batch then says `closed`.

        Broken connections are made again and nothing is given twice. To resume later, start at the `next_offset` of
        the last batch that you are done with.

        :param live: how to wait for more. Server-sent events do not keep the line ends of text, so "auto" takes long
            polls for text.
        :raises StreamNotFoundError: the stream is gone.
        """
        arguments.choice("live", live, ("auto", "sse", "long-poll"))
        return self._client._read(Following(self.url, offset, live, self._calls.policy))

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
        """Appends in the background, in batches, exactly once: for use in a ``with`` block.

        :param id: of the producer, the same one each time it is started.
        :param epoch: greater each time it is started.
        :param claim: find a newer epoch than all before by asking, which shuts out whoever uses this id now.
        :param max_in_flight: so many batches are under way at once, each with a thread of its own.
        :param max_batch_bytes: of the messages in one batch; a larger message has one of its own. Servers have limits.
        :param max_buffered_bytes: `append` waits while so much is not yet acknowledged.
        :raises UsageError: one of these cannot be.
        """
        options = Options(id, epoch, claim, max_in_flight, max_batch_bytes, max_buffered_bytes)
        content_type = self._client._run(self._calls.typed())
        return Producer(self._client, Producing(self.url, content_type, options, self._calls.policy), options)


class Producer:
    """See `Stream.producer`. Thread-safe. An error ends it: it is raised by the next call, and by leaving the
    block."""

    def __init__(self, client: Client, core: Producing, options: Options) -> None:
        self._client = client
        self._core = core
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(options.max_in_flight)]
        for thread in self._threads:
            thread.start()

    @property
    def epoch(self) -> int:
        return self._core.epoch

    def append(self, *contents: Content) -> None:
        """Returns at once, unless so much is unacknowledged that waiting is better; `flush` says when it is
        durable."""
        self._add(contents)

    def _add(self, contents: Iterable[Content]) -> None:
        with self._changed:
            self._check_open()
            for body in self._core.encoded(contents):
                self._changed.wait_for(lambda: not self._core.full or self._core.failed is not None)
                self._core.add(body)
                self._changed.notify_all()

    def flush(self) -> str | None:
        """Wait until all that was appended before is acknowledged, whatever others append meanwhile. Returns the end of
        the stream, None if nothing was appended."""
        with self._changed:
            if not self._core.idle:
                self._check_open()
            added = self._core.added
            self._changed.wait_for(lambda: self._core.reached(added) or self._core.failed is not None)
            if self._core.failed is not None:
                raise self._core.failed
            return self._core.next_offset

    def end(self) -> str | None:
        """Close the stream behind all that was appended, and wait for it."""
        with self._changed:
            self._check_open()
            self._core.end()
            self._changed.notify_all()
        return self.flush()

    def _check_open(self) -> None:
        if self._closed and self._core.failed is None:
            raise UsageError("this producer is closed: make another one, with a greater epoch or claim=True")

    def close(self) -> None:
        """Flush, and stop the threads."""
        try:
            if not self._closed:
                self.flush()
        finally:
            self._stop()

    def _stop(self) -> None:
        with self._changed:
            self._closed = True
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

    def _work(self) -> None:
        while True:
            with self._changed:
                sending: Sending | None = None
                while (sending := self._core.take()) is None:
                    if self._closed or self._core.failed is not None:
                        return
                    self._changed.wait()
            try:
                self._deliver(sending)
            except BaseException as error:  # noqa: BLE001  (raised where somebody appends or flushes)
                with self._changed:
                    self._core.fail(error)
                return
            finally:
                with self._changed:
                    self._changed.notify_all()

    def _deliver(self, sending: Sending) -> None:
        while not sending.settled:
            with self._changed:
                if sending.waits:
                    self._changed.wait_for(lambda: self._core.ready(sending) or self._closed)
                if sending.pause:  # the answers to other batches do not shorten it
                    self._changed.wait_for(lambda: self._core.failed is not None or self._closed, sending.pause)
                if self._core.failed is not None or (self._closed and sending.attempts > 0):
                    return
                request = self._core.request(sending)
            try:
                reply = self._client._send(request)
            except Lost as failure:
                with self._changed:
                    self._core.lost(sending, str(failure), sent=failure.sent)
            else:
                with self._changed:
                    self._core.replied(sending, reply)
                    self._changed.notify_all()
