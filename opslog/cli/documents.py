"""The command that reads a document: get."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
import orjson

from opslog.cli.output import is_terminal, report_missing, signed, visible, write, write_json
from opslog.cli.session import READS, Session, StoreCommand, complete_id
from opslog.cli.values import as_of_option, document_id

if TYPE_CHECKING:
    from opslog.history import Point


@click.command("get", cls=StoreCommand, options=READS)
@click.argument("id", type=document_id, shell_complete=complete_id)
@click.option("--stamp", is_flag=True, help="Print its stamp (see set --if-stamp) and author before the document.")
@as_of_option
@click.pass_obj
def get_command(session: Session, id: str, stamp: bool, as_of: Point | None) -> int:
    """Print the document ID as JSON: indented at a terminal, otherwise on one line.

    Exit code 1: it does not exist.
    """
    with session.reading(as_of) as store:
        record = store.record(id)
        if record is None:
            return report_missing(session, [id])
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
