"""Output of commands: JSON for programs, tables for people at a terminal, plain lines in a pipe; errors on stderr.

Stored text never reaches a terminal as a control sequence: documents and ids are shown with such characters escaped.
"""

from __future__ import annotations

import errno
import os
import re
import select
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING

import orjson

from opslog.cli.session import Session
from opslog.environment import REAL, parse_ts
from opslog.errors import ConflictError, NotFoundError, OpslogError
from opslog.format.commits import Record, Set

if TYPE_CHECKING:
    from opslog.query.paths import Path

# Characters that reverse the direction of writing, so that a line reads as another one.
_DIRECTIONS = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROL = rf"[\x00-\x1f\x7f-\x9f\u2028\u2029{_DIRECTIONS}]"
# Of the control characters, and the line ends of Unicode, those that may stand in JSON text as they are.
_UNESCAPED_CONTROL = rf"[\x7f-\x9f\u2028\u2029{_DIRECTIONS}]"

# Compiled on first use: not all commands print for people, and these take long to compile.
_compiled = cache(re.compile)

# In a table, in characters: the gap between two columns, and the least width of the last one.
_GAP, _NARROWEST = 2, 10
# How many lines of a table decide how wide its columns are.
_MEASURED = 100


def is_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout.isatty()


def write(line: str | bytes) -> None:
    """One line on stdout, in UTF-8 whatever the locale."""
    data = line if isinstance(line, bytes) else line.encode(errors="surrogateescape")
    sys.stdout.buffer.write(data if data.endswith(b"\n") else data + b"\n")


def write_json(value: object) -> None:
    """A value as one line of JSON."""
    write(orjson.dumps(value))


def wait_while_read(seconds: float) -> None:
    """Wait, unless nobody reads our output any more. As long as there is nothing to write, no write would notice that.

    :raises BrokenPipeError: the reader is gone.
    """
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # errors are reported without asking for them
    events = output.poll(seconds * 1000)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in events):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    if events:
        REAL.sleep(seconds)  # a system that cannot poll this kind of file


@contextmanager
def on_stderr() -> Iterator[None]:
    """A block that prints on stderr. If that cannot be written, the command continues, because its exit code says how
    it ends."""
    try:
        yield
    except OSError:
        # What is buffered must not fail again when the interpreter exits, which would change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def say(message: str) -> None:
    """Print a message for a person, on stderr."""
    with on_stderr():
        print(f"opslog: {one_line(message)}", file=sys.stderr)


def report(session: Session, name: str, message: str, **details: object) -> None:
    """Report an error on stderr: as a sentence, or for programs as {"error": name, "message": …} with the details."""
    if not session.json:
        say(message)
        return
    result = {"error": name, "message": unicode_text(message)} | {
        key: unicode_text(value) if isinstance(value, str) else value for key, value in details.items()
    }
    with on_stderr():
        print(orjson.dumps(result).decode(), file=sys.stderr)


def report_error(session: Session, error: OpslogError, code: int, **details: object) -> int:
    """Report an error, with its place if it knows one, and return the exit code."""
    known = {name: getattr(error, name, None) for name in ("path", "offset", "place")}
    known = {name: value for name, value in known.items() if value not in (None, "")}
    report(session, type(error).__name__, str(error), **known, **details)
    return code


def report_missing(session: Session, ids: Sequence[str]) -> int:
    """Report that these documents do not exist, and return the exit code."""
    message = f"no document {', '.join(map(repr, ids))}"
    if not session.json:
        message += f" in {session.url}"
    return report_error(session, NotFoundError(message), 1, ids=list(ids))


def report_conflict(session: Session, error: ConflictError) -> int:
    """Report that a condition is not true, with the current document, and return the exit code."""
    now = None if error.record is None else signed(error.record)
    if session.json:
        return report_error(session, error, 1, id=error.id, now=now)
    report_error(session, error, 1)
    if error.record is not None:
        say(f"there now: {bytes(error.record.data).decode()}")
    return 1


def answer(session: Session, value: object, text: str) -> None:
    """A single result: `value` for programs, `text` for people."""
    if session.json:
        write_json(value)
    else:
        write(visible(text) if is_terminal() else text)


def local_time(ts: str) -> datetime:
    """A time from a log, in this machine's time zone."""
    return datetime.fromtimestamp(parse_ts(ts), UTC).astimezone()


def short_time(ts: str) -> str:
    """A time for a person: how long ago it was, or, on an earlier day, the local date and time."""
    here = local_time(ts)
    now = datetime.fromtimestamp(REAL.time(), UTC).astimezone()
    seconds = int((now - here).total_seconds())
    if not 0 <= seconds < 3600:
        return f"{here:%H:%M:%S}" if here.date() == now.date() else f"{here:%Y-%m-%d %H:%M}"
    return f"{seconds} s ago" if seconds < 60 else f"{seconds // 60} min ago"


def counted(count: int, noun: str) -> str:
    """A count with its noun: ``1 document``, ``200,000 documents``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def joined(parts: Sequence[str]) -> str:
    """A list in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def unicode_text(text: str) -> str:
    """The text, with escapes for bytes of an argument that are not UTF-8 (Python holds them as halves of surrogate
    pairs)."""
    return text.encode(errors="backslashreplace").decode()


