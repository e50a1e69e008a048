"""Work that needs no GIL, on many items in several threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(work: Callable[[T], R], items: Iterable[T], is_small: Callable[[T], bool]) -> list[R]:
    """The results of `work` for each item, in order, by as many threads as there are processors. The caller's is one of
    them. When this returns or raises, no other thread is running any more.

    Unlike a pool of `concurrent.futures`, this works until the process ends: such a pool takes no work after the main
    thread has ended.

    :param items: the threads take turns to iterate it.
    :param is_small: whether an item is not worth a thread. The first one that is worth it starts the other threads.
    :raises: an error of `work` or of `items`. Then no further item is taken.
    """
    shared = _Items(work, items)
    helpers: list[threading.Thread] = []
    try:
        while taken := shared.take():
            if not helpers and not is_small(taken[1]):
                helpers += [threading.Thread(target=shared.help, daemon=True) for _ in range(1, os.cpu_count() or 1)]
                with suppress(RuntimeError):  # the system has no more threads; the caller works alone
                    for helper in helpers:
                        helper.start()
            shared.work(*taken)
    finally:
        shared.is_stopped = True
        for helper in helpers:
            if helper.ident is not None:
                helper.join()
    for error in shared.errors:
        raise error
    return [shared.results[number] for number in range(len(shared.results))]


class _Items(Generic[T, R]):
    """Items that several threads take, and the results.

    Each thread takes its next item itself. A thread that is given its items waits for the caller each time; and to
    start a thread for each item, of some megabytes, costs as much as its work.
    """

    def __init__(self, work: Callable[[T], R], items: Iterable[T]) -> None:
        self.results: dict[int, R] = {}
        self.errors: list[BaseException] = []
        self.is_stopped = False
        self._work = work
        self._items = enumerate(items)
        self._taking = threading.Lock()

    def take(self) -> tuple[int, T] | None:
        """The number of the next item, and the item; None if there is none, or the work is stopped."""
        with self._taking:
            return None if self.is_stopped else next(self._items, None)

    def work(self, number: int, item: T) -> None:
        self.results[number] = self._work(item)

    def help(self) -> None:
        try:
            while taken := self.take():
                self.work(*taken)
        except BaseException as error:  # noqa: BLE001  (the caller's thread raises it)
            self.errors.append(error)
            self.is_stopped = True
