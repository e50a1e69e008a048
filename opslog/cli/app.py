"""The list of commands, and their invocation by click."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

import click

import opslog
from opslog.cli.options import common_options
from opslog.cli.output import on_stderr, report
from opslog.cli.session import COMPLETE, DONE, USAGE, Session

# Name to (module, summary), so that a command does not load the others, and their list loads none.
_COMMANDS = {
    "get": ("documents", "Print a document."),
    "set": ("writing", "Give a document a new value."),
    "delete": ("writing", "Delete documents."),
    "undo": ("writing", "Take back the newest commit of an agent."),
    "ls": ("listing", "List documents."),
    "count": ("listing", "Count documents."),
    "query": ("query", "Answer a question in SQL."),
    "history": ("past", "Show what happened to a document."),
    "ops": ("past", "Show commits of all agents."),
    "watch": ("past", "Show commits as they come."),
    "changes": ("feed", "Show which documents changed since a token."),
    "compact": ("maintenance", "Compact the logs into the snapshot."),
    "archive": ("maintenance", "Move documents to an archive, or read one."),
    "stats": ("maintenance", "Show figures of the store."),
    "verify": ("maintenance", "Check every file of the store."),
    "import": ("transfer", "Write what another source holds into the store."),
    "export": ("transfer", "Write all documents to a file."),
    "replay": ("replay", "Write all documents into files for other programs."),
    "copy": ("transfer", "Copy the store to another storage, and verify the copy."),
    "serve": ("serving", "Serve streams over HTTP."),
    "mcp": ("mcp", "Serve the store to language-model agents."),
    "demo": ("extras", "Several processes write to one store at once; nothing is lost."),
    "completion": ("extras", "Print the script that makes a shell complete commands and ids."),
}


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command = getattr(import_module(f"opslog.cli.{_COMMANDS[name][0]}"), f"{name}_command")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


app = _Group(
    "opslog",
    help="A store of JSON documents in a directory or bucket, which several processes write to at once.",
    epilog="Exit code: 0 done, 1 no (not found, a conflict, nothing to undo), 2 wrong usage, 3 the store failed.",
    params=common_options(environment=True),
    context_settings={"help_option_names": ["-h", "--help"]},
)
click.version_option(opslog.__version__, prog_name="opslog")(app)


def invoke(session: Session, arguments: Sequence[str], app: click.Group = app, program: str = "opslog") -> int:
    """Run one command, and return its exit code. Wrong usage is reported, other errors are raised.

    :param session: gets the common options.
    :param app: the commands.
    :param program: the name of the program.
    """
    try:
        if os.environ.get(COMPLETE):
            from click.shell_completion import shell_complete

            return shell_complete(app, {"obj": session}, program, COMPLETE, os.environ[COMPLETE])
        if not arguments:
            with on_stderr():
                click.echo(app.get_help(click.Context(app, info_name=program)), err=True)
            return USAGE
        # Not app.main, which has ways of its own with interrupts and closed pipes.
        with app.make_context(program, list(arguments), obj=session) as context:
            code = app.invoke(context)
        return code if isinstance(code, int) else DONE
    except click.exceptions.Exit as end:  # --help, --version
        return end.exit_code
    except click.ClickException as error:
        # A wrong option is found before any other is read.
        session.json = session.json or "--json" in arguments
        return _report_usage(error, session)
    except click.Abort as error:
        raise KeyboardInterrupt from error


def _report_usage(error: click.ClickException, session: Session) -> int:
    if session.json:
        report(session, "UsageError", error.format_message())
    else:
        with on_stderr():
            error.show()
    return USAGE
