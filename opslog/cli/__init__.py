"""The command line, `opslog`; docs/cli.md describes it. One module per kind of command, loaded when one is called."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from opslog.concurrency.interpreter import end_quickly, lasting_imports

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command that the process was started with, and exit with its code."""
    _replace_closed_streams()
    _buffer_stdout()
    try:
        code = _program(sys.argv[1:])(sys.argv[1:])
    except KeyboardInterrupt:  # before the command could handle it
        code = _INTERRUPTED
    end_quickly()
    sys.exit(code)


def _program(arguments: Sequence[str]) -> Callable[[Sequence[str]], int]:
    """Import what a command needs, and return the function that runs it."""
    with lasting_imports():
        from opslog.cli.program import run
        from opslog.cli.reading import plain_get

        if plain_get(arguments) is None:
            import_module("opslog.cli.app")
    return run


def _replace_closed_streams() -> None:
    """Open standard streams that the parent process has closed. Otherwise the next opened file would get the number of
    one, and a message of the interpreter to stderr could end up in a log."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            lowest_free = os.open(os.devnull, os.O_RDWR)
            assert lowest_free == number
            setattr(sys, name, os.fdopen(lowest_free, mode))


def _buffer_stdout() -> None:
    """Give stdout a buffer if it has none, as with ``PYTHONUNBUFFERED=1``. A write without a buffer may write only a
    part and raise no error, so output would be cut off, and the exit code would say that all is well."""
    if isinstance(sys.stdout.buffer, io.RawIOBase):
        unbuffered = sys.stdout
        sys.stdout = os.fdopen(
            unbuffered.fileno(), "w", encoding=unbuffered.encoding, errors=unbuffered.errors, closefd=False
        )
