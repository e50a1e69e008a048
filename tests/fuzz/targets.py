"""Every function that reads bytes which others wrote: each target has real files to start from, and a check that must
hold for any bytes."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import orjson

import opslog
from opslog import history
from opslog.bulk.ingest import ingest
from opslog.errors import CorruptError, InvalidDocumentError, OpslogError, UsageError
from opslog.format.checksum import crc32, sha256
from opslog.format.commits import decode_commits
from opslog.format.documents import encode
from opslog.format.layout import index_path
from opslog.importers import ImportedCommit
from opslog.importers.backlog import orphaned_logs, read_backlog, read_backlog_archives
from opslog.importers.git import read_log
from opslog.importers.jsonl import read_json_lines
from tests.cli.calling import call
from tests.fuzz import stores

SIZE_MAX = 1 << 20


class Target(NamedTuple):
    """:ivar seeds: real inputs.
    :ivar check: fails if the result for an input is wrong."""

    seeds: Callable[[], list[bytes]]
    check: Callable[[bytes], None]


# Files of a store


def _one(ending: str, files: Callable[[], stores.Files] = stores.compacted) -> str:
    return next(path for path in files() if path.endswith(ending))


LOG = "ops/a/00000000000000000001.jsonl"
SHARED = "ops/transactions/00000000000000000001.jsonl"
NEWEST = "manifests/00000000000000000002.json"


def _file(ending: str) -> Target:
    return Target(lambda: [stores.compacted()[_one(ending)]], lambda data: stores.check_damaged(_one(ending), data))


def resealed(data: bytes) -> bytes:
    """A manifest or an index with the right checksum for its bytes."""
    body = data[: data.rfind(b',"checksum":"')] if b',"checksum":"' in data else data.rstrip(b"}\n")
    return body + b',"checksum":"' + sha256(body).encode() + b'"}\n'


def _check_forged(path: str, data: bytes) -> None:
    stores.check_forged(stores.compacted() | {path: resealed(data)})


def _check_forged_part(data: bytes) -> None:
    """The part, with matching checksums in its index and in the manifest."""
    files = stores.compacted()
    path = _one("part-00000.jsonl")
    manifest, index = orjson.loads(files[NEWEST]), orjson.loads(files[index_path(path)])
    part = manifest["runs"][0]["parts"][0]
    part |= {"bytes": len(data), "sha256": sha256(data)}
    index |= {"bytes": len(data), "sha256": sha256(data), "blocks": [[part["first"], 0, len(data), crc32(data)]]}
    stores.check_forged(
        files | {path: data, index_path(path): resealed(orjson.dumps(index)), NEWEST: resealed(orjson.dumps(manifest))}
    )


def _check_line_error(error: CorruptError, data: bytes) -> None:
    assert error.path == "p"
    assert error.offset is not None
    assert error.offset == 7 or data[error.offset - 8 : error.offset - 7] == b"\n", "no line begins there"


def _check_lines(data: bytes) -> None:
    """Without a store around them: decoded lines are encoded again, and that decodes to the same."""
    try:
        commits = decode_commits(data, "p", 7)
    except CorruptError as error:
        _check_line_error(error, data)
        return
    again = b"".join(map(opslog.format.commits.encode_commit, commits))
    assert decode_commits(again, "p", 0) == commits
    for commit in commits:
        for record in commit.records:
            if isinstance(record, opslog.Set):
                with suppress(CorruptError):
                    assert encode(record.document)


# Importers


def _check_place(error: OpslogError, source: str) -> None:
    """The error names a file in the source."""
    assert isinstance(error, CorruptError | UsageError)
    assert source in str(error)
    assert isinstance(error, UsageError) or (error.path.startswith(source) and error.path in str(error))


def _imported(commits: Iterable[ImportedCommit], source: str) -> None:
    """Read to the end, and write into a store. Everything that can be read can be stored and comes back, or the error
    names the place in the source, which is a file or a directory."""
    found: list[ImportedCommit] = []
    try:
        for commit in commits:
            found.append(commit)
    except OpslogError as error:
        _check_place(error, source)
    stores.place({})
    backend = opslog.backends.open_backend(stores.URL)
    try:
        ingest(backend, found, environment=stores.environment())
    except UsageError as error:
        _check_place(error, source)
        return
    if found:
        expected: dict[str, object] = {}
        for commit in found:
            for op in commit.ops:
                expected.pop(op.id, None)
                if op.op == "set":
                    expected[op.id] = op.document
        assert stores.state(version=None) == expected


def _jsonl_seeds() -> list[bytes]:
    lines = [
        b'{"op":"set","id":"task-1","data":{"title":"Build API"},"ts":"2026-11-20T12:00:00.123456Z","agent":"planner"}',
        b'{"op":"delete","id":"task-1"}',
        b'{"op":"batch","ops":[{"op":"set","id":"a","data":{},"v":2},{"op":"delete","id":"b"}],"clock":7}',
    ]
    return [b"\n".join(lines) + b"\n", b'{"id":"task-1","title":"Build API","n":1.5}\n{"id":"t2"}\n\n']


def _check_jsonl(data: bytes) -> None:
    stream = io.BytesIO(data)
    _imported(read_json_lines(stream), "<stream>")


BACKLOG: dict[str, bytes] = {
    "manifest.json": json.dumps(
        {
            "version": 1,
            "currentSnapshot": "snapshots/snap-1.jsonl",
            "activeOps": "ops/ops-1.jsonl",
            "archiveSegments": ["archive/archive-2026-Q1.json"],
            "activeAgentOps": {"a": "ops/agent-a-1.jsonl", "b": "ops/agent-b-1.jsonl"},
            "stats": {"activeRecords": 1, "archivedRecords": 1, "opsCount": 2},
        },
        indent=2,
    ).encode(),
    "snapshots/snap-1.jsonl": b'{"version":1,"timestamp":"2026-01-01T00:00:00.000Z"}\n{"id":"x","data":{"n":1}}\n',
    "snapshots/snap-0.json": b'{"version":1,"timestamp":"2026-01-01T00:00:00.000Z","records":{"x":{"n":1}}}',
    "ops/agent-a-1.jsonl": b'{"ts":"2026-01-02T00:00:00.000Z","op":"set","id":"y","data":{"n":2},"prev":null,'
    b'"agent":"a","clock":1}\n{"ts":"2026-01-02T00:00:01.000Z","op":"delete","id":"x","prev":{"n":1},"agent":"a","clock":2}\n',
    "ops/agent-b-1.jsonl": b'{"ts":"2026-01-02T00:00:00.000Z","op":"set","id":"y","data":{"n":3},"prev":{"n":2},'
    b'"encoding":"delta","agent":"b","clock":2}\n',
    "ops/ops-1.jsonl": b'{"ts":"2026-01-01T00:00:00.000Z","op":"set","id":"lost","data":{},"prev":null}\n',
    "archive/archive-2026-Q1.json": b'{"version":1,"period":"2026-Q1","timestamp":"2026-01-01T00:00:00.000Z","records":'
    b'{"lost":{},"old":{"n":0}}}',
}


@contextmanager
def _backlog(files: dict[str, bytes]) -> Iterator[Path]:
    root = Path(tempfile.mkdtemp())
    try:
        for path, data in files.items():
            (root / path).parent.mkdir(exist_ok=True)
            (root / path).write_bytes(data)
        yield root
    finally:
        shutil.rmtree(root)


def _backlog_file(path: str, **others: bytes) -> Target:
    def check(data: bytes) -> None:
        files = BACKLOG | {path: data}
        if path == "snapshots/snap-0.json":
            files["manifest.json"] = files["manifest.json"].replace(b"snap-1.jsonl", b"snap-0.json")
        with _backlog(files) as root:
            for salvage in (False, True):
                _imported(read_backlog(root, salvage=salvage), str(root))
            try:
                list(read_backlog_archives(root))
                orphaned_logs(root)
            except OpslogError as error:
                _check_place(error, str(root))

    return Target(lambda: [BACKLOG[path]], check)


_GIT = b"\0".join(
    [
        b"1" * 40 + b"\n1767225600\na@example.org\nA U Thor",
        b"\n:000000 100644 " + b"0" * 40 + b" " + b"2" * 40 + b" A",
        b"README.md",
        b":100644 000000 " + b"2" * 40 + b" " + b"0" * 40 + b" D",
        b"caf\xe9",
        b"3" * 40 + b"\n1767225601\n\nB",
        b"\n:100644 120000 " + b"2" * 40 + b" " + b"4" * 40 + b" T",
        b"README.md",
    ]
)


def _check_git(data: bytes) -> None:
    _imported(read_log(iter(data.split(b"\0")), "repo"), "repo")


# What people type


POINTS = [b"2026-11-20T12:00:00Z", b"12", b"2026-11-20 12:00:00.5+01:00", b"0001-01-01T00:00:00+14:00"]


def _check_point(data: bytes) -> None:
    text = data.decode("utf-8", "surrogatepass") if is_decodable(data) else data.decode("latin-1")
    points: list[history.Point] = [text]
    with suppress(ValueError):
        points.append(datetime.fromisoformat(text))
    with suppress(ValueError):
        points.append(int(text))
    stores.place(stores.uncompacted())
    for point in points:
        with suppress(UsageError, opslog.HistoryGoneError):  # no point in time, or one too long ago
            stores.state(as_of=point)


def is_decodable(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


COMMANDS = [
    b"get\0doc-1",
    b'set\0x\0{"n":1}',
    b"set\0x",
    b"delete\0doc-1\0doc-2",
    b"undo",
    b"ls\0--where\0n=1\0--ids",
    b"history\0doc-2\0--json",
    b"ops\0--since\0005",
    b"export\0--as-of\00012",
    b"export\0--as-of\0002026-11-20T12:00:00Z\0--plain",
    b"compact\0--keep-history\00030d",
    b"archive\0--where\0n=4\0--older-than\0001s\0--period\0002026-Q4\0--dry-run",
    b"archive\0--load\0002026-Q4",
    b"stats\0--json",
    b"verify",
    b'import\0-\0{"id":"a","n":1}\n',
]


@cache
def _cli_store() -> Path:
    """One store for all commands. What they do to it does not matter."""
    import atexit

    root = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for path, data in stores.uncompacted().items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


_HARMLESS = {command.split(b"\0")[0].decode() for command in COMMANDS}


def _check_command(data: bytes) -> None:
    """Arguments are separated by NULs, and the text after the last one is the input. The command must end with an exit
    code, and no traceback."""
    arguments = [part.decode("utf-8", "surrogateescape") for part in data.split(b"\0")]
    # Only these commands: others wait for ever, write elsewhere, or start processes. They reach no store and no files
    # but ours.
    risky = any(word.startswith(("-", "~", "/", ".")) and word not in _OPTIONS for word in arguments)
    if not arguments or arguments[0] not in _HARMLESS or risky:
        return
    if arguments[0] in ("import", "export") and "-" not in arguments[1:2] and "--as-of" not in arguments[1:2]:
        return
    result = call(_cli_store(), *arguments, stdin=data.rpartition(b"\0")[2])
    assert result.code in (0, 1, 2, 3), result
    assert result.code == 0 or result.err, result


_OPTIONS = {word.decode() for command in COMMANDS for word in command.split(b"\0") if word.startswith(b"-")}


def _check_document(data: bytes) -> None:
    """JSON text as a document: it is stored exactly, or refused."""
    record = opslog.Set("2026-11-20T12:00:00.123456Z", 1, "a", "x", msgspec.Raw(data))
    try:
        document = record.document
    except CorruptError:
        return
    try:
        text = encode(document)
    except InvalidDocumentError as error:
        raise AssertionError(f"it is read and cannot be written: {error}") from error
    assert json.loads(text) == json.loads(data), "another decoder reads something else"


TARGETS: dict[str, Target] = {
    "lines": Target(lambda: [stores.uncompacted()[LOG]], _check_lines),
    "log": Target(lambda: [stores.uncompacted()[LOG]], lambda data: stores.check_log(LOG, data)),
    "transactions": Target(lambda: [stores.uncompacted()[SHARED]], lambda data: stores.check_log(SHARED, data)),
    "manifest": _file("manifests/00000000000000000002.json"),
    "manifest-resealed": Target(lambda: [stores.compacted()[NEWEST]], lambda data: _check_forged(NEWEST, data)),
    "part": _file("part-00001.jsonl"),
    "part-resealed": Target(lambda: [stores.compacted()[_one("part-00000.jsonl")]], _check_forged_part),
    "index": _file("part-00001.index"),
    "index-resealed": Target(
        lambda: [stores.compacted()[_one("part-00000.index")]],
        lambda data: _check_forged(_one("part-00000.index"), data),
    ),
    "archive": Target(lambda: [stores.compacted()[archive()]], lambda data: stores.check_damaged(archive(), data)),
    "archive-index": Target(
        lambda: [stores.compacted()[index_path(archive())]],
        lambda data: stores.check_damaged(index_path(archive()), data),
    ),
    "archive-index-resealed": Target(
        lambda: [stores.compacted()[index_path(archive())]], lambda data: _check_forged(index_path(archive()), data)
    ),
    "document": Target(lambda: [orjson.dumps({"n": 1, "x": [1.5, None, {"y": "\u2028"}]})], _check_document),
    "jsonl": Target(_jsonl_seeds, _check_jsonl),
    "backlog-manifest": _backlog_file("manifest.json"),
    "backlog-log": _backlog_file("ops/agent-a-1.jsonl"),
    "backlog-lost-log": _backlog_file("ops/ops-1.jsonl"),
    "backlog-snapshot": _backlog_file("snapshots/snap-1.jsonl"),
    "backlog-old-snapshot": _backlog_file("snapshots/snap-0.json"),
    "backlog-archive": _backlog_file("archive/archive-2026-Q1.json"),
    "git": Target(lambda: [_GIT], _check_git),
    "point": Target(
        lambda: [b"2026-11-20T12:00:00Z", b"12", b"2026-11-20 12:00:00.5+01:00", b"0001-01-01T00:00:00+14:00"],
        _check_point,
    ),
    "command": Target(lambda: COMMANDS, _check_command),
}


def archive() -> str:
    return next(path for path in stores.compacted() if path.startswith("archive/") and path.endswith(".jsonl"))
