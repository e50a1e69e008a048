"""The command that reads the feed of changes: changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click
import orjson

import opslog
from opslog.cli.options import READS, StoreCommand, every_option
from opslog.cli.output import id_text, is_terminal, rows, wait_while_read, write, write_json
from opslog.cli.session import Session
from opslog.cli.values import Count
from opslog.environment import REAL


@click.command("changes", cls=StoreCommand, options=READS)
@click.option("--since", metavar="TOKEN", help="Begin where an earlier call ended; default: everything there is.")
@click.option("--limit", type=Count(1), metavar="N", help="Stop after about N commits.")
@click.option("--follow", is_flag=True, help="Continue until Ctrl-C.")
@every_option("How often --follow asks.")
@click.pass_obj
def changes_command(session: Session, since: str | None, limit: int | None, follow: bool, every: float) -> None:
    """Show the documents that changed since a token, each once in its present state. The last line has the token to
    continue from.

    Without --since, or if the changes since then are no longer kept, the first line is `reset`, and all documents
    follow.
    """
    if follow and limit is not None:
        raise click.UsageError("--limit stops, and --follow does not: give only one of them")
    try:
        with session.reading(environment=replace(REAL, sleep=wait_while_read)) as store:
            for changes in store.follow(since, every) if follow else [store.changes(since, limit)]:
                _show(session, changes, paged=not follow)
                sys.stdout.flush()
    except KeyboardInterrupt:
        if not follow:
            raise


def _show(session: Session, changes: opslog.Changes[Any], *, paged: bool) -> None:
    if session.json:
        if changes.reset:
            write_json({"op": "reset"})
        for change in changes:
            write_json(_fields(change))
        write_json({"op": "token", "token": changes.token, "commits": list(map(_effect, changes.commits))})
    else:
        rows(["op", "id", "document"], _rows(changes), paged=paged)
        # Never cut to the width of the terminal, because people copy it.
        write(f"go on with --since {changes.token}" if is_terminal() else f"token\t\t{changes.token}")


def _rows(changes: opslog.Changes[Any]) -> Iterator[list[str]]:
    if changes.reset:
        yield ["reset", "", ""]
    for change in changes:
        record = change.record
        if isinstance(record, opslog.Set):
            yield ["set", id_text(change.id), bytes(record.data).decode()]
        else:
            yield ["delete", id_text(change.id), ""]


def _fields(change: opslog.Change[Any]) -> dict[str, object]:
    record = change.record
    is_set = isinstance(record, opslog.Set)
    fields: dict[str, object] = {"op": "set" if is_set else "delete", "id": change.id, "existed": change.existed}
    if record is not None:
        fields |= {"ts": record.ts, "clock": record.clock, "agent": record.agent, "author": record.author}
    if isinstance(record, opslog.Set):
        fields |= {"data": orjson.Fragment(bytes(record.data)), "v": record.v}
    return fields


def _effect(effect: opslog.Effect) -> dict[str, object]:
    clock, agent = effect.stamp
    return {
        "ts": effect.ts,
        "clock": clock,
        "agent": agent,
        "author": effect.author,
        "op": effect.op,
        "ids": effect.ids,
        "won": effect.won,
    }
