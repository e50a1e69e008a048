"""Waiting for conditions, instead of for a time."""

from __future__ import annotations

import threading
from collections.abc import Callable


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition. The test's own timeout ends a wait in vain."""
    waiting = threading.Event()
    while not condition():
        waiting.wait(0.001)
