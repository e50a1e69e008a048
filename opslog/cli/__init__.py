"""The command line, `opslog`; docs/cli.md describes it. One module per kind of command, loaded when one is called."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command that the process was started with, and exit with its code."""
    _replace_closed_streams()
    try:
        from opslog.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before `run` could see to it
        code = _INTERRUPTED
    sys.exit(code)


def _replace_closed_streams() -> None:
    """Whoever started this may have closed standard streams. The next file to be opened would take the place of one,
    and a last word of the interpreter on stderr could end up in a log."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            lowest_free = os.open(os.devnull, os.O_RDWR)
            assert lowest_free == number
            setattr(sys, name, os.fdopen(lowest_free, mode))
