"""The command line, `opslog`; docs/cli.md describes it. One module per kind of command, loaded when one is called."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command that the process was started with, and exit with its code."""
    _replace_closed_streams()
    try:
        code = _app()(sys.argv[1:])
    except KeyboardInterrupt:  # before it could see to that
        code = _INTERRUPTED
    gc.freeze()  # or the interpreter would go through all of it before it lets go of all of it
    sys.exit(code)


def _app() -> Callable[[Sequence[str]], int]:
    """What runs a command.

    What is imported here stays to the end. So the garbage collector passes it over, while it is imported and later: to
    go through it several times took a fifth of the time of a short command.
    """
    gc.disable()
    try:
        from opslog.cli.app import run
    finally:
        gc.freeze()
        gc.enable()
    return run


def _replace_closed_streams() -> None:
    """Whoever started this may have closed standard streams. The next file to be opened would take the place of one,
    and a last word of the interpreter on stderr could end up in a log."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            lowest_free = os.open(os.devnull, os.O_RDWR)
            assert lowest_free == number
            setattr(sys, name, os.fdopen(lowest_free, mode))
