"""The command that reads a document: get."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opslog.cli.options import READS, StoreCommand, complete_id
from opslog.cli.reading import print_document
from opslog.cli.session import Session
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
    return print_document(session, id, stamp=stamp, as_of=as_of)
