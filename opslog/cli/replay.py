"""The command that writes the documents of a store into other files: replay."""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

import click
import msgspec

from opslog.backends import Backend
from opslog.bulk.replay import Format, check_vacant, write_state
from opslog.cli.engines import SPEED, Choice, Engine, bytes_to_read, choose, cores_of, spark_missing
from opslog.cli.options import READS, StoreCommand
from opslog.cli.output import answer, counted, say, unicode_text
from opslog.cli.progress import progress
from opslog.cli.session import Session
from opslog.cli.values import as_of_option
from opslog.environment import REAL, machine_memory
from opslog.history import Point, load_as_of
from opslog.replica.loading import Loader


class Wish(msgspec.Struct, frozen=True):
    """The options of a replay: what is to be written, and how."""

    directory: Path
    form: Format
    as_of: Point | None
    engine: Engine
    master: str | None
    variant: bool

    def check(self) -> None:
        """:raises click.UsageError: these options do not go together."""
        if self.variant and self.form != "parquet":
            raise click.UsageError("--variant is for --format parquet")
        if self.engine == "python" and (self.variant or self.master):
            raise click.UsageError(f"{'--variant' if self.variant else '--master'} is for Spark: leave out --engine")


@click.command("replay", cls=StoreCommand, options=READS)
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
@as_of_option
@click.option(
    "--engine",
    type=click.Choice(get_args(Engine)),
    default="auto",
    show_default=True,
    help="One process of Python, or Spark; auto takes what will be done first.",
)
@click.option(
    "--master", metavar="URL", help="Where Spark runs, as in spark-submit. Default: all cores of this machine."
)
@click.option("--variant", is_flag=True, help="With --format parquet: documents as VARIANT, by Spark.")
@click.pass_obj
def replay_command(
    session: Session,
    *,
    url: str | None,
    directory: Path,
    form: str,
    as_of: Point | None,
    engine: str,
    master: str | None,
    variant: bool,
) -> None:
    """Write all documents of the store (STORE, or the one that --store names) into files for other programs.

    It may run while others write.
    """
    session.store = session.store if url is None else url
    wish = Wish(directory, cast(Format, form), as_of, cast(Engine, engine), master, variant)
    wish.check()
    check_vacant(directory)
    with session.existing() as backend:
        choice = _choice(backend, wish)
        if wish.engine == "auto" and not session.json:
            say(f"replaying with {'one process of Python' if choice.engine == 'python' else 'Spark'}: {choice.why}")
        written = _by_python(session, backend, wish) if choice.engine == "python" else _by_spark(session, wish)
    to = unicode_text(str(directory))
    answer(
        session,
        {"documents": written, "to": to, "format": form, "engine": choice.engine, "why": choice.why},
        f"replayed {counted(written, 'document')} to {to}",
    )


def _choice(backend: Backend, wish: Wish) -> Choice:
    if wish.engine != "auto":
        return Choice(wish.engine, f"as --engine {wish.engine} says")
    if wish.variant:
        return Choice("spark", "it alone writes VARIANT")
    return choose(bytes_to_read(backend), cores_of(wish.master), machine_memory(), spark_missing(wish.master), SPEED)


def _by_python(session: Session, backend: Backend, wish: Wish) -> int:
    with progress(session) as steps:
        reading, writing = steps.step("reading logs", "bytes"), steps.step("writing", "documents")
        loader = Loader(backend, reading)
        state = loader.load() if wish.as_of is None else load_as_of(loader, wish.as_of, REAL)
        total = state.documents if writing else 0
        advance = (lambda count: writing(count, total)) if writing else None
        return write_state(state, wish.directory, wish.form, REAL, advance)


def _by_spark(session: Session, wish: Wish) -> int:
    missing = spark_missing(wish.master)
    if missing is not None:
        raise click.UsageError(missing)
    from opslog.spark.jobs import replay_into

    if not session.json:
        say("starting Spark, which takes some seconds")
    with progress(session) as steps:
        steps.step("starting Spark", "bytes")
        return replay_into(
            session.url,
            wish.directory,
            wish.form,
            as_of=wish.as_of,
            master=wish.master,
            variant=wish.variant,
            step=(lambda label: steps.step(label, "bytes")) if steps.are_watched else None,
        )
