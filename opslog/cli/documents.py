"""Commands on documents: get, set, delete, undo, ls."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import orjson

from opslog.cli.output import is_terminal, json_text, rows, say, write, write_json
from opslog.cli.session import Session, StoreCommand, complete_id
from opslog.cli.values import Condition, matches, parse_document, where


@click.command("get", cls=StoreCommand)
@click.argument("id", shell_complete=complete_id)
@click.pass_obj
def get_command(session: Session, id: str) -> int:
    """Print the document ID as JSON: indented at a terminal, otherwise on one line.

    Exit code 1: there is none.
    """
    with session.reading() as store:
        document = store.get(id)
    if document is None:
        return _missing(session, [id])
    pretty = is_terminal() and not session.json
    write(orjson.dumps(document, option=orjson.OPT_INDENT_2 if pretty else None))
    return 0


@click.command("set", cls=StoreCommand)
@click.argument("id", shell_complete=complete_id)
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
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_id)
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
        say(f"opslog: agent {session.agent!r} has nothing left to undo; --agent names another")
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
    with session.reading() as store:
        found = store.filter(matches(conditions)) if conditions else store.items()
        if session.json:
            for id, document in found:
                write_json({"id": id} if ids else {"id": id, "data": document})
        elif ids:
            for id, _ in found:
                write(id)
        else:
            rows(["id", "document"], ([id, json_text(document)] for id, document in found))


def _missing(session: Session, ids: Sequence[str]) -> int:
    names = ", ".join(map(repr, ids))
    if session.json:
        say(json_text({"error": "NotFoundError", "message": f"no document {names}", "ids": list(ids)}))
    else:
        say(f"opslog: no document {names} in {session.url}")
    return 1
