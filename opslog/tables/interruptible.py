"""Work of DuckDB that a signal interrupts, such as Ctrl-C.

In the main thread, DuckDB either does not notice a signal before it is done, or raises a RuntimeError in place of the
KeyboardInterrupt. So the main thread only waits there, which each signal interrupts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import duckdb

R = TypeVar("R")

# DuckDB forgets an interrupt that comes before the query has begun, so it is repeated.
_SECONDS = 0.05


def interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], R]) -> R:
    """The result of `work`. If an interrupt comes into the main thread meanwhile, the work is ended, and the interrupt
    is raised.

    :param work: runs queries of the connection, and no code of the user: it is called by another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()  # signals never come here
    running = _Running(work)
    try:
        try:
            threading.Thread(target=running.run, daemon=True).start()
        except RuntimeError:  # the system has no more threads, or the interpreter is about to end
            return work()
        running.ended.wait()
    except BaseException:
        running.is_stopped = True
        if running.has_begun:
            _end(connection, running.ended)
        raise
    if running.error is not None:
        raise running.error
    [result] = running.results
    return result


class _Running(Generic[R]):
    """Work in a thread.

    :ivar has_begun: whether the work may have begun. A thread that begins after `is_stopped` was set does nothing.
    """

    def __init__(self, work: Callable[[], R]) -> None:
        self.has_begun = self.is_stopped = False
        self.ended = threading.Event()
        self.results: list[R] = []
        self.error: BaseException | None = None
        self._work = work

    def run(self) -> None:
        self.has_begun = True
        try:
            if not self.is_stopped:
                self.results.append(self._work())
        except BaseException as error:  # noqa: BLE001  (the caller's thread raises it)
            self.error = error
        finally:
            self.ended.set()


def _end(connection: duckdb.DuckDBPyConnection, ended: threading.Event) -> None:
    """Return when the work has ended, also if further interrupts come: the first one is already being raised."""
    while not ended.is_set():
        try:
            connection.interrupt()
            ended.wait(_SECONDS)
        except BaseException:  # noqa: BLE001, S112
            continue
