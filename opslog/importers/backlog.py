"""A directory written by npm @backloghq/opslog, versions 0.2 to 0.8.

::

    manifest.json                     names the files below that are live
    snapshots/snap-<ms>.json          to 0.6: {"version", "timestamp", "records": {id: document}}, usually indented
    snapshots/snap-<ms>.jsonl         from 0.7: a line {"version", "timestamp"}, then {"id", "data"} per document
    ops/ops-<ms>.jsonl                one op per line: {"ts", "op", "id", "data", "prev"}
    ops/agent-<agent>-<ms>.jsonl      from 0.3, several writers: the same with "agent" and "clock"
    archive/archive-<period>.json     {"version", "period", "timestamp", "records": {id: document}}

The state is the snapshot, then the ops: one writer's in the order of the file, several writers' by (clock, agent).
`prev` (the old document, or from 0.4 on only its changed fields) only serves the package's undo, which also removes the
undone line; so neither has to be read here. Batches leave no mark in the file: each op is a commit of its own. The
package does not record a schema version per document, and its `migrate` functions are not run.

**Lost writes.** Its compactions start new op logs and leave the old ones in place, and a compaction drops the logs of
all other agents from the manifest, including ops that it never read. The earlier and later writes of those agents are
on disk and no longer in the state. Logs that are not replayed are *orphaned*, whether all of their ops are in the
snapshot (most are) or not; see :func:`read_backlog` for salvaging them.

**Stricter than the package**: it skips op lines that it cannot read, and takes a missing log for an empty one. Here
both are errors. The exception is a last line without line end that is not whole JSON: the writer died there, and the
op was never acknowledged.
"""

from __future__ import annotations

import io
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from opslog.errors import CorruptError, UsageError
from opslog.format.exact import NotJsonError
from opslog.importers import ImportedCommit, ImportedOp
from opslog.importers.agents import AgentNames
from opslog.importers.lines import Line, bounded, convert, corrupt, decode_json, open_file, read_lines
from opslog.importers.times import from_text

T = TypeVar("T")
NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]
Document = dict[str, Any]


class _Manifest(msgspec.Struct):
    currentSnapshot: NonEmpty
    activeOps: NonEmpty
    archiveSegments: list[NonEmpty]
    activeAgentOps: dict[str, NonEmpty] | msgspec.UnsetType = msgspec.UNSET

    def logs(self) -> list[str]:
        """The logs that make up the state. With several writers, `activeOps` repeats one of them, or is orphaned."""
        if self.activeAgentOps is msgspec.UNSET:
            return [self.activeOps]
        return list(self.activeAgentOps.values())


class _Header(msgspec.Struct):
    timestamp: NonEmpty


class _Records(msgspec.Struct):
    timestamp: NonEmpty
    records: dict[str, Document]


class _Record(msgspec.Struct):
    id: str
    data: Document


class _Archive(msgspec.Struct):
    period: NonEmpty
    timestamp: NonEmpty
    records: dict[str, Document]


class _Op(msgspec.Struct, kw_only=True):
    """The package skips lines of any other shape when it reads. It takes `data` of any type; a store takes objects."""

    ts: NonEmpty
    id: NonEmpty
    prev: Document | None
    encoding: Literal["full", "delta"] | msgspec.UnsetType = msgspec.UNSET
    agent: NonEmpty = ""
    clock: Annotated[int, msgspec.Meta(ge=0)] = 0


class _Set(_Op, tag_field="op", tag="set"):
    data: Document


class _Delete(_Op, tag_field="op", tag="delete"):
    prev: Document
    data: msgspec.UnsetType = msgspec.UNSET


_SHAPES: dict[str, type[_Set | _Delete]] = {"set": _Set, "delete": _Delete}


class _Logged(msgspec.Struct, frozen=True):
    """An op and its origin."""

    entry: _Set | _Delete
    line: Line


