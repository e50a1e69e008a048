"""Commands on single documents: get, set, delete, undo."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import orjson

from opslog.cli.output import (
    id_text,
    is_terminal,
    report_error,
    rows,
    say,
    signed,
    visible,
    write,
    write_json,
)
from opslog.cli.session import READS, WRITES, Session, StoreCommand, complete_id
from opslog.cli.values import as_of_option, document_id, parse_document, stamp_of_text
from opslog.errors import NotFoundError
from opslog.format.commits import Stamp
from opslog.replica.terms import NO_CONDITION
from opslog.store import replica_of

if TYPE_CHECKING:
    from opslog.history import Point


@click.command("get", cls=StoreCommand, options=READS)
@click.argument("id", type=document_id, shell_complete=complete_id)
@click.option("--stamp", is_flag=True, help="Before the document, its stamp (see set --if-stamp) and who wrote it.")
@as_of_option
@click.pass_obj
def get_command(session: Session, id: str, stamp: bool, as_of: Point | None) -> int:
    """Print the document ID as JSON: indented at a terminal, otherwise on one line.

    Exit code 1: there is none.
    """
    with session.reading(as_of) as store:
        record = store.record(id)
        if record is None:
            return _missing(session, [id])
        document = record.document
    if stamp and session.json:
        write_json(signed(record))
    elif is_terminal() and not session.json:
        before = f"{record.stamp}  {record.author}\n" if stamp else ""
        write(before + visible(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()))
    else:
        if stamp:
            sys.stdout.buffer.write(f"{record.stamp}\t{record.author}\t".encode())
        write_json(document)
    return 0


@click.command("set", cls=StoreCommand, options=WRITES)
@click.argument("id", type=document_id, shell_complete=complete_id)
@click.argument("document", required=False)
@click.option("--create", is_flag=True, help="Only if there is no such document: of all who try, one succeeds.")
@click.option(
    "--if-stamp",
    type=stamp_of_text,
    metavar="STAMP",
    help="Only if the document still has this stamp (see get --stamp).",
)
@click.pass_obj
def set_command(session: Session, id: str, document: str | None, create: bool, if_stamp: Stamp | None) -> None:
    """Give the document ID a new value: the JSON object DOCUMENT, or, without it or with -, the one on stdin.

    Creates the store where there is none. On return it is on disk.

    Exit code 1: it exists, or has another stamp; nothing was written, and stderr says what is there now.
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
        if create:
            store.create(id, value)
        else:
            store.set(id, value, if_stamp=NO_CONDITION if if_stamp is None else if_stamp)
        now = store.record(id) if session.json else None
    if now is not None:
        write_json({"set": id, "stamp": str(now.stamp)})


@click.command("delete", cls=StoreCommand, options=WRITES)
@click.argument("ids", type=document_id, nargs=-1, required=True, metavar="ID...", shell_complete=complete_id)
@click.option(
    "--if-stamp",
    type=stamp_of_text,
    metavar="STAMP",
    help="Only if the one document still has this stamp (see get --stamp).",
)
@click.pass_obj
def delete_command(session: Session, ids: Sequence[str], if_stamp: Stamp | None) -> int:
    """Delete documents, all of them in one commit.

    Exit code 1: one of them does not exist, or has another stamp; nothing was deleted.
    """
    wanted = list(dict.fromkeys(ids))
    if if_stamp is not None and len(wanted) > 1:
        raise click.UsageError("--if-stamp is the stamp of one document: delete them one by one")
    with session.writing() as store:
        missing = [id for id in wanted if id not in store]
        if missing:
            return _missing(session, missing)
        if if_stamp is not None:
            store.delete(wanted[0], if_stamp=if_stamp)
        else:
            with store.batch():
                for id in wanted:
                    store.delete(id)
    if session.json:
        write_json({"deleted": wanted})
    return 0


@click.command("undo", cls=StoreCommand, options=WRITES)
@click.pass_obj
def undo_command(session: Session) -> int:
    """Take back the newest commit of the agent (see --agent), a batch as a whole; later writes of others stay.

    Prints what its documents are now, one per line: the id, a tab, the document, or the word deleted.

    Exit code 1: there is nothing left to undo, or it was a transaction and others have written its documents since.
    """
    with session.writing() as store:
        ids = replica_of(store).undo()
        now = [(id, store.record(id)) for id in ids or ()]
    if session.json:
        documents = [
            {"id": id, "data": None if record is None else orjson.Fragment(bytes(record.data))} for id, record in now
        ]
        write_json({"undone": ids is not None, "documents": documents})
    elif ids is None:
        say(f"agent {session.agent!r} has nothing left to undo; --agent names another")
    else:
        lines = [[id_text(id), "deleted" if record is None else bytes(record.data).decode()] for id, record in now]
        rows(["id", "document now"], lines)
    return 1 if ids is None else 0


def _missing(session: Session, ids: Sequence[str]) -> int:
    message = f"no document {', '.join(map(repr, ids))}"
    if not session.json:
        message += f" in {session.url}"
    return report_error(session, NotFoundError(message), 1, ids=list(ids))
