"""Commands on documents: get, set, delete, undo, ls."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import orjson

from opslog.cli.output import answer, documents, id_text, is_terminal, report_error, say, visible, write, write_json
from opslog.cli.session import Session, StoreCommand, complete_id
from opslog.cli.values import Condition, document_id, matches, parse_document, where
from opslog.errors import NotFoundError


@click.command("get", cls=StoreCommand)
@click.argument("id", type=document_id, shell_complete=complete_id)
@click.pass_obj
def get_command(session: Session, id: str) -> int:
    """Print the document ID as JSON: indented at a terminal, otherwise on one line.

    Exit code 1: there is none.
    """
    with session.reading() as store:
        document = store.get(id)
    if document is None:
        return _missing(session, [id])
    if is_terminal() and not session.json:
        write(visible(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()))
    else:
        write_json(document)
    return 0


@click.command("set", cls=StoreCommand)
@click.argument("id", type=document_id, shell_complete=complete_id)
@click.argument("document", required=False)
@click.pass_obj
def set_command(session: Session, id: str, document: str | None) -> None:
    """Give the document ID a new value: the JSON object DOCUMENT, or, without it or with -, the one on stdin.

    Creates the store where there is none. On return it is on disk.
    """
    if document is None and sys.stdin.isatty():
        raise click.UsageError('give the document, as in: opslog set task-1 \'{"title": "Build API"}\'')
    if document is None or document == "-":
        value = parse_document(sys.stdin.buffer.read(), "stdin")
    else:
        value = parse_document(document.encode(errors="surrogateescape"), "DOCUMENT")
    with session.writing(create=True) as store:
        store[id] = value
    if session.json:
        write_json({"set": id})


@click.command("delete", cls=StoreCommand)
@click.argument("ids", type=document_id, nargs=-1, required=True, metavar="ID...", shell_complete=complete_id)
@click.pass_obj
def delete_command(session: Session, ids: Sequence[str]) -> int:
    """Delete documents, all of them in one commit.

    Exit code 1: one of them does not exist, and none was deleted.
    """
    wanted = list(dict.fromkeys(ids))
    with session.writing() as store:
        missing = [id for id in wanted if id not in store]
        if missing:
            return _missing(session, missing)
        with store.batch():
            for id in wanted:
                store.delete(id)
    if session.json:
        write_json({"deleted": wanted})
    return 0


@click.command("undo", cls=StoreCommand)
@click.pass_obj
def undo_command(session: Session) -> int:
    """Take back the newest commit of the agent (see --agent), a batch as a whole; later writes of others stay.

    Exit code 1: there is nothing left to undo.
    """
    with session.writing() as store:
        undone = store.undo()
    if session.json:
        write_json({"undone": undone})
    elif not undone:
        say(f"agent {session.agent!r} has nothing left to undo; --agent names another")
    return 0 if undone else 1


@click.command("ls", cls=StoreCommand)
@click.option(
    "--where",
    "-w",
    "conditions",
    type=where,
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only documents with this value; may be repeated.",
)
@click.option("--ids", is_flag=True, help="Only the ids.")
@click.pass_obj
def ls_command(session: Session, conditions: Sequence[Condition], ids: bool) -> None:
    """List documents in order of id, one per line: the id, a tab, the document."""
    fulfils = matches(conditions)
    with session.reading() as store:
        found = (record for record in store.records() if not conditions or fulfils(record.document))
        if ids:
            for record in found:
                answer(session, {"id": record.id}, id_text(record.id))
        else:
            documents(session, ((record.id, bytes(record.data)) for record in found))


def _missing(session: Session, ids: Sequence[str]) -> int:
    message = f"no document {', '.join(map(repr, ids))}"
    if not session.json:
        message += f" in {session.url}"
    return report_error(session, NotFoundError(message), 1, ids=list(ids))