def read_backlog(directory: str | os.PathLike[str], *, salvage: bool = False) -> Iterator[ImportedCommit]:
    """The state that the package shows for `directory`: a commit per document of the snapshot, then a commit per op.

    The ops of several writers are sorted in memory, as the package does; a JSONL snapshot is streamed.

    With `salvage`, the ops of the orphaned logs come **before** all that, for this reason: most of them are already in
    the snapshot, and nothing distinguishes these from the lost ones, because clocks begin again after a compaction. If
    they are applied first, an old op can never undo live data, since every live document is set again after it; a
    document that only a lost op made survives, and a lost update of a live document is in its history. Among each other
    they are ordered by time stamp, never against the order of their own file. Deletes are replayed too, so deleted
    documents stay deleted. Archived documents left no delete in any log and would come back. So if the last salvaged
    version of a document equals one in an archive, it is deleted again; if it differs, it was changed or created after
    archiving, and is kept.

    :raises UsageError: this is no such directory, or it is not readable.
    :raises CorruptError: names the file and the byte offset.
    """
    root = Path(directory)
    manifest = _manifest(root)
    agents = AgentNames()
    if salvage:
        yield from _salvaged(root, agents)
    yield from _snapshot(_inside(root, manifest.currentSnapshot))
    logs = manifest.logs()
    if manifest.activeAgentOps is msgspec.UNSET:
        ops: Iterable[_Logged] = _log(_inside(root, logs[0]))
    else:
        ops = sorted((op for log in logs for op in _log(_inside(root, log))), key=_stamp)
    for op in ops:
        yield _commit(op, agents)


def read_backlog_archives(directory: str | os.PathLike[str]) -> Iterator[tuple[str, str, Document]]:
    """(period, id, document) of all archived documents.

    Archive files that the manifest does not name are read too, because racing manifests lose them as they lose logs. If
    a crash interrupted the archiving of a document, the document is in both places, but never in none.

    :raises UsageError: not such a directory.
    :raises CorruptError: names the file and the byte offset.
    """
    for archive in _archives(Path(directory)):
        for id, document in archive.records.items():
            yield archive.period, id, document


def orphaned_logs(directory: str | os.PathLike[str]) -> list[Path]:
    """The op logs in the directory that are not part of the state: compacted away, or lost. Sorted by name.

    :raises UsageError: not such a directory.
    :raises CorruptError: its manifest cannot be read.
    """
    root = Path(directory)
    live = {_inside(root, log) for log in _manifest(root).logs()}
    return sorted(path for path in (root / "ops").glob("*.jsonl") if path not in live)


def _manifest(root: Path) -> _Manifest:
    path = root / "manifest.json"
    if not path.is_file():
        raise UsageError(f"{root} has no manifest.json; name the directory that @backloghq/opslog was opened on")
    return _whole(path, _Manifest)


def _inside(root: Path, name: str) -> Path:
    """A file that the manifest names. The directory may come from anybody: it must not make us read other files."""
    path = root / name
    try:
        if path.resolve().is_relative_to(root.resolve()):
            return path
        problem = f"it names {name!r:.200}, which is not inside {root}"
    except (OSError, ValueError) as error:  # too long, links in a circle; a NUL
        problem = f"it names {name!r:.200}, which is not inside {root} nor anywhere: {error!s:.200}"
    raise corrupt(problem, str(root / "manifest.json"), 0)


def _whole(path: Path, shape: type[T]) -> T:
    """A file that is one JSON value."""
    with _opened(path) as stream:
        return convert(decode_json(stream.read(), str(path)), shape, str(path))


def _opened(path: Path) -> io.BufferedReader:
    if not os.path.exists(path):  # unlike the method of Path, also works if the name is too long
        problem = "the manifest names this file, but it is missing; restore it from a backup and import again"
        raise CorruptError(f"{path}: {problem}", str(path))
    return open_file(path)


def _snapshot(path: Path) -> Iterator[ImportedCommit]:
    with _opened(path) as stream:
        lines = read_lines(bounded(stream), str(path))
        first = next(lines, None)
        if first is None:
            raise corrupt("an empty file is not a snapshot", str(path), 0)
        if not _is_header(first):
            # The formats up to 0.6 are one JSON value, which has to be in memory whole.
            snapshot = _whole(path, _Records)
            ts = _ts(snapshot.timestamp, first)
            for id, document in snapshot.records.items():
                yield ImportedCommit(None, ts, (ImportedOp("set", id, document),), str(path))
            return
        ts = _ts(first.convert(first.decode(), _Header).timestamp, first)
        for line in lines:
            if not line.blank:
                record = line.convert(line.decode(), _Record)
                yield ImportedCommit(None, ts, (ImportedOp("set", record.id, record.data),), line.source)


