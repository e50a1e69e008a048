"""Requests to a server that serves a store, and retries of those that get no response."""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import httpx
import msgspec

from opslog.backends.remote.protocol import (
    CONTENT_TYPE,
    VERSION,
    Answer,
    AnyCall,
    Change,
    Failure,
    Lane,
    OpenLane,
    Reading,
    Request,
    UnknownLane,
    decode_answer,
    encode,
)
from opslog.environment import Environment
from opslog.errors import (
    ClosedError,
    CommitUnknownError,
    MissingStoreError,
    OpslogError,
    RetryError,
    UsageError,
    WriteFailedError,
)

# Seconds that a connection may take, and then each part of a response. A server waits up to ten seconds for the end of
# the shared log.
CONNECT_TIMEOUT, READ_TIMEOUT = 3.0, 30.0

# How long to retry a call that changes something, and a call that reads: long enough for a restart of the server.
DEADLINE_SECONDS = 60.0
READ_DEADLINE_SECONDS = 10.0

_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 2.0

# Statuses of a server or proxy that cannot respond now. With all but the first, the request may have been carried out.
_TOO_MANY = 429
_NO_ANSWER = frozenset({408, _TOO_MANY, 500, 502, 503, 504})


class _Lane:
    """A sequence of calls, of which one at a time is under way. `number` is the number of the last one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0


class NoAnswerError(RetryError):
    """(internal) The outcome of a request is unknown.

    :ivar was_sent: whether the server may have got the request.
    :ivar is_nobody: no server listens at the address, or the name has no address.
    """

    def __init__(self, message: str, was_sent: bool = True, is_nobody: bool = False) -> None:
        super().__init__(message)
        self.was_sent = was_sent
        self.is_nobody = is_nobody


class Channel:
    """The connection to one store on a server. Safe to use from many threads.

    :param address: the address to which its calls are posted.
    :param url: the name of the store in messages.
    """

    def __init__(
        self,
        address: str,
        url: str,
        token: str | None,
        environment: Environment,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"content-type": CONTENT_TYPE, "accept": CONTENT_TYPE}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            transport=transport,
            # Without TLS the system's certificates are not needed, and loading them takes long.
            verify=True if address.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )
        self._address = address
        self._url = url
        self._environment = environment
        # The sessions by agent; every request names them.
        self.sessions: dict[str, str] = {}
        self._lanes: deque[_Lane] = deque()
        self._counting = threading.Lock()
        self.requests = 0

    def read(self, call: Reading, *, waits: bool = True) -> Answer:
        """The answer to a call that changes nothing.

        :param waits: whether to wait if no server listens, since one may be restarting.
        :raises RetryError: there is no answer.
        :raises OpslogError: as the server's backend raised it.
        """
        now, pause = self._environment.monotonic, _PAUSE_SECONDS
        deadline = now() + READ_DEADLINE_SECONDS
        while True:
            try:
                return self._send(call)
            except NoAnswerError as error:
                if now() >= deadline or (error.is_nobody and not waits):
                    raise RetryError(str(error)) from error
            self._environment.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def change(self, make: Callable[[bool], Change], deadline_seconds: float = DEADLINE_SECONDS) -> Answer:
        """The response to a call that changes something. The call is carried out once.

        :param make: makes the call. Its argument says whether an earlier attempt may have been carried out by a server
            that no longer knows of it.
        :param deadline_seconds: how long to retry while there is no response.
        :raises WriteFailedError: no server was reached, and nothing was changed.
        :raises CommitUnknownError: it is unknown whether the call was carried out.
        :raises OpslogError: as the server's backend raised it.
        """
        now, pause = self._environment.monotonic, _PAUSE_SECONDS
        deadline = now() + deadline_seconds
        was_sent = again = False
        lane: _Lane | None = None
        while True:
            try:
                lane = lane or self._lane()
                answer = self._send(make(again), lane)
            except NoAnswerError as error:
                was_sent = was_sent or (lane is not None and error.was_sent)
                if now() >= deadline:
                    self._give_up(error, was_sent=was_sent)
                self._environment.sleep(pause)
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)
            except (UsageError, MissingStoreError, WriteFailedError, ClosedError) as error:
                # This attempt was refused. That says nothing about an earlier attempt.
                if was_sent:
                    self._give_up(error, was_sent=True)
                raise
            else:
                if not isinstance(answer, UnknownLane):
                    lane.number += 1
                    self._lanes.append(lane)
                    if isinstance(answer, Failure):
                        raise answer.error()
                    return answer
                lane, again = None, was_sent

    def _lane(self) -> _Lane:
        try:
            return self._lanes.pop()
        except IndexError:
            answer = self._send(OpenLane())
        assert isinstance(answer, Lane)
        return _Lane(answer.name)

    def _give_up(self, error: OpslogError, *, was_sent: bool) -> NoReturn:
        if not was_sent:
            raise WriteFailedError(f"nothing was written to {self._url}: {error}") from error
        raise CommitUnknownError(
            f"what was written to {self._url} last may or may not be there: {error}. Close the store, open it again, "
            "and check"
        ) from error

    def _send(self, call: AnyCall, lane: _Lane | None = None) -> Answer:
        """The response to a request. If the response is an error, it is raised for a call that reads, and returned for
        a call that changes something."""
        with self._counting:
            self.requests += 1
        where = ("", 0) if lane is None else (lane.name, lane.number + 1)
        try:
            response = self._client.post(
                self._address, content=encode(Request(VERSION, call, *where, dict(self.sessions)))
            )
        except httpx.RequestError as error:
            # Without a connection nothing was sent.
            was_sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
            if _is_nobody(error):
                name = self._url.rpartition("/")[2]
                raise NoAnswerError(
                    f"no server listens at {self._url} ({_words(error)}): start `opslog serve --store {name}=…` there, "
                    "or correct the address",
                    was_sent=False,
                    is_nobody=True,
                ) from error
            raise NoAnswerError(f"{self._url} does not answer ({_words(error)}): try again", was_sent) from error
        except RuntimeError as error:
            raise self._closed(error) from error
        if response.status_code in _NO_ANSWER:
            raise self._no_answer(response)
        if response.status_code != 200:
            self._refuse(response)
        try:
            answer = decode_answer(response.content)
        except msgspec.DecodeError as error:
            raise NoAnswerError(f"{self._url} gave an answer that cannot be read: {error}") from error
        if isinstance(answer, Failure) and lane is None:
            raise answer.error()
        return answer

    @contextmanager
    def listen(self) -> Iterator[httpx.Response]:
        """A request that the server answers line by line (`opslog.server.http.rest.announcing`).

        :raises NoAnswerError: there is no answer.
        :raises OpslogError: the request is refused.
        """
        with self._counting:
            self.requests += 1
        try:
            with self._client.stream("GET", self._address, headers={"accept": "text/event-stream"}) as response:
                if response.status_code != 200:
                    response.read()
                    if response.status_code in _NO_ANSWER:
                        raise self._no_answer(response)
                    self._refuse(response)
                yield response
        except httpx.RequestError as error:
            raise NoAnswerError(f"{self._url} does not answer ({_words(error)}): try again") from error
        except RuntimeError as error:
            raise self._closed(error) from error

    def _closed(self, error: RuntimeError) -> ClosedError:
        """The error for a call that httpx refused because another thread has closed the client meanwhile.

        :raises RuntimeError: the cause is something else.
        """
        if not self._client.is_closed:
            raise error
        return ClosedError(f"{self._url} is closed: open it again")

    def _no_answer(self, response: httpx.Response) -> NoAnswerError:
        message = f"{self._url} answered {response.status_code} ({_reason(response)}): try again"
        return NoAnswerError(message, was_sent=response.status_code != _TOO_MANY)

    def _refuse(self, response: httpx.Response) -> NoReturn:
        status, reason = response.status_code, _reason(response)
        if status == 404:
            raise MissingStoreError(f"there is no store at {self._url} ({reason})", self._url)
        if status == 401:
            raise UsageError(f"{self._url} wants a token: open the store with token=… ({reason})")
        if status == 413:
            raise WriteFailedError(f"{self._url} takes no request of this size ({reason}); nothing was written")
        raise UsageError(f"{self._url} refused: {status} ({reason})")

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _is_nobody(error: httpx.RequestError) -> bool:
    """Whether a connection was refused, or a name has no address. Any other error may be temporary, such as that of a
    name server that does not answer.

    Only the first error of the system counts. Behind it may be an error that the caller is handling, such as a refused
    connection to somewhere else. And without a ConnectError this request may have been sent.
    """
    cause: BaseException | None = error if isinstance(error, httpx.ConnectError) else None
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    is_known = isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN
    return is_known or isinstance(cause, ConnectionRefusedError)


def _words(error: httpx.RequestError) -> str:
    return str(error) or type(error).__name__


def _reason(response: httpx.Response) -> str:
    """The reason that a refusal gives."""
    text = response.text.strip()
    if "json" in response.headers.get("content-type", ""):
        try:
            found = response.json()
            text = str(found.get("detail") or found.get("title") or text) if isinstance(found, dict) else text
        except ValueError:
            """The body is not JSON: its text is the reason."""
    return text[:500] or response.reason_phrase
