"""The claims of docs/security.md, beside tests/backends/test_links.py, tests/fuzz and tests/test_manifest.py."""

from __future__ import annotations

import ast
import gzip
import io
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import opslog
from opslog.backends import open_backend, posix
from opslog.backends.local.fs import FsBackend
from opslog.bulk.ingest import ingest, ingest_archives
from opslog.format import commits
from opslog.format.layout import manifest_path, segment_path
from opslog.format.manifest import encode_manifest
from opslog.format.snapshot import Row, build_archive
from opslog.importers import ImportedCommit, ImportedOp, lines
from opslog.importers.jsonl import read_json_lines
from opslog.snapshot.manifests import ManifestStore
from opslog.verify.verify import verify

ROOT = Path(__file__).parents[1]

HOSTILE = [
    *("..", ".", "../x", "a/b", "/etc/passwd", "a\0b", "", "-x", ".x", "x" * 129, "a\n", "é", "a\\b", "\ud800", "a b"),
]


def listing(place: Path) -> list[str]:
    return sorted(path.relative_to(place).as_posix() for path in place.rglob("*"))


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_no_name_leaves_the_root(tmp_path: Path, name: str) -> None:
    """Agents, periods and locks, in each call that takes one."""
    root = tmp_path / "store"
    with opslog.open(root, agent="a") as store:
        store["x"] = {}
        before = listing(tmp_path)
        backend = open_backend(root)
        commit = ImportedCommit(name, None, (ImportedOp("delete", "x", None),), "here")
        calls: list[Callable[[], object]] = [
            lambda: opslog.open(root, agent=name),
            lambda: store.archive(lambda document: True, name),
            lambda: store.load_archive(name),
            lambda: backend.appender(name),
            lambda: backend.lock(name).__enter__(),
            lambda: ingest_archives(backend, [(name, "x", {})]),
            lambda: ingest_archives(backend, [("p", "x", {})], agent=name),
        ]
        if name:
            calls.append(lambda: ingest(backend, [commit]))
        for call in calls:
            with pytest.raises(opslog.InvalidNameError):
                call()
        assert store["x"] == {}
    assert listing(tmp_path) == before


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "a//b", "./a", "a/", "", "a\0"], ids=range(8))
@pytest.mark.parametrize("url", ["directory", "memory"])
def test_no_path_leaves_the_root(tmp_path: Path, url: str, path: str) -> None:
    (tmp_path / "x").write_text("outside")
    backend = open_backend(tmp_path / "store" if url == "directory" else "memory://")
    calls: list[Callable[[], object]] = [
        lambda: backend.read(path),
        lambda: backend.map(path),
        lambda: backend.create(path, b"x"),
        lambda: backend.delete([path]),
        lambda: backend.list(f"{path}/"),
    ]
    for call in calls:
        with pytest.raises(opslog.InvalidNameError):
            call()
    assert (tmp_path / "x").read_text() == "outside"


def test_an_id_is_never_a_path(tmp_path: Path) -> None:
    ids = ["../../x", "/etc/passwd", "a\0b", "", "." * 5000, "con", "\x1b[2J"]
    with opslog.open(tmp_path / "store", settings=opslog.Settings(undo_window=0), compact_after=None) as store:
        for id in ids:
            store[id] = {"id": id}
        store.compact()
        store.archive(lambda document: True, "p")
        assert {id: document["id"] for id, document in store.load_archive("p").items()} == {id: id for id in ids}
    assert os.listdir(tmp_path) == ["store"]


def test_nothing_of_a_store_is_ever_executed() -> None:
    """No pickle, no marshal of what was read, no eval, no YAML, no shell."""
    if not (ROOT / "opslog").is_dir():
        pytest.skip("the sources are not beside the tests")
    allowed = {
        ("opslog/format/documents.py", "marshal"),  # it only writes, to check whether a document has plain types
        ("opslog/doors/tokens.py", "tomllib"),  # a file of the operator; it makes plain values
    }
    forbidden = {"pickle", "cPickle", "shelve", "dill", "cloudpickle", "marshal", "yaml", "tomllib", "code", "runpy"}
    found = set()
    for path in (path for folder in ("opslog", "backends") for path in (ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {(name, alias.name) for alias in node.names if alias.name.partition(".")[0] in forbidden}
            elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in forbidden:
                found.add((name, str(node.module)))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}:
                found.add((name, node.func.id))
            elif isinstance(node, ast.keyword) and node.arg == "shell":
                found.add((name, "shell"))
    assert found == allowed
    text = (ROOT / "opslog" / "format" / "documents.py").read_text(encoding="utf-8")
    assert "marshal.loads" not in text
    assert "marshal.load(" not in text


# Hostile sizes


def test_a_commit_longer_than_a_line_may_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "LINE_BYTES_MAX", 10_000)
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {"n": 1}
        with pytest.raises(opslog.UsageError, match="make several batches of it"):
            store["long"] = {"text": "x" * 10_000}
        with pytest.raises(opslog.UsageError, match="make several batches of it"), store.batch():
            store.update({str(number): {} for number in range(1000)})
        store["y"] = {"n": 2}
        assert dict(store.items()) == {"x": {"n": 1}, "y": {"n": 2}}
    with opslog.open(tmp_path, read_only=True) as store:
        assert dict(store.items()) == {"x": {"n": 1}, "y": {"n": 2}}
    assert verify(open_backend(tmp_path)).ok


