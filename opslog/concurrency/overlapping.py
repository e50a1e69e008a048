"""Threads for work that waits for a storage or needs no GIL, while the caller prepares the next items."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

# How many calls run at once: with two, the bytes of one are copied while another waits for the disk.
_AT_ONCE = 2


class _Call(Generic[T, R]):
    """A call in a thread of its own, or in this one where the system has no more threads."""

    def __init__(self, work: Callable[[T], R], item: T) -> None:
        self._work, self._item = work, item
        self._results: list[R] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="opslog-overlap", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            self._run()

    def _run(self) -> None:
        try:
            self._results.append(self._work(self._item))
        except BaseException as error:  # noqa: BLE001  (`result` raises it)
            self._error = error

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def result(self) -> R:
        self.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]


def overlapped(work: Callable[[T], R], items: Iterable[T], may_be_last: Callable[[T], bool]) -> Iterator[R]:
    """The results of `work` for each item, in order. While it works on an item, the next items are taken. When the
    iteration ends, for whatever reason, no call is running any more.

    :param may_be_last: whether an item is most likely the last one. Such an item is done in the caller's thread, so a
        single item needs no other thread.
    :raises: the error of `work` for the first item for which it failed.
    """
    under_way: deque[_Call[T, R]] = deque()

    def first_result() -> R:
        result = under_way[0].result()  # it stays in the queue until it has ended: an exception may come meanwhile
        under_way.popleft()
        return result

    try:
        for item in items:
            if len(under_way) == _AT_ONCE:
                yield first_result()
            if may_be_last(item):
                while under_way:
                    yield first_result()
                yield work(item)
            else:
                under_way.append(_Call(work, item))
        while under_way:
            yield first_result()
    finally:
        for call in under_way:
            call.wait()
