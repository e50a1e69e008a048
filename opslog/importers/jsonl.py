"""JSON lines: plain documents, or lines of opslog itself. One commit per line, applied in the order of the file.

A line with the field ``op`` is an opslog line, as ``opslog export`` and the logs write it::

    {"op":"set","id":"task-1","data":{"title":"Build API"},"ts":"2026-11-20T12:00:00.123456Z","agent":"planner"}
    {"op":"delete","id":"task-1"}
    {"op":"batch","ops":[{"op":"set","id":"a","data":{}},{"op":"delete","id":"b"}]}

``ts``, ``agent``, ``clock`` and ``v`` (schema version) are optional. A line that was a transaction, or part of one, has
its author in ``by``, and is imported as that agent's. The order of the file counts, not the clock. A delete marked
``archived`` is imported as a plain delete: the archive itself is not part of the file. Unknown fields are
refused, since their values would be lost.

Any other line is a plain document: ``{"id":"task-1","title":"Build API"}``. Its ``id`` names the document, the other
fields are the document. A plain document with a field of its own called ``op`` has to be written as an opslog set line.

Blank lines may end the file, and are errors elsewhere. A file that is compressed with gzip is recognised by its first
bytes; byte offsets in messages then count uncompressed bytes.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, BinaryIO, cast

import msgspec

from opslog.errors import InvalidNameError
from opslog.format.commits import Version
from opslog.format.layout import check_name
from opslog.importers import ImportedCommit, ImportedOp
from opslog.importers.lines import Line, bounded, corrupt, open_file, read_lines
from opslog.importers.times import from_text

_GZIP_MAGIC = b"\x1f\x8b"


class _Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    ts: str | None = None
    agent: str | None = None
    by: str | None = None
    tx: str | None = None
    clock: int | None = None


class _Set(_Line, tag="set"):
    id: str
    data: dict[str, Any]
    v: Version = 1


class _Delete(_Line, tag="delete"):
    id: str
    v: Version = 1
    archived: str | None = None


class _Batch(_Line, tag="batch"):
    ops: Annotated[list[_Set | _Delete], msgspec.Meta(min_length=1)]


_SHAPES: dict[str, type[_Set | _Delete | _Batch]] = {"set": _Set, "delete": _Delete, "batch": _Batch}


def read_json_lines(source: str | os.PathLike[str] | BinaryIO, *, id_field: str = "id") -> Iterator[ImportedCommit]:
    """The commits in a file or binary stream of JSON lines; memory is bounded by the longest line.

    :param source: a path, or a stream that is read to its end and left open.
    :param id_field: the field of a plain document that names it.
    :raises CorruptError: a line does not match the module's description; names the file and the byte offset.
    :raises UsageError: the file cannot be opened.
    """
    with _opened(source) as (stream, path):
        blank = None
        for line in read_lines(_uncompressed(stream, path), path):
            if line.blank:
                blank = blank or line
            elif blank:
                raise blank.corrupt("a blank line before the end of the file; remove it if nothing is missing there")
            else:
                yield _commit(line, id_field)


@contextmanager
def _opened(source: str | os.PathLike[str] | BinaryIO) -> Iterator[tuple[io.BufferedReader, str]]:
    """A stream that can be peeked into, and its name for messages."""
    if isinstance(source, str | os.PathLike):
        with open_file(source) as opened:
            yield opened, os.fspath(source)
        return
    path = str(getattr(source, "name", "<stream>"))
    if isinstance(source, io.BufferedReader):
        yield source, path
        return
    buffered = io.BufferedReader(cast(Any, source))
    try:
        yield buffered, path
    finally:
        buffered.detach()


def _uncompressed(stream: io.BufferedReader, path: str) -> Iterable[bytes]:
    return _gunzipped(stream, path) if stream.peek(2).startswith(_GZIP_MAGIC) else bounded(stream)


def _gunzipped(stream: io.BufferedReader, path: str) -> Iterator[bytes]:
    offset = 0
    try:
        for data in bounded(cast(BinaryIO, gzip.GzipFile(fileobj=stream))):
            yield data
            offset += len(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise corrupt(f"the gzip data is damaged: {error}; get a whole copy of the file", path, offset) from error


def _commit(line: Line, id_field: str) -> ImportedCommit:
    value = line.decode()
    if not isinstance(value, dict):
        raise line.corrupt("not a JSON object")
    if "op" in value:
        return _opslog_commit(line, value)
    match value.pop(id_field, None):
        case str(id):
            return ImportedCommit(None, None, (ImportedOp("set", id, value),), line.source)
        case None:
            raise line.corrupt(f"no field {id_field!r} to name the document{_other_names(value)}")
        case other:
            raise line.corrupt(f"the field {id_field!r} must be a string, not {other!r}")


def _other_names(value: dict[str, Any]) -> str:
    """The fields that could name a document instead."""
    names = [name for name, field in value.items() if isinstance(field, str)]
    return f": name one with --id-field, of {', '.join(names)}" if names else ""


def _opslog_commit(line: Line, value: dict[str, Any]) -> ImportedCommit:
    match value["op"]:
        case "undo" | "seal" as op:
            raise line.corrupt(
                f"a line of op {op!r} means something only in its own store; import what 'opslog export' writes"
            )
        case str(op) if op in _SHAPES:
            entry = line.convert(value, _SHAPES[op])
        case op:
            raise line.corrupt(
                f"unknown op {op!r}; if this is a plain document with a field 'op', "
                'write it as {"op":"set","id":…,"data":{…}}'
            )
    try:
        author = entry.by or entry.agent
        agent = None if author is None else check_name(author, "agent")
        ts = None if entry.ts is None else from_text(entry.ts)
    except (InvalidNameError, ValueError) as error:
        raise line.corrupt(str(error)) from error
    changes = entry.ops if isinstance(entry, _Batch) else [entry]
    return ImportedCommit(agent, ts, tuple(map(_op, changes)), line.source)


def _op(change: _Set | _Delete) -> ImportedOp:
    if isinstance(change, _Set):
        return ImportedOp("set", change.id, change.data, change.v)
    return ImportedOp("delete", change.id, None)