@pytest.mark.parametrize("content", [b"x", b"["], ids=["letters", "brackets"])
@pytest.mark.parametrize("ended", [False, True], ids=["torn", "ended"])
def test_a_line_without_end_takes_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, ended: bool
) -> None:
    """This is a small version of 256 MiB and 1 GiB."""
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {}
    log = tmp_path / segment_path("evil", 1)
    log.parent.mkdir()
    log.write_bytes(content * (64 << 20) + b"\n" * ended)
    monkeypatch.setattr(posix, "READ_BYTES_MAX", 4 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(opslog.RetryError, match="no line is so long, so opslog did not write this") as caught:
            opslog.open(tmp_path, read_only=True)
        assert str(log) in str(caught.value)
        (problem,) = verify(open_backend(tmp_path)).problems
        assert (problem.severity, problem.path, problem.offset) == ("error", segment_path("evil", 1), 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.slow
def test_a_log_of_gigabytes_without_a_line_takes_bounded_memory(tmp_path: Path) -> None:
    """The file has a hole, so it takes no room on the disk."""
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {}
    log = tmp_path / segment_path("evil", 1)
    log.parent.mkdir()
    with open(log, "wb") as file:
        file.truncate(20 << 30)
    code = """
import resource, sys, opslog
try:
    opslog.open(sys.argv[1], read_only=True)
except opslog.RetryError as error:
    assert "no line is so long" in str(error)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1500, "MiB"


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_an_import_of_a_line_without_end_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1 << 20)
    content = b'{"id":"a"}\n' + b" " * (64 << 20)
    stream = io.BytesIO(gzip.compress(content, 1) if packed else content)
    del content
    tracemalloc.start()
    try:
        with pytest.raises(opslog.CorruptError, match="no document is so long") as caught:
            list(read_json_lines(stream))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.offset == 11
    assert peak < 8 << 20


def test_memory_follows_the_number_of_agents_in_small_steps(tmp_path: Path) -> None:
    """A directory for each of a million agents makes a listing of a million entries. That takes time and memory in
    proportion, and no more."""
    backend = FsBackend(tmp_path)
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {}
    data = (tmp_path / segment_path("a", 1)).read_bytes()
    for number in range(2000):
        agent = f"agent-{number:07}"
        log = tmp_path / segment_path(agent, 1)
        log.parent.mkdir()
        log.write_bytes(data.replace(b'"agent":"a"', b'"agent":"%b"' % agent.encode()))
    tracemalloc.start()
    try:
        with opslog.open(tmp_path, read_only=True) as store:
            assert store.stats().agents == 2001
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak / 2000 < 6000, "bytes per agent"
    assert len(backend.list("ops/")) == 2001


# What is not protected


def test_a_writer_can_forge_everything(tmp_path: Path) -> None:
    """Checksums find accidents. They are not signatures: anybody can compute them."""
    with opslog.open(tmp_path, agent="a", settings=opslog.Settings(undo_window=0), compact_after=None) as store:
        store["x"] = {"owner": "ann"}
        store.compact()
    (part,) = tmp_path.glob("snapshots/*/*.jsonl")
    line = part.read_bytes().replace(b"ann", b"eve")
    row = Row.of(commits.decode_record(line), line)
    forged = build_archive(part.relative_to(tmp_path).as_posix(), [row])
    part.write_bytes(forged.data)
    part.with_suffix(".index").write_bytes(forged.index)
    manifest = ManifestStore(open_backend(tmp_path)).newest()
    run = replace(manifest.runs[0], parts=[forged.part])
    (tmp_path / manifest_path(2)).write_bytes(encode_manifest(replace(manifest, runs=[run])))
    assert verify(open_backend(tmp_path)).ok
    with opslog.open(tmp_path, read_only=True) as store:
        assert store["x"] == {"owner": "eve"}


def test_a_writer_can_write_in_the_name_of_any_agent(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="ann") as store:
        store["x"] = {"by": "ann"}
    line = commits.Set("2026-11-20T12:00:00.000000Z", 99, "ann", "x", msgspec.Raw(b'{"by":"eve"}'))
    (tmp_path / segment_path("ann", 2)).write_bytes(commits.encode_commit(line))
    with opslog.open(tmp_path, read_only=True) as store:
        assert store["x"] == {"by": "eve"}
        assert [commit.agent for commit in store.ops()] == ["ann", "ann"]
    assert verify(open_backend(tmp_path)).ok


def test_nothing_is_encrypted_and_what_was_deleted_stays_for_a_while(tmp_path: Path) -> None:
    """Until the document is compacted, and all manifests from before are collected."""

    def is_there() -> bool:
        return any(b"s3cret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    with opslog.open(tmp_path, agent="a", settings=settings, compact_after=None) as store:
        store["x"] = {"password": "s3cret"}
        del store["x"]
        assert is_there()
    with opslog.open(tmp_path, agent="a", compact_after=None) as store:
        store["y"] = {}  # in the next segment, because the newest one of a log always stays
        store.compact(full=True)
        store["z"] = {}
        store.compact(full=True)
        assert not is_there()


def test_one_agent_can_stop_the_others(tmp_path: Path) -> None:
    """By a clock after which none is left. opslog itself never reaches it. The others can still read, and their error
    names the cause."""
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {}
    line = commits.Delete("2026-11-20T12:00:00.000000Z", commits.CLOCK_MAX, "eve", "y")
    log = tmp_path / segment_path("eve", 1)
    log.parent.mkdir()
    log.write_bytes(commits.encode_commit(line))
    with opslog.open(tmp_path, agent="a") as store:
        assert list(store) == ["x"]
        with pytest.raises(opslog.CorruptError, match="no commit can follow clock"):
            store["z"] = {}


def test_every_claim_of_the_page_has_a_test() -> None:
    """Each paragraph and each table row that makes a claim names tests, and these exist."""
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 25
    for path, function in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {function}(" in text if function else text, f"{path}::{function}"
    tables = re.findall(r"^\|[^\n]*\|\n\| ---[^\n]*\n((?:\|[^\n]*\n)+)", page, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    assert [row for row in rows if "tests/" not in row] == []
