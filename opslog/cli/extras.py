"""Commands that need no store: demo, completion."""

from __future__ import annotations

import os
from pathlib import Path

import click

from opslog.cli.options import JSON, StoreCommand
from opslog.cli.output import write
from opslog.cli.session import COMPLETE, Session
from opslog.cli.values import Number

_SHELLS = ("bash", "zsh", "fish")


@click.command("demo", cls=StoreCommand, options=JSON)
@click.option("--seconds", type=Number(1, 3600), default=12, show_default=True, help="How long the agents write.")
@click.option("--agents", type=click.IntRange(2, 64), default=4, show_default=True, help="How many write at once.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Work there. Default: a temporary directory.",
)
@click.option("--page", is_flag=True, help="Serve the store's page, and open it, while the agents work.")
@click.option("--no-spark", is_flag=True, help="Leave out Spark's replay of the store at the end.")
@click.pass_obj
def demo_command(
    session: Session, *, seconds: float, agents: int, directory: Path | None, page: bool, no_spark: bool
) -> int:
    """Several processes write to one store at once while another compacts it; one of them is killed and started again.
    At the end everything that was acknowledged must be there. If Spark is installed, it must see the same.

    Exit code 1: something was lost, or the states differ.
    """
    from opslog.demo import main

    spark = not no_spark
    return main(seconds=seconds, agents=agents, directory=directory, spark=spark, json=session.json, page=page)


@click.command("completion", cls=StoreCommand, options=frozenset())
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
@click.pass_obj
def completion_command(session: Session, shell: str | None) -> None:
    """Print the script that makes SHELL (default: the one in $SHELL) complete commands, options and ids."""
    from click.shell_completion import get_completion_class

    from opslog.cli.app import app

    shell = shell or Path(os.environ.get("SHELL", "")).name
    found = get_completion_class(shell) if shell in _SHELLS else None
    if found is None:
        raise click.UsageError(f"name the shell: {', '.join(_SHELLS)}")
    write(found(app, {}, "opslog", COMPLETE).source())
