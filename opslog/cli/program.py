"""Running a command: every error becomes a sentence on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opslog.cli.output import on_stderr, report, report_conflict, report_error
from opslog.cli.reading import plain_get, print_document
from opslog.cli.session import FAILED, USAGE, Session
from opslog.errors import ConflictError, MissingStoreError, NotFoundError, OpslogError, UsageError

if TYPE_CHECKING:
    import click

_INTERRUPTED, _CLOSED_PIPE = 130, 141  # as a shell says it of a program that SIGINT or SIGPIPE ended


def run(arguments: Sequence[str], app: click.Group | None = None, program: str = "opslog") -> int:
    """Run one command, report its errors on stderr, and return its exit code.

    :param app: the commands; None: those of `opslog`.
    :param program: the name of the program.
    """
    try:
        return _run(arguments, app, program)
    finally:
        _drop_unwritten_output()


def _run(arguments: Sequence[str], app: click.Group | None, program: str) -> int:
    call = None if app is not None else plain_get(arguments)
    session = Session() if call is None else call[0]
    try:
        if call is None:
            from opslog.cli import app as commands

            code = commands.invoke(session, arguments, app or commands.app, program)
        else:
            code = print_document(*call)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has seen enough
        return _CLOSED_PIPE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except ConflictError as error:
        return report_conflict(session, error)
    except MissingStoreError as error:
        advice = "check the name; `opslog set` and `opslog import` create a store"
        return report_error(session, NotFoundError(f"no store at {error.url}: {advice}"), FAILED)
    except OpslogError as error:
        return report_error(session, error, USAGE if isinstance(error, UsageError) else FAILED)
    except OSError as error:
        where = error.filename or "cannot read or write"
        report(session, "OSError", f"{where}: {error.strerror or error}")
        return FAILED
    except Exception:  # noqa: BLE001  # reported in full; but as Python's own exit code, 1, a script would take it for "no"
        import traceback

        with on_stderr():
            traceback.print_exc()
        return FAILED


def _drop_unwritten_output() -> None:
    """Drop what stdout cannot take. It would fail again at the exit of the interpreter and change the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
