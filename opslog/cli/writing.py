"""Commands that write documents: set, delete, undo."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import msgspec
import orjson

from opslog.cli.options import WRITES, StoreCommand, complete_id
from opslog.cli.output import id_text, report_missing, rows, say, write_json
from opslog.cli.session import Session
from opslog.cli.values import document_id, parse_document, stamp
from opslog.doors.operations import Operations
from opslog.doors.values import Op


@click.command("set", cls=StoreCommand, options=WRITES)
@click.argument("id", type=document_id, shell_complete=complete_id)
@click.argument("document", required=False)
@click.option("--create", is_flag=True, help="Only if it does not exist. If several agents try, one succeeds.")
@click.option(
    "--if-stamp",
    type=stamp,
    metavar="STAMP",
    help="Only if the document still has this stamp (see get --stamp).",
)
@click.pass_obj
def set_command(session: Session, id: str, document: str | None, create: bool, if_stamp: str | None) -> None:
    """Give the document ID a new value: the JSON object DOCUMENT, or the one on stdin (without DOCUMENT, or with -).

    Creates the store if it does not exist. On return the document is on disk.

    Exit code 1: it exists, or has another stamp; nothing was written, and stderr shows the current document.
    """
    if create and if_stamp is not None:
        raise click.UsageError("--create is for a document that does not exist, --if-stamp for one that does")
    if document is None and sys.stdin.isatty():
        raise click.UsageError('give the document, as in: opslog set task-1 \'{"title": "Build API"}\'')
    if document is None or document == "-":
        value = parse_document(sys.stdin.buffer.read(), "stdin")
    else:
        value = parse_document(document.encode(errors="surrogateescape"), "DOCUMENT")
    with session.writing(create=True) as store:
        door = Operations(store, plain=True)
        written = door.create(id, value) if create else door.set(id, value, if_stamp=_condition(if_stamp))
    if session.json:
        write_json({"set": id, "stamp": written.stamp})


@click.command("delete", cls=StoreCommand, options=WRITES)
@click.argument("ids", type=document_id, nargs=-1, required=True, metavar="ID...", shell_complete=complete_id)
@click.option(
    "--if-stamp",
    type=stamp,
    metavar="STAMP",
    help="Only if the one document still has this stamp (see get --stamp).",
)
@click.pass_obj
def delete_command(session: Session, ids: Sequence[str], if_stamp: str | None) -> int:
    """Delete documents, all of them in one commit.

    Exit code 1: one of them does not exist, or has another stamp; nothing was deleted.
    """
    wanted = list(dict.fromkeys(ids))
    if if_stamp is not None and len(wanted) > 1:
        raise click.UsageError("--if-stamp is the stamp of one document: delete them one by one")
    with session.writing() as store:
        missing = [id for id in wanted if id not in store]
        if missing:
            return report_missing(session, missing)
        Operations(store, plain=True).batch([Op("delete", id, None, _condition(if_stamp)) for id in wanted])
    if session.json:
        write_json({"deleted": wanted})
    return 0


@click.command("undo", cls=StoreCommand, options=WRITES)
@click.pass_obj
def undo_command(session: Session) -> int:
    """Undo the newest commit of the agent (see --agent), a batch as a whole. Later writes of others stay.

    Prints its documents as they are now, one per line: the id, a tab, and the document or the word deleted.

    Exit code 1: there is nothing left to undo; or it was a transaction, and others have written its documents since.
    """
    with session.writing() as store:
        undone = Operations(store, plain=True).undo()
        now = [(id, store.record(id)) for id in undone.ids]
    if session.json:
        documents = [
            {"id": id, "data": None if record is None else orjson.Fragment(bytes(record.data))} for id, record in now
        ]
        write_json({"undone": undone.undone, "documents": documents})
    elif not undone.undone:
        say(f"agent {session.author!r} has nothing left to undo; --agent names another")
    else:
        lines = [[id_text(id), "deleted" if record is None else bytes(record.data).decode()] for id, record in now]
        rows(["id", "document now"], lines)
    return 0 if undone.undone else 1


def _condition(if_stamp: str | None) -> str | msgspec.UnsetType:
    return msgspec.UNSET if if_stamp is None else if_stamp
