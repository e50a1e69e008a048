"""Signals that come to a simulated process while it is in a call.

A handler runs, as in CPython, in the main thread, and in the midst of whatever that does: here right before a call to
the storage, or at an operation on a lock. (`tests/interrupts` has all the other places, one call at a time.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opslog.testing.faults import SIGNALS

_NONE = frozenset[str]()


class Interrupt(BaseException):
    """What the handler of a signal raises, as KeyboardInterrupt for Ctrl-C."""


class Signals:
    """Those of one process.

    :param note: writes into the timeline what comes.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        self._handler: Callable[[], object] | None = None
        # The kind of fault that comes at an operation on a lock, after so many others: `_locks`.
        self._coming = ""
        self._locks = 0

    @contextmanager
    def handled(self, handler: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Inside the block signals may come: the handler runs, or `Interrupt` is raised. None comes while it runs."""
        outer, self._handler = self._handler, handler
        try:
            yield
        finally:
            self._handler, self._coming = outer, ""

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of faults that the main thread is ready for."""
        return SIGNALS if self._handler is not None else _NONE

    def send(self, kind: str, after: float) -> None:
        """A signal comes.

        :param after: below 0.5 right now, from there on up to nine operations on locks later.
        """
        if after < 0.5:
            self._handle(kind)
        else:
            self._coming, self._locks = kind, int(20 * (after - 0.5))

    def check(self) -> None:
        """In the main thread, at an operation on a lock: run the handler of a signal that has come, if one has."""
        if self._coming:
            self._locks -= 1
            if self._locks < 0:
                kind, self._coming = self._coming, ""
                self._handle(kind)

    def _handle(self, kind: str) -> None:
        handler = self._handler
        if handler is None:
            return
        self._note(f"{kind} comes")
        if kind == "interrupt":
            raise Interrupt
        self._handler = None
        try:
            handler()
        finally:
            self._handler = handler
