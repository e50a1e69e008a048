"""How commands answer: JSON for programs, tables for people at a terminal, plain lines in a pipe; progress on
stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import orjson

from opslog.cli.session import Session


def is_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout.isatty()


def write(line: str | bytes) -> None:
    """One line on stdout, in UTF-8 whatever the locale."""
    data = line if isinstance(line, bytes) else line.encode()
    sys.stdout.buffer.write(data if data.endswith(b"\n") else data + b"\n")


def write_json(value: object) -> None:
    """A value as one line of JSON."""
    write(orjson.dumps(value))


def json_text(value: object) -> str:
    return orjson.dumps(value).decode()


def say(message: str) -> None:
    """Tell a person something beside the answer."""
    click.echo(message, err=True)


def answer(session: Session, value: object, text: str) -> None:
    """A single result: `value` for programs, `text` for people."""
    if session.json:
        write_json(value)
    else:
        write(text)


def rows(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """A table at a terminal, whose last column is cut to its width; otherwise lines with tabs between the columns."""
    if not is_terminal():
        for line in lines:
            write("\t".join(line))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in titles:
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    Console().print(table)


@contextmanager
def progress(session: Session, label: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr if a person watches, to be called with (done, total); None if nobody does.

    A total of 0 means that nobody knows it.
    """
    if session.json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns: tuple[Any, ...] = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