def _is_header(line: Line) -> bool:
    """Whether this first line is a whole JSON object, and not one that holds the records itself."""
    try:
        value = line.decode()
    except CorruptError:
        return False  # Not hidden: reading the file as one value raises the error again, unless it spans lines.
    return isinstance(value, dict) and "records" not in value


def _log(path: Path) -> Iterator[_Logged]:
    with _opened(path) as stream:
        for line in read_lines(bounded(stream), str(path)):
            if line.blank:
                continue
            try:
                entry = _entry(line)
            except CorruptError as error:
                if not line.complete and isinstance(error.__cause__, NotJsonError):
                    return  # A torn last line.
                problem = f"{error}; to import without this line, remove it from a copy of the directory"
                raise CorruptError(problem, error.path, error.offset) from error
            yield _Logged(entry, line._replace(data=b""))


def _entry(line: Line) -> _Set | _Delete:
    value = line.decode()
    op = value.get("op") if isinstance(value, dict) else None
    if not isinstance(op, str) or op not in _SHAPES:
        raise line.corrupt('not an op: an object whose "op" is "set" or "delete"')
    return line.convert(value, _SHAPES[op])


def _commit(op: _Logged, agents: AgentNames) -> ImportedCommit:
    entry = op.entry
    agent = agents.name(entry.agent, entry.agent) if entry.agent else None
    if isinstance(entry, _Set):
        change = ImportedOp("set", entry.id, entry.data)
    else:
        change = ImportedOp("delete", entry.id, None)
    return ImportedCommit(agent, _ts(entry.ts, op.line), (change,), op.line.source)


def _ts(text: str, line: Line) -> str:
    try:
        return from_text(text)
    except ValueError as error:
        raise line.corrupt(str(error)) from error


def _archives(root: Path) -> Iterator[_Archive]:
    named = {_inside(root, segment) for segment in _manifest(root).archiveSegments}
    for path in sorted(named.union((root / "archive").glob("archive-*.json"))):
        yield _whole(path, _Archive)


def _salvaged(root: Path, agents: AgentNames) -> Iterator[ImportedCommit]:
    """The ops of all orphaned logs, held in memory to be sorted, then deletes for archived documents."""
    ops = [keyed for path in orphaned_logs(root) for keyed in _timed(path)]
    ops.sort(key=lambda keyed: keyed[0])
    last: dict[str, _Set | _Delete] = {}
    for _, op in ops:
        last[op.entry.id] = op.entry
        yield _commit(op, agents)
    for archive in _archives(root):
        for id, document in archive.records.items():
            entry = last.get(id)
            if isinstance(entry, _Set) and _same(entry.data, document):
                del last[id]
                yield ImportedCommit(None, None, (ImportedOp("delete", id, None),), f"{root}: archive {archive.period}")


def _timed(path: Path) -> Iterator[tuple[tuple[str, int, str], _Logged]]:
    """The ops of a log with their sort keys: (time stamp, when the log was begun, file name).

    A time stamp is never earlier than those before it in the file, also where the writer's clock was set back. Within
    one millisecond the older log goes first: it is the one that a compaction closed.
    """
    ops = list(_log(path))
    begun = int(match[1]) if (match := re.search(r"-([0-9]+)\.jsonl$", path.name)) else 0
    times = accumulate((_ts(op.entry.ts, op.line) for op in ops), max)
    return (((ts, begun, path.name), op) for ts, op in zip(times, ops, strict=True))


def _same(a: Document, b: Document) -> bool:
    """Equality of JSON, where 1 and true differ and the order of names does not count."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


# JavaScript's localeCompare, which orders agents with equal clocks: punctuation, digits, then letters; accents, then
# case (small letters first) only decide between texts that are otherwise equal. Exact for ASCII in locales that sort
# English letters as English does; other scripts are sorted by code point.
_COLLATION = {
    char: place
    for place, char in enumerate("\t\n\v\f\r _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789abcdefghijklmnopqrstuvwxyz")
}


def _stamp(op: _Logged) -> tuple[int, list[int], list[str], list[bool]]:
    """The sort key of an op among those of several writers: (clock, agent)."""
    text = unicodedata.normalize("NFD", op.entry.agent)
    letters = [char for char in text if not unicodedata.combining(char)]
    accents = [char for char in text if unicodedata.combining(char)]
    places = [_COLLATION.get(char, len(_COLLATION) + ord(char)) for char in "".join(letters).lower()]
    return op.entry.clock, places, accents, [char.isupper() for char in letters]
