"""Real sizes: long logs, long lines, many agents, many documents, and the memory they need."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opslog
from opslog.backends import open_backend, posix
from opslog.backends.local import fs
from opslog.environment import format_ts
from opslog.format.commits import Set, encode_commit
from opslog.log.reader import bytes_after, list_segments
from opslog.snapshot.manifests import ManifestStore
from tests.support import programs
from tests.support.processes import start

Store = opslog.Store[dict[str, Any]]

MIB = 1024 * 1024


def text(number: int, length: int) -> str:
    """A text of this many characters, different for each number."""
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    return (digest * (length // len(digest) + 1))[:length]


# Log bytes, segment bytes
@pytest.mark.parametrize(
    ("log_bytes", "segment_bytes"),
    [
        pytest.param(40 * MIB, 4 * MIB, id="40MiB"),
        pytest.param(520 * MIB, fs.SEGMENT_BYTES, id="520MiB", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_a_long_log(tmp_path: Path, log_bytes: int, segment_bytes: int) -> None:
    length = 250_000
    documents = log_bytes // length + 1
    with opslog.open(
        tmp_path, agent="a", durability="buffered", compact_after=None, segment_bytes=segment_bytes
    ) as store:
        for number in range(documents):
            store[f"doc-{number}"] = {"number": number, "text": text(number, length)}

    def check(store: Store) -> None:
        assert len(store) == documents
        for id, document in store.items():
            assert document == {"number": document["number"], "text": text(document["number"], length)}
            assert id == f"doc-{document['number']}"

    with opslog.open(tmp_path, agent="b", compact_after=None) as other:
        stats = other.stats()
        assert stats.log_bytes > log_bytes
        assert stats.log_segments > 1
        check(other)
        assert sum(1 for _ in other.ops()) == documents
        assert other.compact().commits == documents - opslog.Settings().undo_window
        other.refresh()
        check(other)
    with opslog.open(tmp_path, agent="a", compact_after=None) as store:
        check(store)
        assert store.undo()
        assert len(store) == documents - 1


@pytest.mark.parametrize("batched", [False, True])
def test_a_line_of_16_mib(tmp_path: Path, batched: bool) -> None:
    long: dict[str, Any] = {"text": text(1, 16 * MIB), "numbers": list(range(8000)), "end": "✓"}
    with (
        opslog.open(tmp_path, agent="reader", settings=opslog.Settings(undo_window=1), compact_after=None) as reader,
        opslog.open(tmp_path, agent="a", compact_after=None) as store,
    ):
        store["before"] = {}
        if batched:
            with store.batch():
                for number in range(16):
                    store[f"text-{number}"] = {"text": text(number, MIB)}
                store["long"] = {"end": True}
        else:
            store["long"] = long
        store["after"] = {}
        documents = dict(store.items())
        assert store.stats().log_bytes > 16 * MIB
        assert len(reader.refresh()) == 3
        assert dict(reader.items()) == documents
        if not batched:
            assert reader["long"] == long
        reader.compact()
        with opslog.open(tmp_path, read_only=True) as fresh:
            assert dict(fresh.items()) == documents
        assert store.archive(lambda document: True, "all") == len(documents)
        assert store.load_archive("all") == documents
        assert store.undo()
        reader.refresh()
        assert dict(reader.items()) == documents


@pytest.mark.parametrize("agents", [1_000, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_many_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agents: int) -> None:
    settings = opslog.Settings(undo_ttl_seconds=0, grace_seconds=0)
    with opslog.open(tmp_path, agent="judge", settings=settings, compact_after=None) as judge:
        judge["first"] = {}
        write_logs(tmp_path, monkeypatch, agents)
        wanted = {f"doc-{number}": {"number": number} for number in range(agents)} | {"first": {}}
        assert len(judge.refresh()) == agents
        assert dict(judge.items()) == wanted
        with opslog.open(tmp_path, agent="agent-7", compact_after=None) as one:
            assert dict(one.items()) == wanted
            assert one.undo()
            one["again"] = {}
        del wanted["doc-7"]
        wanted["again"] = {}
        judge.refresh()
        assert dict(judge.items()) == wanted
        with monkeypatch.context() as patch:
            without_syncs(patch)  # it appends to each of the logs
            done = judge.compact()
        # All agents but the judge, who is alive, are idle. So their logs are sealed and compacted whole.
        assert len(done.sealed) == agents
        assert done.commits == agents + 2 + agents
        judge.refresh()
        assert dict(judge.items()) == wanted
        assert judge.stats().agents == agents + 1
        assert judge.compact(full=True).sealed == ()
    with opslog.open(tmp_path, agent="agent-7", compact_after=None) as one:
        assert dict(one.items()) == wanted
        assert not one.undo()
        one["doc-7"] = {"number": "new"}
    with opslog.open(tmp_path, read_only=True) as fresh:
        assert dict(fresh.items()) == wanted | {"doc-7": {"number": "new"}}


def without_syncs(patch: pytest.MonkeyPatch) -> None:
    """Without syncs, because this does not measure the cost of many small files on a disk."""
    patch.setattr(os, "fsync", lambda descriptor: None)
    patch.setattr(posix, "datasync", lambda descriptor: None)


def write_logs(root: Path, monkeypatch: pytest.MonkeyPatch, agents: int) -> None:
    """A log with one commit for each of this many agents."""
    with monkeypatch.context() as patch:
        without_syncs(patch)
        backend = open_backend(str(root))
        for number in range(agents):
            data = msgspec.Raw(b'{"number":%d}' % number)
            appender = backend.appender(f"agent-{number}")
            appender.append(encode_commit(Set(format_ts(0), number + 1, f"agent-{number}", f"doc-{number}", data)))
            appender.close()
        backend.close()


MANY = [
    pytest.param(100_000, id="100000"),
    pytest.param(1_000_000, id="1000000", marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
]


@pytest.mark.parametrize("length", [200, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("documents", MANY)
def test_memory_stays_within_three_times_the_data(tmp_path: Path, documents: int, length: int) -> None:
    """Peak memory above that of an interpreter that has loaded the library, while opening and compacting. The data are
    the bytes of the live documents, as JSON, plus those of the logs after the cut.

    All figures: pytest --log-cli-level=info.

    :param length: bytes of one document.
    """
    url = str(tmp_path)
    figures: dict[str, float] = {}

    def measure(what: str, action: str) -> None:
        data = documents * length + tail_bytes(url)
        with start(programs.measure, action, url) as process:
            figures[what] = round(process.hear() / data, 2)

    def write(first: int, last: int) -> None:
        with opslog.open(url, agent=f"agent-{first}", durability="buffered", compact_after=None) as store:
            for number in range(first, last):
                store[f"document-{number}"] = sized(number, length)

    write(0, documents)
    measure("open, all in the tail", "open")
    measure("compact, all in the tail", "compact")
    measure("open, all in the snapshot", "open")
    write(0, documents // 10)
    measure("open, a tenth in the tail", "open")
    measure("compact, a tenth in the tail", "compact")
    write(0, documents // 10)
    measure("full compaction, a tenth in the tail", "full")
    with opslog.open(url, read_only=True) as store:
        assert len(store) == documents
        assert all(document == sized(document["n"], length) for document in store.values())
    logging.getLogger(__name__).info("memory, times the data, %d documents of %d bytes: %s", documents, length, figures)
    over = {what: figure for what, figure in figures.items() if figure > 3}
    assert not over, f"times the data: {over}; all figures: {figures}"


def sized(number: int, length: int) -> dict[str, Any]:
    """A document whose JSON has this many bytes."""
    frame = len(f'{{"n":{number},"text":""}}')
    return {"n": number, "text": text(number, length - frame)}


def tail_bytes(url: str) -> int:
    backend = open_backend(url)
    return bytes_after(list_segments(backend), ManifestStore(backend).newest().cut)
