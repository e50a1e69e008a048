"""Buffers at the end of the program: what a buffered store still holds is written when the interpreter exits.

A program that ends without `close` (normally, by `sys.exit` or by an exception) loses nothing that way. One that is
killed, or calls `os._exit`, loses what it has not written; so does one that ends while its storage does not answer.

A store that is opened while functions run at exit comes too late: what is registered then is not called any more. It
buffers nothing (`is_ending`).

Buffers cannot be written when a store is garbage collected instead: a finalizer may run in any thread at any place,
also inside the lock that writing takes. It does not come to that, since the thread that writes the buffer keeps the
store alive.
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from contextlib import ExitStack
from typing import Protocol

from opslog.backends import forking


class Buffered(Protocol):
    """A store that may hold what is not written yet."""

    def write_at_exit(self) -> None:
        """Write it; does nothing where the store is closed, or belongs to the parent of this process. Raises nothing
        of opslog's."""


# By identity: mappings have no hash.
_stores: weakref.WeakValueDictionary[int, Buffered] = weakref.WeakValueDictionary()
# The generations of processes (`forking.generation`) in which `_write_all` was registered.
_registered: list[int] = []


def write_at_exit(store: Buffered) -> None:
    """Have the store's buffer written when this process ends. Costs nothing to those who do not call it."""
    _stores[id(store)] = store
    if forking.generation in _registered:
        return
    if not _registered:
        atexit.register(_write_all)  # forked children inherit it
    if "multiprocessing.util" in sys.modules:
        # Children that multiprocessing forks end without atexit, and begin without their parent's finalizers.
        from multiprocessing.util import Finalize

        Finalize(None, _write_all, exitpriority=0)
    _registered.append(forking.generation)


def is_ending() -> bool:
    """Whether the functions that run at exit have begun, or are about to: right before them the interpreter marks its
    main thread as ended. (It does not where nobody had imported `threading` by then: opslog, first imported by such a
    function of a program that imports next to nothing else, cannot know.)"""
    return not threading.main_thread().is_alive()


def _write_all() -> None:
    # In one step, since other threads may open stores still.
    stores = [store for reference in _stores.valuerefs() if (store := reference()) is not None]
    with ExitStack() as stack:  # each of them, also where a warning is an error, or one is interrupted
        for store in stores:
            stack.callback(store.write_at_exit)
