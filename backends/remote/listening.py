"""Notifications of writes from the server: one open request for all subscribers in this process."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import httpx

from opslog.backends.remote.channel import CONNECT_TIMEOUT, READ_DEADLINE_SECONDS, Channel, NoAnswerError
from opslog.environment import Environment
from opslog.errors import OpslogError
from opslog.logs import logger

_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 2.0
# How long to wait at the end for the reading thread.
_JOIN_SECONDS = CONNECT_TIMEOUT


class Listener:
    """Keeps a request open as long as somebody is subscribed. Safe to use from many threads.

    Guarantee: if something is written after the last call of a subscriber's function, the function is called again once
    the write can be read. This also holds after a connection was lost, because each new one begins with such a call.

    :ivar is_live: whether the guarantee holds now. While it does not, subscribers have to poll.
    """

    def __init__(self, channel: Channel, environment: Environment) -> None:
        self._channel = channel
        self._environment = environment
        # By identity, so that each change is one step, and a signal handler finds the state before it or after it.
        self._subscribers: dict[int, Callable[[], None]] = {}
        self._lock = threading.RLock()  # a signal handler may find its own thread in here
        self._reading: _Reading | None = None
        self.is_live = False

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call this function from now on. It must not block."""
        with self._lock:
            self._subscribers[id(changed)] = changed
            if self._reading is None:
                reading = _Reading(self, self._channel, self._environment)
                if self._reading is None:  # a signal handler may have subscribed
                    # Before the start, so that a handler that closes this ends the thread.
                    self._reading = reading
                    try:
                        reading.thread.start()
                    except BaseException as error:
                        if reading.thread.ident is None and self._reading is reading:
                            self._reading = None
                        if not isinstance(error, RuntimeError):  # no more threads can start; then subscribers poll
                            self._subscribers.pop(id(changed), None)
                            raise

    def unsubscribe(self, changed: Callable[[], None]) -> None:
        """Stop calling this function. The request ends with the last subscriber. Idempotent; does not wait."""
        with self._lock:
            self._subscribers.pop(id(changed), None)
            self._end_if_unused()

    def tell(self, reading: _Reading, *, is_live: bool) -> None:
        """Record a write, or a change of `is_live`; called from the reading thread."""
        with self._lock:
            if reading is not self._reading:
                return
            self.is_live = is_live
            subscribers = list(self._subscribers.values())
        for changed in subscribers:
            changed()

    def close(self) -> None:
        """End the request. Waits for the thread, but not for a server that sends nothing at all."""
        with self._lock:
            # Notify subscribers first. Otherwise a subscriber that is about to wait would find `is_live` false and no
            # change. It would then wait its whole interval, before it polls a closed store.
            for changed in list(self._subscribers.values()):
                changed()
            self._subscribers.clear()
            reading = self._end_if_unused()
        # It is not alive if a signal handler calls this while its own thread starts it. It then ends by itself.
        if reading is not None and reading.thread is not threading.current_thread() and reading.thread.is_alive():
            reading.thread.join(_JOIN_SECONDS)

    def _end_if_unused(self) -> _Reading | None:
        """End the reading if nobody is subscribed, and return it."""
        reading = None
        if not self._subscribers:
            # No call before this: a signal handler could subscribe in it.
            reading, self._reading, self.is_live = self._reading, None, False
            if reading is not None:
                reading.end()
        return reading


class _Reading:
    """A thread that reads the server's events, and sends the request again when the response has ended."""

    def __init__(self, listener: Listener, channel: Channel, environment: Environment) -> None:
        self._listener = listener
        self._channel = channel
        self._environment = environment
        self._ended = threading.Event()
        self._response: httpx.Response | None = None
        self._heard_at = -math.inf
        self.thread = threading.Thread(target=self._run, name="opslog-listener", daemon=True)

    def end(self) -> None:
        """Stop reading. May be called from any thread."""
        self._ended.set()
        response = self._response
        stream = None if response is None else response.extensions.get("network_stream")
        connection = None if stream is None else stream.get_extra_info("socket")
        if connection is not None:
            with suppress(OSError):  # the connection has ended by itself
                # The thread waits for this socket. `shutdown` of a TLS socket would discard its TLS state under the
                # thread.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _run(self) -> None:
        pause, now = _PAUSE_SECONDS, self._environment.monotonic
        while not self._ended.is_set():
            began = now()
            try:
                self._read()
            except NoAnswerError as error:
                self._note_silence(str(error), READ_DEADLINE_SECONDS)  # within that time a server may have restarted
            except OpslogError as error:
                self._note_silence(str(error), 0.0)
            # A server that is stopping ends each response at once, and a proxy may do the same.
            if now() - began >= _PAUSE_SECONDS_MAX:
                pause = _PAUSE_SECONDS
            self._ended.wait(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _note_silence(self, reason: str, seconds: float) -> None:
        """Record that there is no response. After `seconds` of this, subscribers have to poll."""
        if self._listener.is_live and self._environment.monotonic() - self._heard_at >= seconds:
            logger("storage").debug("nobody says any more what is written, so that is asked for: %s", reason)
            self._listener.tell(self, is_live=False)

    def _read(self) -> None:
        """Read one response to its end; the server ends each after a while."""
        with self._channel.listen() as response:
            self._response = response
            try:
                for line in response.iter_lines():
                    if self._ended.is_set():
                        return
                    self._heard_at = self._environment.monotonic()
                    if line.startswith("event:"):
                        self._listener.tell(self, is_live=True)
            finally:
                self._response = None
