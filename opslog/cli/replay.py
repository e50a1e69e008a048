"""The command that writes the state of a store elsewhere: replay."""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

import click

from opslog.cli.output import answer, counted, progress, unicode_text
from opslog.cli.session import Session, StoreCommand
from opslog.cli.values import point
from opslog.environment import REAL
from opslog.history import load_as_of
from opslog.replay import Format, check_vacant, write_state
from opslog.state import Loader


@click.command("replay", cls=StoreCommand)
@click.argument("url", required=False, metavar="[STORE]")
@click.option(
    "--to",
    "directory",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where to: a directory that is empty or does not exist. It appears when it is whole.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(get_args(Format)),
    default="jsonl",
    show_default=True,
    help="Lines of JSON, Parquet, or a store that has these documents and no past.",
)
@click.option("--as-of", metavar="CLOCK|TIME", help="The state as it was: at a clock, or as in 2026-11-20T12:00:00Z.")
@click.pass_obj
def replay_command(session: Session, *, url: str | None, directory: Path, form: str, as_of: str | None) -> None:
    """Write all documents of the store (STORE, or the one that --store names) into files for other programs.

    Runs beside running writers.
    """
    session.store = session.store if url is None else url
    check_vacant(directory)
    with session.existing() as backend:
        with progress(session, "reading bytes of logs") as bar:
            loader = Loader(backend, bar)
            state = loader.load() if as_of is None else load_as_of(loader, point(as_of))
        with progress(session, "writing documents") as bar:
            written = write_state(
                state, directory, cast(Format, form), REAL, (lambda count: bar(count, 0)) if bar else None
            )
    answer(
        session,
        {"documents": written, "to": unicode_text(str(directory)), "format": form},
        f"replayed {counted(written, 'document')} to {unicode_text(str(directory))}",
    )
