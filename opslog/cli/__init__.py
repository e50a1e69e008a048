"""The command line, `opslog`; docs/cli.md describes it. One module per kind of command, loaded when one is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from opslog.concurrency.interpreter import end_quickly, lasting_imports

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command that the process was started with, and exit with its code."""
    _replace_closed_streams()
    try:
        code = _app()(sys.argv[1:])
    except KeyboardInterrupt:  # before the command could handle it
        code = _INTERRUPTED
    end_quickly()
    sys.exit(code)


def _app() -> Callable[[Sequence[str]], int]:
    """Import the application, and return the function that runs a command."""
    with lasting_imports():
        from opslog.cli.app import run
    return run


def _replace_closed_streams() -> None:
    """Open standard streams that the parent process has closed. Otherwise the next opened file would get the number of
    one, and a message of the interpreter to stderr could end up in a log."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            lowest_free = os.open(os.devnull, os.O_RDWR)
            assert lowest_free == number
            setattr(sys, name, os.fdopen(lowest_free, mode))
