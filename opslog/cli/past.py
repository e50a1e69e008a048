"""Commands on commits: history, ops, watch."""

from __future__ import annotations

import shutil
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import click

import opslog
from opslog.cli.options import READS, StoreCommand, complete_id, every_option
from opslog.cli.output import (
    Columns,
    Shown,
    id_text,
    is_terminal,
    local_time,
    report_error,
    rows,
    short_time,
    visible,
    wait_while_read,
    write,
    write_json,
)
from opslog.cli.session import Session
from opslog.cli.values import Count, columns_option, document_id
from opslog.environment import REAL
from opslog.format.commits import SetOp, described_line
from opslog.query.paths import Path

_limit_option = click.option(
    "--limit", type=Count(), metavar="N", help="Only the newest N of them, still oldest first."
)


@click.command("history", cls=StoreCommand, options=READS)
@click.argument("id", type=document_id, shell_complete=complete_id)
@columns_option
@_limit_option
@click.pass_obj
def history_command(session: Session, id: str, columns: Sequence[Path] | None, limit: int | None) -> int:
    """Show what happened to the document ID, oldest first, as far back as logs are kept.

    Exit code 1: nothing is known about it.
    """
    with session.reading() as store:
        revisions = store.history(id)
    if not revisions:
        error = opslog.NotFoundError(f"nothing is known of a document {id!r} in {session.url}")
        return report_error(session, error, 1, ids=[id])
    if limit is not None:
        revisions = revisions[max(0, len(revisions) - limit) :]
    shown = Shown(columns)
    if session.json:
        for revision in revisions:
            write_json(_revision(revision, shown))
    else:
        titles = ["clock", "time", "author", "op", "", *shown.titles]
        rows(titles, (_revision_row(revision, shown) for revision in revisions))
    return 0


@click.command("ops", cls=StoreCommand, options=READS)
@click.option("--since", type=Count(), metavar="CLOCK", help="Only commits with a greater clock.")
@click.option("--by", metavar="NAME", help="Only commits that this agent made.")
@_limit_option
@click.pass_obj
def ops_command(session: Session, since: int | None, by: str | None, limit: int | None) -> None:
    """Show the kept commits of all agents, in the order of their clocks: as log lines, or as a table at a terminal.

    A clock is not a cursor, because a later commit may have a smaller clock. To continue from where you stopped, use
    `changes`.
    """
    with session.reading() as store:
        commits = (commit for commit in store.ops(since) if by is None or commit.author == by)
        _show(session, commits if limit is None else deque(commits, limit))


@click.command("watch", cls=StoreCommand, options=READS)
@every_option("How often to read new commits.")
@click.pass_obj
def watch_command(session: Session, every: float) -> None:
    """Show the commits of all agents as they come, until Ctrl-C: as log lines, or, at a terminal, with a line for each
    document. Takes no agent's name."""
    try:
        with session.reading(environment=replace(REAL, sleep=wait_while_read)) as store:
            for commit in store.watch(every):
                for line in [described_line(commit)] if session.json or not is_terminal() else _watched(commit):
                    write(line)
                sys.stdout.flush()
    except KeyboardInterrupt:
        pass  # the usual end of this command


def _show(session: Session, commits: Iterable[opslog.Commit]) -> None:
    if is_terminal() and not session.json:
        rows(["clock", "time", "author", "op", "what"], map(_commit_row, commits))
        return
    for commit in commits:
        write(described_line(commit))


def _watched(commit: opslog.Commit) -> Iterator[str]:
    """A line for each document that a commit wrote or restored."""
    time = f"{local_time(commit.ts):%H:%M:%S}"
    columns = Columns(["12:00:00", "planner", "delete", "task-000", ""], [], shutil.get_terminal_size().columns)
    if isinstance(commit, opslog.Undo):
        for id in commit.ids:
            yield columns.line([time, commit.author, "undo", id_text(id), f"took back its commit {commit.target}"])
        return
    for record in commit.records:
        document = bytes(record.data).decode() if isinstance(record, opslog.Set | SetOp) else ""
        yield columns.line([time, commit.author, record.op, id_text(record.id), visible(document)])


def _commit_row(commit: opslog.Commit) -> list[str]:
    if isinstance(commit, opslog.Undo):
        what = f"of {commit.target}: {', '.join(map(id_text, commit.ids))}"
    elif isinstance(commit, opslog.Set):
        what = f"{id_text(commit.id)} {bytes(commit.data).decode()}"
    else:
        what = ", ".join(id_text(record.id) for record in commit.records)
    return [str(commit.clock), _time(commit.ts), commit.author, commit.op, what]


def _revision_row(revision: opslog.Revision, shown: Shown) -> list[str]:
    record = revision.record
    undone = "undone" if revision.undone else ""
    return [str(record.clock), _time(record.ts), record.author, record.op, undone, *shown.cells(record)]


def _time(ts: str) -> str:
    return short_time(ts) if is_terminal() else ts


def _revision(revision: opslog.Revision, shown: Shown) -> dict[str, object]:
    record = revision.record
    result: dict[str, object] = {
        "ts": record.ts,
        "clock": record.clock,
        "agent": record.agent,
        "author": record.author,
        "op": record.op,
        "id": record.id,
        "undone": revision.undone,
    }
    if isinstance(record, opslog.Set):
        result |= shown.fields(record) | {"v": record.v}
    elif record.archived is not None:
        result["archived"] = record.archived
    return result
