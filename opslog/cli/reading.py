"""What `opslog get` does, and the calls of it that need no click: scripts call it in loops, and importing click takes
longer than reading a document."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import orjson

from opslog.cli.output import is_terminal, report_missing, signed, visible, write, write_json
from opslog.cli.session import COMPLETE, Session
from opslog.errors import InvalidNameError
from opslog.format.documents import check_id

if TYPE_CHECKING:
    from opslog.history import Point


def print_document(session: Session, id: str, *, stamp: bool = False, as_of: Point | None = None) -> int:
    """Print a document, and return the exit code. A document that does not exist is reported.

    :param stamp: print its stamp and author, too.
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


def plain_get(arguments: Sequence[str]) -> tuple[Session, str] | None:
    """The session and the id of a call ``get ID`` that has no options but ``--store`` and ``--json``. None for every
    other call, and for a wrong one: click reads those."""
    session = Session(store=os.environ.get("OPSLOG_STORE"))
    words = []
    rest = iter(arguments)
    for word in rest:
        if word in ("--store", "-s"):
            session.store = next(rest, None)
        elif word == "--json":
            session.json = True
        else:
            words.append(word)
    if words[:1] != ["get"] or len(words) != 2 or os.environ.get(COMPLETE):
        return None
    if not session.store or any(word.startswith("-") for word in (words[1], session.store)):
        return None
    try:
        return session, check_id(words[1])
    except InvalidNameError:
        return None
