"""Readers that wait at the end of a stream, and the answers they share."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import NamedTuple, Self

from opslog.server.protocol.model import Stream

_ANSWERS = 256
# Up to _ANSWERS answers of up to this size are kept for further followers that need the same.
_ANSWER_BYTES = 256 * 1024


class Answer(NamedTuple):
    """:ivar data: the bytes to send.
    :ivar stop: the position in the stream after them.
    """

    data: bytes
    stop: int


class LiveReader:
    """A client that reads a stream live, over one connection; see `Followers.reading`.

    :ivar kind: sse or long-poll.
    :ivar position: the end of the data that was sent to it.
    """

    def __init__(self, readers: dict[str, set[LiveReader]], path: str, kind: str, position: int) -> None:
        self.kind = kind
        self.position = position
        self._readers = readers
        self._path = path

    def __enter__(self) -> Self:
        self._readers.setdefault(self._path, set()).add(self)
        return self

    def __exit__(self, *error: object) -> None:
        readers = self._readers[self._path]
        readers.discard(self)
        if not readers:
            del self._readers[self._path]


class Follower:
    """A reader that waits for changes of one stream, again and again; see `Followers.following`.

    All its waits share one timer and one callback. A timer and a callback for each wait would cost more than the read
    that follows.

    :ivar gone: done when the client has gone.
    """

    def __init__(self, followers: Followers, path: str, gone: asyncio.Future[object]) -> None:
        self._followers = followers
        self._path = path
        self.gone = gone
        self._loop = gone.get_loop()
        self._woken: asyncio.Future[bool] | None = None
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self.gone.add_done_callback(self._wake)
        self._followers.join(self._path)
        return self

    def __exit__(self, *error: object) -> None:
        self._end_timer()
        self.gone.remove_done_callback(self._wake)
        self._followers.leave(self._path)

    async def wait(self, seconds: float) -> bool:
        """Wait until the stream changes or the client has gone; returns False if neither happens within `seconds`.

        Registers the waiter at once, so that no change after the call is missed.
        """
        followers, path = self._followers, self._path
        if followers.stopped or self.gone.done():
            return True
        woken: asyncio.Future[bool] = self._loop.create_future()
        self._woken = woken
        waiting = followers.waiting.setdefault(path, set())
        waiting.add(woken)
        followers.count += 1
        self._until = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._until:
            self._end_timer()
            self._timer = self._loop.call_at(self._until, self._check_time)
        try:
            return await woken
        finally:
            self._woken = None
            followers.count -= 1
            waiting.discard(woken)
            if not waiting and followers.waiting.get(path) is waiting:
                del followers.waiting[path]

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self, gone: object) -> None:
        if self._woken is not None:
            _wake(self._woken, True)

    def _check_time(self) -> None:
        self._timer = None
        if self._woken is None:
            return
        if self._until <= self._loop.time():
            _wake(self._woken, False)
        else:
            self._timer = self._loop.call_at(self._until, self._check_time)


# How many followers are woken in one turn of the event loop. Appends and other requests run between two turns.
_TURN = 32


class Followers:
    """The waiting readers of each stream. Only for the event loop's thread.

    :ivar waiting: by path, a future for each waiting reader.
    :ivar count: how many wait.
    :ivar stopped: every wait ends at once.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, set[asyncio.Future[bool]]] = {}
        self._following: dict[str, int] = {}
        self._newest: dict[str, Stream] = {}
        self._readers: dict[str, set[LiveReader]] = {}
        self._answers: OrderedDict[tuple[object, ...], Answer] = OrderedDict()
        self.count = 0
        self.stopped = False

    async def wait(self, path: str, seconds: float, gone: asyncio.Future[object]) -> bool:
        """As `Follower.wait`, for a reader that waits only once."""
        with self.following(path, gone) as follower:
            return await follower.wait(seconds)

    def following(self, path: str, gone: asyncio.Future[object]) -> Follower:
        """A context in which a reader may wait for changes of a stream as often as it likes, until the future `gone`
        is done."""
        return Follower(self, path, gone)

    def reading(self, path: str, kind: str, position: int) -> LiveReader:
        """A context in which `readers` has this reader. Keep its position up to date."""
        return LiveReader(self._readers, path, kind, position)

    def join(self, path: str) -> None:
        """Add a follower of a stream. While it has any, `newest` knows its state after the last commit."""
        self._following[path] = self._following.get(path, 0) + 1

    def leave(self, path: str) -> None:
        """The opposite of `join`."""
        self._following[path] -= 1
        if not self._following[path]:
            del self._following[path]
            self._newest.pop(path, None)

    def readers(self, path: str) -> Collection[LiveReader]:
        """The clients that now read a stream live."""
        return self._readers.get(path, ())

    def wake(self, path: str, stream: Stream | None = None) -> None:
        """Notify followers of a change.

        :param stream: its state after the change; None: followers have to read it from the storage.
        """
        if path not in self._following:
            return
        if stream is None:
            self._newest.pop(path, None)
        else:
            self._newest[path] = stream
        self._wake_in_turns(list(self.waiting.pop(path, ())))

    def newest(self, path: str) -> Stream | None:
        """A followed stream after its last commit, so that not every follower has to read it from the storage; None if
        it is not known here."""
        return self._newest.get(path)

    def _wake_in_turns(self, waiting: list[asyncio.Future[bool]]) -> None:
        for woken in waiting[:_TURN]:
            _wake(woken, True)
        if len(waiting) > _TURN:
            asyncio.get_running_loop().call_soon(self._wake_in_turns, waiting[_TURN:])

    def stop(self) -> None:
        """End all waiting, now and from now on."""
        self.stopped = True
        for path in list(self.waiting):
            self.wake(path)

    def shared(self, stream: Stream, position: int, form: str, read: Callable[[], Answer]) -> Answer:
        """The answer with the stream from `position` on, in some form; `read` makes it once for all followers there."""
        key = (stream.path, stream.id, position, stream.earliest, stream.tail, stream.closed, form)
        answer = self._answers.get(key)
        if answer is None:
            answer = read()
            if len(answer.data) <= _ANSWER_BYTES:
                self._answers[key] = answer
                if len(self._answers) > _ANSWERS:
                    self._answers.popitem(last=False)
        return answer


def _wake(woken: asyncio.Future[bool], happened: bool) -> None:
    if not woken.done():
        woken.set_result(happened)
