"""The options and arguments that several commands have in common."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

import click

import opslog
from opslog.cli.session import Session
from opslog.cli.values import Number


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value not in (None, False):  # given neither here nor in the environment
        assert param.name is not None
        setattr(ctx.ensure_object(Session), param.name, value)


# The common options that a command uses.
JSON = frozenset({"json"})
READS = JSON | {"store"}
WRITES = READS | {"agent"}


def common_options(*, environment: bool, shown: AbstractSet[str] = WRITES) -> list[click.Parameter]:
    """The options before a command (if `environment`, variables may replace them), or after it.

    :param shown: the options in its help. It accepts the others, too, so that a script may give all commands the same.
    """
    env = "OPSLOG_{}".format if environment else (lambda name: None)
    common: dict[str, Any] = {"expose_value": False, "callback": _remember}
    options = [
        click.Option(
            ["--store", "-s"],
            envvar=env("STORE"),
            metavar="URL",
            help="The store: a directory or a URL. [OPSLOG_STORE]",
            **common,
        ),
        click.Option(
            ["--agent", "-a"],
            envvar=env("AGENT"),
            metavar="NAME",
            help="The name to write under; one live process per name. [OPSLOG_AGENT; main]",
            **common,
        ),
        click.Option(["--json"], is_flag=True, help="Answer in JSON, for programs; errors too.", **common),
    ]
    for option in options:
        option.hidden = option.name not in shown
    return [*options]


class StoreCommand(click.Command):
    """A command with the common options, except those that it has its own of.

    :param options: the common options that it uses.
    :param agent: the help of ``--agent``, if that means something else here than for other commands.
    """

    def __init__(self, *args: Any, options: AbstractSet[str], agent: str | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        own = {name for parameter in self.params for name in parameter.opts}
        common = common_options(environment=False, shown=options)
        self.params += [option for option in common if not own & {*option.opts}]
        for option in common:
            if agent is not None and option.name == "agent":
                option.help = agent


# Of commands that serve.
log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="On stderr; debug has a line for each request over HTTP.",
)


def every_option(what: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """The option of commands that follow a store. `what` is its help."""
    return click.option(
        "--every", type=Number(0.01, 86_400), default=0.2, show_default=True, metavar="SECONDS", help=what
    )


def complete_id(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The ids that begin with what was typed, for shell completion."""
    session = ctx.find_object(Session)
    if session is None or not session.store:
        return []
    try:
        with session.reading() as store:
            return [id for id in store if id.startswith(incomplete) and id.isprintable()]
    except (opslog.OpslogError, OSError):
        return []  # a completion cannot show an error; the command itself will report it
