"""Imported commits in the logs of their agents."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import Backend, Position, open_backend
from opslog.backends.local.fs import FsBackend
from opslog.bulk import ingest as ingest_module
from opslog.bulk.ingest import Ingested, ingest
from opslog.format.layout import segment_path
from opslog.importers import ImportedCommit, ImportedOp
from opslog.log.reader import list_segments
from opslog.log.survey import read_on
from opslog.verify.verify import verify

TS = "2020-02-02T02:02:02.020202Z"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def backend(root: Path) -> Iterator[Backend]:
    backend = open_backend(str(root))
    yield backend
    backend.close()


def put(id: str, agent: str | None = None, version: int = 1, **document: Any) -> ImportedCommit:
    return ImportedCommit(agent, TS, (ImportedOp("set", id, document, version),), f"file:{id}")


def drop(id: str, agent: str | None = None) -> ImportedCommit:
    return ImportedCommit(agent, TS, (ImportedOp("delete", id, None),), f"file:{id}")


def content(root: Path) -> dict[str, Any]:
    with opslog.open(root, read_only=True, version=None) as store:
        return dict(store.items())


def commits(backend: Backend) -> list[opslog.Commit]:
    found = [commit for commits, _ in read_on(backend, {}, list_segments(backend)) for commit in commits]
    return sorted(found, key=lambda commit: commit.stamp)


def test_commits_keep_their_order_across_agents_with_agent_ts_and_version(backend: Backend, root: Path) -> None:
    stream = [
        put("a", "ann", n=1),
        put("a", "zoe", n=2),
        put("a", "ann", n=3),
        put("b", None, version=7, n=4),
        ImportedCommit("zoe", TS, (ImportedOp("set", "c", {}), ImportedOp("delete", "b", None)), "file:5"),
        drop("never there"),
    ]
    assert ingest(backend, stream, agent="me") == Ingested(commits=6, ops=7, agents=3, clock=6, deletes=2)
    assert content(root) == {"a": {"n": 3}, "c": {}}
    written = commits(backend)
    assert [(commit.clock, commit.agent, commit.op) for commit in written] == [
        (1, "ann", "set"),
        (2, "zoe", "set"),
        (3, "ann", "set"),
        (4, "me", "set"),
        (5, "zoe", "batch"),
        (6, "me", "delete"),
    ]
    assert {commit.ts for commit in written} == {TS}
    assert isinstance(written[3], opslog.Set)
    assert written[3].v == 7


def test_a_commit_without_a_time_gets_the_time_of_the_import(backend: Backend) -> None:
    environment = opslog.Environment(time=lambda: 86400.5)
    ingest(backend, [ImportedCommit(None, None, (ImportedOp("set", "a", {}),), "x:1")], environment=environment)
    assert [commit.ts for commit in commits(backend)] == ["1970-01-02T00:00:00.500000Z"]


def test_imported_commits_come_after_everything_in_the_store(backend: Backend, root: Path) -> None:
    with opslog.open(root, agent="zoe", compact_after=None) as store:
        for number in range(50):
            store["a"] = {"old": number}
        store.compact()
    assert ingest(backend, [put("a", "ann", new=1)]).clock == 51
    assert content(root) == {"a": {"new": 1}}
    with opslog.open(root, agent="zoe") as store:
        store["a"] = {"newest": 1}
    assert content(root) == {"a": {"newest": 1}}


def test_importing_again_changes_nothing(backend: Backend, root: Path) -> None:
    stream = [put("a", "ann", n=1), put("b", "bob", n=1), drop("a", "bob")]
    ingest(backend, stream)
    before = content(root)
    ingest(backend, stream)
    assert content(root) == before == {"b": {"n": 1}}


def test_chunks_are_written_one_after_the_other(backend: Backend, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "_CHUNK_BYTES", 500)
    seen: list[int] = []
    monkeypatch.setattr(ingest_module, "_PROGRESS_COMMITS", 10)
    stream = [put(f"d{n % 40}", f"agent-{n % 3}", n=n) for n in range(300)]
    done = ingest(backend, stream, progress=seen.append)
    assert done == Ingested(300, 300, 3, 300)
    assert seen == list(range(10, 301, 10))
    assert len(list_segments(backend)["agent-0"]) > 3
    assert content(root) == {f"d{n % 40}": {"n": n} for n in range(260, 300)}
    assert [commit.clock for commit in commits(backend)] == list(range(1, 301))


def test_compaction_between_the_chunks_loses_nothing(
    backend: Backend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_module, "_CHUNK_BYTES", 1)

    def stream() -> Iterator[ImportedCommit]:
        for n in range(60):
            yield put(f"d{n}", "ann", n=n)
            if n % 7 == 6:
                with opslog.open(root, agent="compactor") as store:
                    store.compact()

    with opslog.open(root, agent="compactor", settings=opslog.Settings(undo_window=1, grace_seconds=0)):
        pass
    assert ingest(backend, stream()).commits == 60
    assert len(list_segments(backend)["ann"]) < 20
    assert content(root) == {f"d{n}": {"n": n} for n in range(60)}


def test_lines_that_share_an_append_say_so(backend: Backend, root: Path) -> None:
    """So zeros among them, left by a power cut before the import returned, are a torn tail and not damage."""
    ingest(backend, [put("x"), put("y"), put("z"), put("z"), put("z"), put("z")])
    path = root / segment_path("main", 1)
    data = path.read_bytes()
    assert [b'"joined":true' in line for line in data.splitlines()] == [False, True, True, True, True, True]
    start = data.index(b'"id":"z"')
    path.write_bytes(data[: start + 20] + bytes(30) + data[start + 50 :])
    assert set(content(root)) == {"x", "y"}
    assert verify(backend).ok


def test_an_empty_import_makes_no_store(backend: Backend) -> None:
    assert ingest(backend, []) == Ingested()
    assert backend.list("") == []


def test_a_source_that_ends_in_an_error_leaves_nothing_of_its_last_chunk(backend: Backend) -> None:
    def stream() -> Iterator[ImportedCommit]:
        yield put("a")
        raise opslog.CorruptError("file: byte 7: no JSON")

    with pytest.raises(opslog.CorruptError):
        ingest(backend, stream())
    assert backend.list("") == []


@pytest.mark.parametrize(
    ("commit", "error", "text"),
    [
        (put("a", x=[1, {"y": math.nan}]), opslog.InvalidDocumentError, r"file:a: .*\$\.x\[1\]\.y"),
        (put("a\ud800"), opslog.InvalidNameError, "surrogate"),
        (put("a", "no/such"), opslog.InvalidNameError, "file:a: agent 'no/such'"),
    ],
)
def test_documents_that_cannot_be_stored_are_refused_with_their_source(
    backend: Backend, commit: ImportedCommit, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ingest(backend, [commit])
    assert backend.list("") == []


def test_an_agent_with_a_live_writer_is_refused(backend: Backend, root: Path) -> None:
    with opslog.open(root, agent="ann") as store:
        with pytest.raises(opslog.AgentBusyError, match="ann"):
            ingest(backend, [put("a", "ann")])
        store["b"] = {}
    assert content(root) == {"b": {}}


def test_an_agent_that_wrote_meanwhile_is_not_written_over(
    backend: Backend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clocks may be above those of the import, and the clocks of a log only grow."""
    real = type(backend).appender

    def appender(self: Backend, agent: str) -> Any:
        monkeypatch.undo()
        with opslog.open(root, agent=agent) as store:
            store["meanwhile"] = {}
        return real(backend, agent)

    monkeypatch.setattr(type(backend), "appender", appender)
    with pytest.raises(opslog.RetryError, match=r"'ann' .* run the import again"):
        ingest(backend, [put("a", "ann")])
    assert content(root) == {"meanwhile": {}}
    ingest(backend, [put("a", "ann")])
    assert content(root) == {"meanwhile": {}, "a": {}}