def one_line(text: str) -> str:
    """Text that may contain file names of others: on one line, without control characters."""
    return _compiled(_CONTROL).sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def visible(text: str) -> str:
    """JSON text, or text with JSON strings in it, as a terminal may show it: without control characters."""
    return _compiled(_UNESCAPED_CONTROL).sub(_escaped, text)


def id_text(id: str) -> str:
    """The id as it is, or as a JSON string if it would not be one visible word on a line."""
    if id and not id.startswith('"') and not _compiled(_CONTROL).search(id):
        return id
    return orjson.dumps(id).decode()


class Shown:
    """The part of a document that is shown: all of it, or its values at some paths.

    :param columns: the paths; None: all of it.
    :ivar titles: of the columns of a table.
    """

    def __init__(self, columns: Sequence[Path] | None) -> None:
        self._columns = columns
        self.titles = ["document"] if columns is None else list(map(str, columns))

    def cells(self, record: Record) -> list[str]:
        """For a table: text as it is, other values as JSON, and a missing value as an empty cell."""
        if self._columns is None:
            return [bytes(record.data).decode() if isinstance(record, Set) else ""]
        found = self._values(record)
        return [_text(found[title]) if title in found else "" for title in self.titles]

    def fields(self, record: Record) -> dict[str, object]:
        """For programs."""
        if self._columns is not None:
            return {"columns": self._values(record)}
        return {"data": orjson.Fragment(bytes(record.data))} if isinstance(record, Set) else {}

    def _values(self, record: Record) -> dict[str, object]:
        """The values that exist, by path. A path with [*] has a list."""
        if not isinstance(record, Set):
            return {}
        from opslog.query.values import MISSING

        document = record.document
        found = {
            str(path): (list(path.values()(document, record)) or MISSING)
            if path.has_many
            else path.getter()(document, record)
            for path in self._columns or ()
        }
        return {path: value for path, value in found.items() if value is not MISSING}


def _text(value: object) -> str:
    return id_text(value) if isinstance(value, str) else orjson.dumps(value).decode()


def signed(record: Set, shown: Shown | None = None) -> dict[str, object]:
    """A document for programs, with who wrote it and when."""
    head: dict[str, object] = {
        "id": record.id,
        "stamp": str(record.stamp),
        "author": record.author,
        "ts": record.ts,
    }
    return head | (shown or Shown(None)).fields(record)


def documents(
    session: Session, found: Iterable[Set], columns: Sequence[Path] | None = None, *, stamps: bool = False
) -> None:
    """Print documents: as a table at a terminal, otherwise one per line.

    :param columns: as of `Shown`.
    :param stamps: print their stamps and authors, too.
    """
    shown = Shown(columns)
    if session.json:
        for record in found:
            write_json(signed(record, shown) if stamps else {"id": record.id} | shown.fields(record))
    else:
        lines = (
            [id_text(record.id), *([str(record.stamp), record.author] if stamps else []), *shown.cells(record)]
            for record in found
        )
        rows(["id", *(["stamp", "author"] if stamps else []), *shown.titles], lines)


def rows(titles: Sequence[str], lines: Iterable[Sequence[str]], *, paged: bool = True) -> None:
    """Print a table at a terminal, otherwise lines with tabs between the columns. The last column gets the width that
    the others leave. Each line is printed as soon as it is there, so the first lines decide how wide the columns are.

    :param paged: whether a table that is longer than the screen goes through the pager.
    """
    if not is_terminal():
        for line in lines:
            write("\t".join(line))
        return
    from rich.console import Console

    console = Console()
    waiting = ([visible(cell) for cell in line] for line in lines)
    first = list(islice(waiting, max(_MEASURED, console.height)))
    titles = [visible(title) for title in titles]
    table = Columns(titles, first, console.width)
    shown = (table.line(line) for line in chain([titles], first, waiting))
    if paged and len(first) >= console.height:
        import click

        os.environ.setdefault("LESS", "FRX")  # colours, and the screen stays as it is
        click.echo_via_pager(f"{line}\n" for line in shown)
    else:
        for line in shown:
            write(line)


class Columns:
    """The columns of a table at a terminal.

    :param first: the lines that decide the widths. A cell of a later line may be longer, because ids are shown whole.
    """

    def __init__(self, titles: Sequence[str], first: Sequence[Sequence[str]], width: int) -> None:
        from rich.cells import cell_len, set_cell_size

        self._cell_len, self._set_cell_size = cell_len, set_cell_size
        self._width = width
        self._widths = [max(map(cell_len, column)) for column in list(zip(titles, *first, strict=True))[:-1]]

    def line(self, cells: Sequence[str]) -> str:
        shown = ""
        for cell, width in zip(cells, self._widths, strict=False):
            # An id as wide as the screen must leave room for its document.
            text = self._cropped(cell, self._width // 2)
            shown += text + " " * (_GAP + max(0, min(width, self._width // 2) - self._cell_len(text)))
        return (shown + self._cropped(cells[-1], max(self._width - self._cell_len(shown), _NARROWEST))).rstrip()

    def _cropped(self, text: str, width: int) -> str:
        return text if self._cell_len(text) <= width else self._set_cell_size(text, width - 1).rstrip() + "…"
