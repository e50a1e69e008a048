"""Failing system calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def failing(code: int) -> Callable[..., Any]:
    """A system call that fails with this error."""

    def fail(*args: object, **options: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def interrupted(*args: object, **options: object) -> Any:
    """A system call that Ctrl-C interrupts."""
    raise KeyboardInterrupt