def test_a_log_that_appeared_and_was_collected_meanwhile_is_not_begun_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would read commits that are imported under used numbers."""
    settings = opslog.Settings(undo_window=0, grace_seconds=0.0)
    opslog.open(root, agent="b", settings=settings, compact_after=None).close()
    now = 1e9
    monkeypatch.setattr(FsBackend, "now", lambda self: now)
    backend = open_backend(root)
    real = FsBackend.appender

    def appender(self: FsBackend, agent: str) -> Any:
        monkeypatch.setattr(FsBackend, "appender", real)
        nonlocal now
        with opslog.open(root, agent=agent, compact_after=None) as store:
            store["meanwhile"] = {}
        with opslog.open(root, agent="b", compact_after=None) as store:
            for number in range(5):
                now = time.time() + 3600.0 * number
                store["x"] = {"number": number}
                store.compact()
        assert backend.list(f"ops/{agent}/") == []
        return real(self, agent)

    monkeypatch.setattr(FsBackend, "appender", appender)
    with pytest.raises(opslog.RetryError, match=r"'ann' .* run the import again"):
        ingest(backend, [put("a", "ann")])
    ingest(backend, [put("a", "ann")])
    assert [entry.path for entry in backend.list("ops/ann/")] == [segment_path("ann", 2)]
    assert content(root) == {"meanwhile": {}, "x": {"number": 4}, "a": {}}
    backend.close()


def test_names_are_given_back_after_a_failed_write(
    backend: Backend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = backend.appender("probe")
    probe.close()

    def append(self: object, data: bytes) -> Position:
        raise opslog.WriteFailedError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(type(probe), "append", append)
        with pytest.raises(opslog.WriteFailedError):
            ingest(backend, [put("a", "ann")])
    ingest(backend, [put("a", "ann")])
    assert content(root) == {"a": {}}


@pytest.mark.parametrize("version", [0, 2**63], ids=["zero", "beyond"])
def test_a_schema_version_that_no_line_can_hold_is_not_written(backend: Backend, version: int) -> None:
    """Such a version was written before, and nobody could read the log from there on."""
    with pytest.raises(opslog.UsageError, match="file:a: a schema version is an integer from 1 to"):
        ingest(backend, [put("a", version=version)])
    with pytest.raises(opslog.UsageError, match="a schema version is an integer from 1 to"):
        opslog.open("memory://version", version=version)
