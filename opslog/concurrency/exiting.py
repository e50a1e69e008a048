"""Buffers at the end of the program: a buffered store writes its buffer when the interpreter exits.

So a program that ends without `close` (normally, by `sys.exit` or by an exception) loses nothing. A program that is
killed, or calls `os._exit`, loses its unwritten commits; so does one that ends while its storage does not answer.

If a store is opened while exit functions run, it is too late to register another one. So such a store buffers nothing
(`is_ending`).

A finalizer of the store could not write the buffer: it may run in any thread at any point, even inside the lock that
writing takes. None is needed, since the thread that writes the buffer keeps the store alive.
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

from opslog.backends import forking

S = TypeVar("S")

# The stores that may hold unwritten commits, and the function that writes them.
_stores: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
# The generations of processes (`forking.generation`) in which `_write_all` was registered.
_registered: list[int] = []


def write_at_exit(store: S, write: Callable[[S], None]) -> None:
    """Have `write` called with the store when this process ends. Nothing is registered at exit before the first
    call."""
    _stores[store] = write
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
    """Whether the exit functions are running, or are about to: right before them, the interpreter marks its main thread
    as ended. (It does not mark it if nothing has imported `threading` by then. So the result is wrong if an exit
    function is the first to import opslog, in a program that imports hardly anything else.)"""
    return not threading.main_thread().is_alive()


def _write_all() -> None:
    # Listed in one step, since other threads may still open stores.
    stores = [store for reference in _stores.keyrefs() if (store := reference()) is not None]
    with ExitStack() as stack:  # writes each of them, even if one is interrupted, or raises a warning as an error
        for store in stores:
            stack.callback(_stores[store], store)
