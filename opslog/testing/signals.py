"""Signals that come to a simulated process while it is in a call.

As in CPython, a handler runs in the main thread and interrupts it: here right before a call to the storage, or at an
operation on a lock. (`tests/interrupts` covers all other places, one call at a time.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opslog.testing.faults import SIGNALS

_NONE = frozenset[str]()


class Interrupt(BaseException):
    """Raised by the handler of a signal, as KeyboardInterrupt is for Ctrl-C."""


class Signals:
    """The signals of one process.

    :param note: writes arrivals into the timeline.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        self._handler: Callable[[], object] | None = None
        # The kind of fault that is due; it comes after `_locks` more operations on locks.
        self._coming = ""
        self._locks = 0

    @contextmanager
    def handled(self, handler: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Signals may arrive inside the block: the handler runs, or `Interrupt` is raised. None arrives while the
        handler runs."""
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
        """A signal arrives.

        :param after: below 0.5: right now; from 0.5 on: up to nine operations on locks later.
        """
        if after < 0.5:
            self._handle(kind)
        else:
            self._coming, self._locks = kind, int(20 * (after - 0.5))

    def check(self) -> None:
        """In the main thread, at an operation on a lock: run the handler of a signal that has arrived, if any."""
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
