"""Values of arguments and options: conditions, durations, points in the past, documents."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from opslog.errors import CorruptError, InvalidDocumentError, InvalidNameError, QueryError, UsageError
from opslog.format.commits import Stamp
from opslog.format.documents import Document, check_id

if TYPE_CHECKING:  # each command loads what it uses
    from opslog.compaction.compact import KeepHistory
    from opslog.history import Point
    from opslog.query.conditions import Condition
    from opslog.query.paths import Path
    from opslog.query.question import Order

_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
# A hundred years. A time that long ago is still a date.
_LONGEST = timedelta(days=36_500)
# Far beyond what can be counted, and yet the sum of two of them has no more than the 64 bits that iterators take.
_COUNT_MAX = 2**53 - 1


class Count(click.IntRange):
    """A whole number: of things, or of bytes.

    :param min: the smallest.
    """

    def __init__(self, min: int = 0) -> None:
        super().__init__(min)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = super().convert(value, param, ctx)
        if number > _COUNT_MAX:
            self.fail(f"{value} is more than {_COUNT_MAX}, the largest number that is possible here.", param, ctx)
        return number


class Number(click.FloatRange):
    """A number in a range. NaN is in none, though click accepts it in each."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


def document_id(text: str) -> str:
    """An id that a document can have."""
    try:
        return check_id(text)
    except InvalidNameError as error:
        raise click.BadParameter(str(error)) from error


def stamp(text: str) -> str:
    """``1042@planner``: what `get --stamp` prints."""
    try:
        return str(Stamp.parse(text))
    except UsageError as error:
        raise click.BadParameter(str(error)) from error


def where(text: str) -> Condition:
    """A condition in the language of `find`."""
    from opslog.query.text import parse_text

    try:
        return parse_text(text)
    except QueryError as error:
        raise click.BadParameter(str(error)) from error


def where_option(what: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """The option for conditions, all of which must be fulfilled. `what` is its help."""
    return click.option("--where", "-w", "conditions", type=where, multiple=True, metavar="CONDITION", help=what)


def order(text: str) -> Order:
    """A path to sort by, with a minus before it for descending order."""
    from opslog.query.question import parse_order

    try:
        return parse_order(text)[0]
    except QueryError as error:
        raise click.BadParameter(str(error)) from error


def path(text: str) -> Path:
    """A path, which names a value in a document."""
    from opslog.query.paths import parse_path

    try:
        return parse_path(text)
    except QueryError as error:
        raise click.BadParameter(str(error)) from error


def columns(text: str) -> tuple[Path, ...]:
    """Paths with commas between them."""
    from opslog.query.faults import Fault
    from opslog.query.paths import scan_path

    found = []
    at = -1  # of the comma
    try:
        while True:
            found_path, at = scan_path(text, _after_spaces(text, at + 1))
            found.append(found_path)
            at = _after_spaces(text, at)
            if at == len(text):
                return tuple(found)
            if text[at] != ",":
                raise Fault(
                    'a comma or the end is expected here; other signs in a name need quotes, as in "due date"', at
                )
    except Fault as fault:
        raise click.BadParameter(str(fault.in_text(text))) from None


def _after_spaces(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())


def columns_option(function: click.decorators.FC) -> click.decorators.FC:
    """The option of commands that show documents."""
    what = "Show the values at these paths instead of the whole document: 'status, due.year, @author'."
    return click.option("--columns", type=columns, metavar="PATH,...", help=what)(function)


def duration(text: str) -> timedelta:
    """``30d``, ``12h``: a number with s, m, h, d or w."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text, re.ASCII)
    if not match:
        raise click.BadParameter(f"{text!r} is no duration: write it as 90s, 15m, 12h, 30d or 4w")
    seconds = float(match[1]) * _UNITS[match[2]].total_seconds()
    if seconds > _LONGEST.total_seconds():
        raise click.BadParameter(f"{text!r} is too long: the longest is {_LONGEST.days}d")
    return timedelta(seconds=seconds)


def keep(text: str) -> KeepHistory:
    """A duration, or ``forever``."""
    return "forever" if text == "forever" else duration(text)


def point(text: str) -> Point:
    """A clock, if it has only digits; otherwise a time, which is checked where it is used."""
    # No clock has more than 19 digits, and Python refuses to convert thousands of them.
    return int(text) if text.isdecimal() and len(text) < 20 else text


def as_of_option(function: click.decorators.FC) -> click.decorators.FC:
    """The option of commands that can show the past."""
    what = "The state as it was: at a clock, or as in 2026-11-20T12:00:00Z."
    return click.option("--as-of", type=point, metavar="CLOCK|TIME", help=what)(function)


def parse_document(text: bytes, source: str) -> Document:
    """The JSON object in `text`.

    :raises InvalidDocumentError: it is not a JSON object; names the place.
    """
    from opslog.importers.lines import decode_json  # only commands that write documents need it

    try:
        document = decode_json(text, source)
    except CorruptError as error:
        raise InvalidDocumentError(str(error)) from error
    if not isinstance(document, dict):
        raise InvalidDocumentError(f'{source}: a document is a JSON object, as in {{"title": "Build API"}}')
    return document
