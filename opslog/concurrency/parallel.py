"""Work that needs no GIL, on many items in several threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(work: Callable[[T], R], items: Iterable[T], is_small: Callable[[T], bool]) -> list[R]:
    """The results of `work` for each item, in order, by as many threads as there are processors. The caller's is one of
    them. When this returns or raises, no other thread works any more.

    Unlike a pool of `concurrent.futures`, this works until the process ends: such a pool takes no work after the main
    thread has ended.

    :param items: iterated in the caller's thread, before that works on items, too. So they may be made by code of the
        user, and an interrupt does not wait for a slow storage.
    :param is_small: whether an item is not worth a thread. The first one that is worth it starts the other threads.
    :raises: an error of `work` or of `items`. Then no further item is worked on.
    """
    shared = _Shared(work)
    helpers: list[_Helper[T, R]] = []
    try:
        for number, item in enumerate(items):
            if not helpers and not is_small(item):
                helpers += [_Helper(shared) for _ in range(1, os.cpu_count() or 1)]
                _start(helpers)
            if shared.is_stopped:
                break
            shared.items.put((number, item))
            if not helpers:
                shared.work_on()
        shared.work_on()
    except BaseException:
        shared.is_stopped = True
        raise
    finally:
        for _ in helpers:
            shared.items.put(None)
        _wait_for([helper.ended for helper in helpers if helper.has_begun])
    for error in shared.errors:
        raise error
    return [shared.results[number] for number in range(len(shared.results))]


class _Shared(Generic[T, R]):
    """The items that are waiting for a thread, None for the end, and the results."""

    def __init__(self, work: Callable[[T], R]) -> None:
        self.items: SimpleQueue[tuple[int, T] | None] = SimpleQueue()
        self.results: dict[int, R] = {}
        self.errors: list[BaseException] = []
        self.is_stopped = False
        self._work = work

    def work_on(self, *, waits: bool = False) -> None:
        """Work on items until none is left; with `waits`, until the end is among them."""
        while not self.is_stopped:
            try:
                taken = self.items.get(waits)
            except Empty:
                return
            if taken is None:
                return
            number, item = taken
            self.results[number] = self._work(item)


class _Helper(Generic[T, R]):
    """A thread that works on the items.

    A thread for each item, of some megabytes, would take as long to start as to work.

    :ivar has_begun: whether it may have worked on an item. A thread that begins after the end finds nothing to do: no
        item is left, or the work is stopped.
    """

    def __init__(self, shared: _Shared[T, R]) -> None:
        self.has_begun = False
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self._shared = shared

    def _run(self) -> None:
        self.has_begun = True
        try:
            self._shared.work_on(waits=True)
        except BaseException as error:  # noqa: BLE001  (the caller's thread raises it)
            self._shared.errors.append(error)
            self._shared.is_stopped = True
        finally:
            self.ended.set()


def _start(helpers: list[_Helper[T, R]]) -> None:
    """Start threads. If the system has no more, the others work alone."""
    for helper in helpers:
        try:
            helper.thread.start()
        except RuntimeError:
            return


def _wait_for(events: Iterable[threading.Event]) -> None:
    """Return when all events have happened. If an interrupt comes meanwhile, such as KeyboardInterrupt, it is raised
    after that. Once one has come out of `threading.Thread.join`, Python 3.11 takes the thread for ended."""
    interrupt: BaseException | None = None
    for event in events:
        while not event.is_set():
            try:
                event.wait()
            except BaseException as error:  # noqa: BLE001  (raised below)
                interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt
