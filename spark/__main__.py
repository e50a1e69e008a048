"""python -m opslog.spark: replay and compaction by Spark, as jobs of their own, also for `spark-submit`.

spark-submit --master … $(python -m opslog.spark path) compact s3://bucket/tasks
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import click

from opslog.cli.maintenance import report_compaction
from opslog.cli.options import READS, StoreCommand, common_options
from opslog.cli.program import run
from opslog.cli.replay import replay_command
from opslog.cli.session import Session
from opslog.cli.values import keep
from opslog.compaction.compact import Compaction, KeepHistory
from opslog.errors import LockedError

app = click.Group(
    "opslog.spark",
    help="Replay and compact a store with Spark.",
    epilog="Exit code: 0 done, 2 wrong usage, 3 the store or Spark failed.",
    params=common_options(environment=True, shown=READS),
    context_settings={"help_option_names": ["-h", "--help"], "default_map": {"replay": {"engine": "spark"}}},
)


@app.command("compact", cls=StoreCommand, options=READS)
@click.argument("url", required=False, metavar="[STORE]")
@click.option("--master", metavar="URL", help="Where Spark runs, as in spark-submit.")
@click.option("--full", is_flag=True, help="Merge the whole snapshot into one run, and remove old tombstones.")
@click.option("--keep-history", type=keep, metavar="DURATION|forever", help="As in `opslog compact`.")
@click.pass_obj
def compact_command(
    session: Session, *, url: str | None, master: str | None, full: bool, keep_history: KeepHistory | None
) -> None:
    """Compact the settled commits of all logs into the snapshot, and delete files that are no longer needed."""
    from opslog.spark.compaction.compacting import compact
    from opslog.spark.jobs import running

    session.store = session.store if url is None else url
    with session.existing():
        pass
    done, locked = Compaction(), None
    with running("opslog compact", master) as spark:
        try:
            done = compact(spark, session.url, full=full, keep_history=keep_history)
        except LockedError as error:
            locked = error
    report_compaction(session, done, locked)


@app.command("path")
def path_command() -> None:
    """Print the path of this program, for spark-submit."""
    click.echo(Path(__file__).absolute())


app.add_command(replay_command)

if __name__ == "__main__":
    # Under spark-submit this file is a script, and Python searches its folder first for modules.
    with suppress(ValueError):
        sys.path.remove(str(Path(__file__).parent))
    sys.exit(run(sys.argv[1:], app, "python -m opslog.spark"))
