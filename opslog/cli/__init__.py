"""The command line, `opslog`; docs/cli.md describes it. One module per kind of command, loaded when one is called."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the process was started with, and exit with its code."""
    from opslog.cli.app import run

    sys.exit(run(sys.argv[1:]))
