"""Commands that maintain a store: compact, archive, stats, verify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

import click
import msgspec

import opslog
from opslog.archive import archive_documents, list_periods, read_archive
from opslog.cli.options import READS, WRITES, StoreCommand
from opslog.cli.output import (
    answer,
    counted,
    documents,
    is_terminal,
    one_line,
    report_error,
    rows,
    say,
    write,
    write_json,
)
from opslog.cli.progress import progress, size_text
from opslog.cli.session import Session
from opslog.cli.values import duration, keep, where_option
from opslog.environment import REAL, format_ts
from opslog.format.layout import check_name
from opslog.query.conditions import Condition, compiled
from opslog.query.question import all_of
from opslog.store import replica_of

if TYPE_CHECKING:
    from opslog.compaction.compact import Compaction, KeepHistory


@click.command("compact", cls=StoreCommand, options=READS)
@click.option("--full", is_flag=True, help="Merge the whole snapshot into one run, and remove old tombstones.")
@click.option(
    "--keep-history",
    type=keep,
    metavar="DURATION|forever",
    help="From now on keep superseded files this long, for reading the past: 30d, forever.",
)
@click.pass_obj
def compact_command(session: Session, full: bool, keep_history: KeepHistory | None) -> None:
    """Compact the settled commits of all logs into the snapshot, and delete files that are no longer needed.

    It may run while others read and write, and takes no agent's name. If another compaction is running, this one does
    nothing; that is not an error.
    """
    from opslog.compaction.compact import Compaction, compact

    done, locked = Compaction(), None
    with session.existing() as backend, progress(session) as steps:
        step = steps.step("compacting", "documents")
        try:
            done = compact(backend, REAL, full=full, keep_history=keep_history, progress=step)
        except opslog.LockedError as error:
            locked = error
    report_compaction(session, done, locked)


def report_compaction(session: Session, done: Compaction, locked: opslog.LockedError | None) -> None:
    """Report what a compaction did.

    :param locked: the error with which it ended at once, because another one was running; None: it ran.
    """
    if locked is not None and not session.json:
        say(f"another compaction is running: {locked}")
    if done.garbage_error is not None and not session.json:
        say(f"files that nobody needs any more were not deleted; the next compaction tries again: {done.garbage_error}")
    result = {
        "manifest": done.number,
        "commits": done.commits,
        "records": done.records,
        "bytes": done.bytes,
        "runs_merged": done.runs_merged,
        "sealed": list(done.sealed),
        "garbage_files": len(done.garbage.paths),
        "garbage_bytes": done.garbage.bytes,
        "garbage_error": done.garbage_error,
        "locked": locked is not None,
    }
    if done.number is None:
        text = "nothing to do"
    elif not (done.commits or done.records or done.garbage.paths):
        text = f"nothing to compact; wrote manifest {done.number}"
    else:
        text = (
            f"compacted {counted(done.commits, 'commit')} into manifest {done.number}; wrote "
            f"{counted(done.records, 'record')}, {size_text(done.bytes)}; deleted "
            f"{counted(len(done.garbage.paths), 'file')}, {size_text(done.garbage.bytes)}"
        )
    answer(session, result, text)


@click.command("archive", cls=StoreCommand, options=WRITES)
@where_option("Documents that fulfil this, as for ls; may be repeated.")
@click.option(
    "--older-than",
    type=duration,
    metavar="DURATION",
    help="Documents that were last written longer ago than this: 90d.",
)
@click.option("--period", metavar="NAME", help="The archive's name. Default: the current quarter, as in 2026-Q4.")
@click.option("--dry-run", is_flag=True, help="Print the documents that would be moved, and move nothing.")
@click.option("--list", "listing", is_flag=True, help="Print the periods that have archives, and move nothing.")
@click.option("--load", metavar="PERIOD", help="Print the documents of this archive, and move nothing.")
@click.pass_obj
def archive_command(
    session: Session,
    *,
    conditions: Sequence[Condition],
    older_than: timedelta | None,
    period: str | None,
    dry_run: bool,
    listing: bool,
    load: str | None,
) -> int:
    """Move documents out of the store into an archive: those that fulfil every given condition.

    Exit code 1: --load names an archive that does not exist.
    """
    moving = bool(conditions) or older_than is not None or period is not None or dry_run
    if moving + listing + (load is not None) > 1:
        raise click.UsageError("--list and --load stand alone: they move nothing")
    if listing:
        return _list(session)
    if load is not None:
        return _load(session, load)
    if not conditions and older_than is None:
        raise click.UsageError("say which documents: --where CONDITION, --older-than DURATION, or both")
    if dry_run:
        return _preview(session, conditions, older_than)
    with session.writing() as store:
        count = archive_documents(replica_of(store), all_of(conditions), period, older_than)
    answer(session, {"archived": count}, f"archived {counted(count, 'document')}")
    return 0


def _preview(session: Session, conditions: Sequence[Condition], older_than: timedelta | None) -> int:
    before = None if older_than is None else format_ts(REAL.time() - older_than.total_seconds())
    fulfils = compiled(all_of(conditions))
    with session.reading() as store:
        found = (
            record
            for record in store.records()
            if (before is None or record.ts < before) and fulfils(record.document, record)
        )
        documents(session, found)
    return 0


def _list(session: Session) -> int:
    with session.existing() as backend:
        for period in list_periods(backend):
            answer(session, {"period": period}, period)
    return 0


def _load(session: Session, period: str) -> int:
    with session.existing() as backend:
        try:
            records = read_archive(backend, check_name(period, "period"))
        except opslog.MissingFileError:
            raise
        except opslog.NotFoundError as error:
            return report_error(session, error, 1)
    documents(session, (records[id] for id in sorted(records)))
    return 0


@click.command("stats", cls=StoreCommand, options=READS)
@click.pass_obj
def stats_command(session: Session) -> None:
    """Show figures of the store: documents, agents, commits, sizes."""
    with session.reading() as store:
        stats = msgspec.structs.asdict(store.stats())
    # These figures are about this process, which has only just begun.
    for name in ("compaction_error", "requests", "kernel", "cached_documents", "cached_bytes"):
        del stats[name]
    if session.json:
        write_json(stats)
    else:
        rows(["figure", "value"], ([name.replace("_", " "), _figure(value)] for name, value in stats.items()))


def _figure(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and is_terminal() else str(value)


@click.command("verify", cls=StoreCommand, options=READS)
@click.argument("path", required=False, metavar="[STORE]")
@click.option("--repair", is_flag=True, help="Put right what can be without losing anything; moves, never deletes.")
@click.pass_obj
def verify_command(session: Session, path: str | None, repair: bool) -> int:
    """Read every file of the store (STORE, or the one that --store names) and check it, beside running writers.

    Exit code 3: something is damaged. Notes, such as a line torn by a crash, are normal.
    """
    from opslog.verify.verify import verify

    session.store = session.store if path is None else path
    with session.storage() as backend, progress(session) as steps:
        report = verify(backend, repair=repair, progress=steps.step("verifying", "bytes"))
    if session.json:
        write_json({"ok": report.ok, **asdict(report)})
        return 0 if report.ok else 3
    for done in report.repaired:
        write(one_line(f"repaired: {done}"))
    for problem in report.problems:
        write(one_line(f"{problem.severity}: {problem}"))
    write(
        f"{'ok' if report.ok else 'DAMAGED'}: checked {counted(report.segments, 'segment')} with "
        f"{counted(report.commits, 'commit')}, {counted(report.manifests, 'manifest')}, "
        f"{counted(report.parts, 'part')} and {counted(report.archives, 'archive')} with "
        f"{counted(report.records, 'record')}, {size_text(report.bytes)}"
    )
    return 0 if report.ok else 3
