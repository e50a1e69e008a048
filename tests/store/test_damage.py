"""Stores with something missing: a read says what is missing and where, and never returns a part of the answer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import opslog
from opslog.backends import open_backend
from opslog.format.layout import segment_path
from opslog.verify.verify import verify


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The logs of two agents, most of which a compaction has compacted, and a run."""
    for agent in ("a", "b"):
        with opslog.open(tmp_path, agent=agent, compact_after=None) as store:
            for number in range(60):
                store[f"{agent}-{number}"] = {"number": number}
    with opslog.open(tmp_path, agent="b") as store:
        store.compact()
    return tmp_path


READERS: dict[str, Callable[[Path], object]] = {
    "open": lambda root: opslog.open(root, read_only=True),
    "open for writing": lambda root: opslog.open(root, agent="c"),
    "open under the lost log's name": lambda root: opslog.open(root, agent="a"),
    "open in the past": lambda root: opslog.open(root, as_of=120),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("lost", ["segment", "log", "all logs", "end of the segment", "zeroed end", "run", "manifest"])
def test_missing_files_are_named_and_nothing_else_is_answered(
    root: Path, lost: str, read: Callable[[Path], object]
) -> None:
    log = segment_path("a", 1)
    path = log
    match lost:
        case "segment":
            (root / log).unlink()
        case "log":
            shutil.rmtree(root / "ops" / "a")
        case "all logs":
            shutil.rmtree(root / "ops")
        case "end of the segment":
            (root / log).write_bytes((root / log).read_bytes()[:100])
        case "zeroed end":
            lines = (root / log).read_bytes().splitlines(keepends=True)
            (root / log).write_bytes(b"".join([*lines[:-1], bytes(len(lines[-1]))]))
        case "run":
            shutil.rmtree(root / "snapshots")
            path = "snapshots/"
        case "manifest":
            shutil.rmtree(root / "manifests")
            path = "manifests/"
    with pytest.raises(opslog.CorruptError, match=r"opslog verify|Restore") as caught:
        read(root)
    assert caught.value.path.startswith(path)
    assert path in str(caught.value)


@pytest.mark.parametrize("call", ["refresh", "compact", "ops", "history"])
def test_files_lost_while_a_store_is_open_are_named_too(root: Path, call: str) -> None:
    with opslog.open(root, agent="c") as store:
        calls: dict[str, Callable[[], object]] = {
            "refresh": store.refresh,
            "compact": store.compact,
            "ops": lambda: list(store.ops()),
            "history": lambda: store.history("a-1"),
        }
        (root / segment_path("a", 1)).unlink()
        with pytest.raises(opslog.CorruptError, match="verify") as caught:
            calls[call]()
        assert caught.value.path == segment_path("a", 1)
        assert store["a-1"] == {"number": 1}, "what was read is still there"
        store["mine"] = {}
    assert (root / segment_path("c", 1)).exists()


def test_a_log_that_never_reached_a_manifest_cannot_be_missed(tmp_path: Path) -> None:
    """This is the limit of what can be known: before the first compaction nothing else names a log."""
    for agent in ("a", "b"):
        with opslog.open(tmp_path, agent=agent) as store:
            store[agent] = {}
    shutil.rmtree(tmp_path / "ops" / "a")
    with opslog.open(tmp_path, read_only=True) as store:
        assert set(store) == {"b"}


def test_the_last_segment_is_missed_also_when_the_cut_is_at_its_beginning(tmp_path: Path) -> None:
    settings = opslog.Settings(undo_window=1)
    for number in range(2):
        with opslog.open(tmp_path, agent="a", compact_after=None, settings=settings) as store:
            store[str(number)] = {}
    with opslog.open(tmp_path, agent="b") as store:
        assert store.compact().commits == 1
    (tmp_path / segment_path("a", 2)).unlink()
    with pytest.raises(opslog.CorruptError) as caught:
        opslog.open(tmp_path, read_only=True)
    assert caught.value.path == segment_path("a", 2)
    errors = [problem for problem in verify(open_backend(tmp_path)).problems if problem.severity == "error"]
    assert [problem.path for problem in errors] == [segment_path("a", 2)]
