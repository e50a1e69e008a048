"""Paths, which name values in a document: their syntax, and how a value is found. Pure.

status              a field
due.year            a field in a field
tasks[0].title      an item of an array; the first one is 0
tags[*]             every item of an array
"due date"."a.b"    names with spaces, dots or other signs, as JSON strings
@id                 a field of the document's record: @id, @author, @clock, @ts
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson

from opslog.format.commits import Set
from opslog.query.faults import Fault
from opslog.query.rows import Rows
from opslog.query.values import MISSING

# One step of a path: the name of a field, the number of an item, or EVERY.
EVERY = "every item"
Step = str | int | tuple[str]

_NAME = re.compile(r"""[^\s\x00-\x1f\x7f.\[\](){}"'=<>!,@]+""")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ITEM = re.compile(r"\[\s*(\d{1,15}|\*)\s*\]", re.ASCII)
_META = re.compile(r"@(\w*)")
_EVERY: tuple[str] = (EVERY,)

_OF_RECORDS: dict[str, Callable[[Set], Any]] = {
    "id": lambda record: record.id,
    # A record that is not committed yet has none of these.
    "author": lambda record: record.author or MISSING,
    "clock": lambda record: record.clock or MISSING,
    "ts": lambda record: record.ts or MISSING,
}

# Reads the value at a path, or MISSING, from a document and its record. `Values` reads any number of values.
Getter = Callable[[Any, Set], Any]
Values = Callable[[Any, Set], Sequence[Any]]


class Path(NamedTuple):
    """A path.

    :ivar meta: the word after @; empty if the path leads into the document.
    """

    steps: tuple[Step, ...]
    meta: str = ""

    @property
    def has_many(self) -> bool:
        """Whether it may lead to several values."""
        return _EVERY in self.steps

    @property
    def is_id(self) -> bool:
        return self.meta == "id"

    def getter(self) -> Getter:
        """A function that reads the value at this path. Not for a path that may lead to several values."""
        if self.meta:
            of = _OF_RECORDS[self.meta]
            return lambda document, record: of(record)
        steps = self.steps
        if len(steps) == 1 and isinstance(name := steps[0], str):
            return lambda document, record: document.get(name, MISSING)
        return lambda document, record: _follow(steps, document)

    def values(self) -> Values:
        """A function that reads all values at this path. There may be none."""
        steps = self.steps
        return lambda document, record: _follow_all(steps, document)

    @property
    def field(self) -> str | None:
        """The top-level field with which this path begins; None if the path does not lead into the document."""
        name = self.steps[0] if self.steps else None
        return name if isinstance(name, str) else None

    def column(self, rows: Rows) -> Iterable[Any]:
        """The value that `getter` would read, for each document of rows in which `field` was read."""
        if self.is_id:
            return rows.ids
        values = rows.columns[self.steps[0]]  # type: ignore[index]  # the field
        rest = self.steps[1:]
        return map(partial(_follow, rest), values) if rest else values

    def columns(self, rows: Rows) -> Iterable[Sequence[Any]]:
        """The values that `values` would read, for each document of rows in which `field` was read."""
        return map(partial(_follow_all, self.steps[1:]), rows.columns[self.steps[0]])  # type: ignore[index]

    def __str__(self) -> str:
        if self.meta:
            return f"@{self.meta}"
        text = ""
        for step in self.steps:
            if isinstance(step, str):
                name = step if _NAME.fullmatch(step) else orjson.dumps(step).decode()
                text += f".{name}" if text else name
            else:
                text += "[*]" if step == _EVERY else f"[{step}]"
        return text


BY_ID = Path((), "id")


def _follow(steps: tuple[Step, ...], value: Any) -> Any:
    for step in steps:
        value = _after(value, step)
    return value


def _follow_all(steps: tuple[Step, ...], value: Any) -> Sequence[Any]:
    found = [value]
    for step in steps:
        if step == _EVERY:
            found = [item for value in found if type(value) is list for item in value]
        else:
            found = [item for value in found if (item := _after(value, step)) is not MISSING]
    return found


def _after(value: Any, step: Step) -> Any:
    if isinstance(step, str):
        return value.get(step, MISSING) if type(value) is dict else MISSING
    if isinstance(step, int) and type(value) is list and step < len(value):
        return value[step]
    return MISSING


def parse_path(text: str) -> Path:
    """Parse a text that is one path.

    :raises QueryError: it is not a path; the error points at the place.
    """
    if not isinstance(text, str):
        raise Fault(f"a path such as due.year is expected here, not {type(text).__name__}").in_values("path")
    try:
        return read_path(text)
    except Fault as fault:
        raise fault.in_text(text) from None


def read_path(text: str) -> Path:
    """Parse a text that is one path and a part of a query.

    :raises Fault: it is not a path.
    """
    path, end = scan_path(text, 0)
    if end < len(text):
        raise Fault('a path goes on with .name or [0] here; other signs in a name need quotes, as in "due date"', end)
    return path


def scan_path(text: str, start: int) -> tuple[Path, int]:
    """Parse the path that begins at `start`. Returns it and the offset of its end.

    :raises Fault: no path begins there.
    """
    if match := _META.match(text, start):
        if match[1] not in _OF_RECORDS:
            known = ", ".join(f"@{name}" for name in _OF_RECORDS)
            raise Fault(f'a record has {known}; a field whose name begins with @ is written "@…"', start)
        return Path((), match[1]), match.end()
    name, at = _scan_name(text, start)
    steps: list[Step] = [name]
    while at < len(text):
        if text[at] == ".":
            name, at = _scan_name(text, at + 1)
            steps.append(name)
        elif text[at] == "[":
            match = _ITEM.match(text, at)
            if match is None:
                raise Fault("an item of an array is [0], [1], …, and any of them [*]", at)
            steps.append(_EVERY if match[1] == "*" else int(match[1]))
            at = match.end()
        else:
            break
    return Path(tuple(steps)), at


def _scan_name(text: str, start: int) -> tuple[str, int]:
    if match := _NAME.match(text, start):
        return match[0], match.end()
    if text[start : start + 1] == '"':
        return scan_string(text, start)
    raise Fault("the name of a field is expected here", start)


def scan_string(text: str, start: int) -> tuple[str, int]:
    """Parse the JSON string that begins at `start`. Returns it and the offset of its end.

    :raises Fault: no JSON string begins there.
    """
    match = _STRING.match(text, start)
    if match is None:
        raise Fault('this string has no closing "', start)
    try:
        string: str = orjson.loads(match[0])
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        raise Fault("this is not a JSON string: check its escapes and control characters", start) from None
    return string, match.end()
