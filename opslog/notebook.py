"""Tables as notebooks show them: documents and their revisions. Pure: values in, HTML out.

Everything is escaped, so that a writer to a store cannot run a script in the notebook of a reader.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any

import msgspec

# A table shows at most so many documents, fields of them, and characters of each value.
ROWS, COLUMNS, CELL = 20, 8, 80

# Notebooks align text to the right and break ids at hyphens. A text of up to so many characters stays on one line.
_UNBROKEN = 24
_LEFT = ' style="text-align:left"'
_SHORT = ' style="text-align:left;white-space:nowrap"'


def documents_table(caption: str, pairs: Iterable[tuple[str, object]], total: int | None = None) -> str:
    """A table with a row for each of the first documents and a column for each of their first fields.

    :param pairs: (id, document), a dict or a value of a type; no more are taken than are shown.
    :param total: how many documents there are; None: not known.
    """
    shown = [(id, _fields(document)) for id, document in islice(pairs, ROWS)]
    names = list(dict.fromkeys(name for _, fields in shown for name in fields))
    columns = names[:COLUMNS]
    rows = [[id, *(cell(fields[name]) if name in fields else "" for name in columns)] for id, fields in shown]
    notes = []
    if total is not None and total > len(shown):
        notes.append(f"{len(shown)} of {total:,} documents")
    if len(names) > len(columns):
        notes.append(f"{len(columns)} of {len(names):,} fields")
    return table(caption, ["id", *columns], rows, "; ".join(notes))


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """A table of texts, which are escaped here."""
    lines = ["<table>", f"<caption{_LEFT}>{escape(caption)}</caption>", "<thead><tr>"]
    lines += [f"<th{_LEFT}>{escape(_cut(name))}</th>" for name in columns]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        lines.append("<tr>" + "".join(_entry(text) for text in row) + "</tr>")
    lines.append("</tbody></table>")
    if note:
        lines.append(f"<p>{escape(note)}</p>")
    return "\n".join(lines)


def cell(value: object) -> str:
    """A value as text: a string as it is, everything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return repr(value)


def _fields(document: Any) -> Mapping[str, object]:
    if isinstance(document, Mapping):
        return document
    if isinstance(document, msgspec.Struct):
        return msgspec.structs.asdict(document)
    if dataclasses.is_dataclass(document):
        return {field.name: getattr(document, field.name) for field in dataclasses.fields(document)}
    return {"document": document}


def _entry(text: str) -> str:
    return f"<td{_SHORT if len(text) <= _UNBROKEN else _LEFT}>{escape(_cut(text))}</td>"


def _cut(text: str) -> str:
    return text if len(text) <= CELL else f"{text[: CELL - 1]}…"
