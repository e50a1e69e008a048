"""`opslog verify` says why each garbage file is there, and its repairs lose nothing."""

from __future__ import annotations

import os
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import open_backend
from opslog.backends.local.fs import FsBackend
from opslog.errors import MissingFileError
from opslog.format.layout import index_path, segment_path
from opslog.verify.verify import Report, verify
from tests.support.files import files
from tests.test_verify import build, bytes_of, check, content, first, found, lines_of

HOUR = 3600


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template") / "store"
    build(str(root))
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "store")


def old(path: Path) -> None:
    """Make it as old as if it had been written two hours ago."""
    os.utime(path, (path.stat().st_mtime - 2 * HOUR,) * 2)


def garbage_file(root: Path, path: str, data: bytes = b"left\n", *, age: bool = False) -> str:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    if age:
        old(place)
    return path


def test_garbage_is_noted_with_its_reason(root: Path) -> None:
    reasons = {
        garbage_file(root, "snapshots/00000000000000000002-dead/part-00000.jsonl"): "nothing names it",
        garbage_file(root, "snapshots/00000000000000000009-beef/part-00000.jsonl"): "running, or failed",
        garbage_file(root, "manifests/00000000000000000005.json.tmp-1"): "being written",
        garbage_file(root, "manifests/00000000000000000005.json.tmp-2", age=True): "never finished",
        garbage_file(root, "notes.txt"): "not a file of opslog",
        garbage_file(root, "ops/a/readme"): "not a file of opslog",
        garbage_file(root, "archive/old/abc.jsonl", lines_of(root, segment_path("b", 1))[0]): "has no index",
        garbage_file(root, "archive/new/abc.jsonl", lines_of(root, segment_path("b", 1))[0]): "a crash ended that",
    }
    before = content(root)
    report = check(root)
    assert report.ok
    assert {problem.severity for problem in report.problems} == {"note"}
    assert {problem.path for problem in report.problems} == set(reasons)
    for problem in report.problems:
        assert reasons[problem.path] in problem.message
    garbage_file(root, "removed/x/anything")
    garbage_file(root, "locks/anything")
    assert len(check(root).problems) == len(reasons)
    assert content(root) == before


def test_repair_moves_aside_what_nobody_needs_and_nothing_else(root: Path) -> None:
    stay = [
        garbage_file(root, "snapshots/00000000000000000009-beef/part-00000.jsonl"),
        garbage_file(root, "manifests/00000000000000000005.json.tmp-1"),
        garbage_file(root, "notes.txt"),
    ]
    before, documents = bytes_of(root), content(root)
    go = [
        garbage_file(root, "snapshots/00000000000000000002-dead/part-00000.jsonl", b"a\n"),
        garbage_file(root, "snapshots/00000000000000000002-dead/part-00000.index", b"b\n"),
        garbage_file(root, "ops/a/00000000000000000007.jsonl.tmp-2", b"c\n", age=True),
    ]
    moved = {path: (root / path).read_bytes() for path in go}
    report = check(root, repair=True, environment=opslog.Environment(nonce=lambda: "n1"))
    assert report.repaired == [f"moved {path} to removed/n1/{path}" for path in sorted(go)]
    assert {problem.path for problem in report.problems} == set(stay)
    after = bytes_of(root)
    assert after == before | {f"removed/n1/{path}": data for path, data in moved.items()}
    assert content(root) == documents


@pytest.mark.parametrize("damage", ["missing", "flipped", "empty", "of another file"])
def test_repair_rebuilds_an_index_from_a_whole_part(root: Path, damage: str) -> None:
    part = first(root, "snapshots/*/*.jsonl")
    index = index_path(part)
    before, good = bytes_of(root), (root / index).read_bytes()
    match damage:
        case "missing":
            (root / index).unlink()
        case "flipped":
            (root / index).write_bytes(good.replace(b"0", b"1", 1))
        case "empty":
            (root / index).write_bytes(b"")
        case _:
            (root / index).write_bytes((root / max(map(str, root.glob("archive/*/*.index")))).read_bytes())
    bad = (root / index).read_bytes() if damage != "missing" else None
    error = found(check(root), index)[0]
    assert "--repair" in error.message
    report = check(root, repair=True, environment=opslog.Environment(nonce=lambda: "n1"))
    assert report.problems == []
    assert len(report.repaired) == 1
    assert report.repaired[0].startswith(f"made {index} anew")
    assert bytes_of(root) == before | ({} if bad is None else {f"removed/n1/{index}": bad})


def test_repair_leaves_alone_what_only_a_copy_can_restore(root: Path) -> None:
    part = first(root, "snapshots/*/*.jsonl")
    (root / part).write_bytes((root / part).read_bytes()[:-1])
    (root / index_path(part)).unlink()
    archive = first(root, "archive/*/*.index")
    (root / archive).write_bytes(b"{}\n")
    before = bytes_of(root)
    report = check(root, repair=True)
    assert report.repaired == []
    found(report, part)
    assert "Restore it and archive/old/" in found(report, archive)[0].message
    assert bytes_of(root) == before


@pytest.mark.parametrize("sessions", [0, 2])
def test_an_archive_whose_index_was_lost_is_damage(tmp_path: Path, sessions: int) -> None:
    root, settings = tmp_path / "store", opslog.Settings(undo_window=0, grace_seconds=0.0)
    with opslog.open(root, agent="a", settings=settings, compact_after=None) as store:
        store["x"] = {"n": 1}
        store.archive({"n": 1}, "p")
        if sessions:
            store.compact()
    for number in range(sessions):
        with opslog.open(root, agent="a", compact_after=None) as store:
            store["y"] = {"n": number}
            store.compact()
    assert (root / segment_path("a", 1)).exists() is (sessions == 0), "afterwards only the snapshot has the delete"
    index = first(root, "archive/p/*.index")
    (root / index).unlink()
    assert "documents were moved to this period" in found(check(root), index)[0].message


class Failing(FsBackend):
    """Reads of some paths fail; after the repair has begun, those of other ones."""

    def __init__(
        self,
        root: Path,
        errors: dict[str, type[opslog.OpslogError]],
        later: dict[str, type[opslog.OpslogError]] | None = None,
    ) -> None:
        super().__init__(str(root))
        self.errors = errors
        self._later = errors if later is None else later

    def lock(self, name: str) -> Any:
        self.errors = self._later
        return super().lock(name)

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        if path in self.errors:
            raise self.errors[path](f"no answer for {path}", path)
        return super().read(path, start, stop)


def manifests_of(root: Path) -> list[str]:
    """Those of a store in which each manifest but the newest one needs parts that the newest does not."""
    with opslog.open(root, agent="a") as store:
        store.compact(full=True)
    return sorted(path for path in files(root) if path.startswith("manifests/"))


def repaired_with(backend: Failing) -> Report:
    try:
        return verify(backend, repair=True)
    finally:
        backend.close()


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        *product(["damaged", "no answer", "not found", "away, and the one before is damaged"], [-1, -2, -3]),
        *product(["away"], [-2, -3]),  # without its manifest, a newest run looks like that of a running compaction
    ],
)
def test_repair_moves_no_part_while_a_manifest_cannot_be_read(root: Path, fault: str, number: int) -> None:
    """What such a manifest names is unknown. Its parts were once moved into ``removed/``."""
    manifests = manifests_of(root)
    path, older = manifests[number], manifests[number - 1]
    garbage_file(root, "snapshots/00000000000000000002-dead/part-00000.jsonl")
    before = bytes_of(root)
    errors: dict[str, type[opslog.OpslogError]] = {}
    match fault:
        case "damaged":
            (root / path).write_bytes(before[path][:-3])
        case "no answer":
            errors[path] = opslog.RetryError
        case "not found":
            errors[path] = MissingFileError
        case "away":
            (root / path).unlink()
        case _:
            (root / path).unlink()
            (root / older).write_bytes(before[older][:-3])
    report = repaired_with(Failing(root, errors))
    assert report.repaired == []
    for place in (path, older):
        (root / place).write_bytes(before[place])
    assert bytes_of(root) == before
    assert len(check(root, repair=True).repaired) == 1, "the garbage goes once everything can be read"
    assert check(root).problems == []


def test_an_index_that_could_not_be_read_for_a_moment_stays(root: Path) -> None:
    part = first(root, "snapshots/*/*.jsonl")
    index, before = index_path(part), bytes_of(root)
    report = repaired_with(Failing(root, {index: opslog.RetryError}, {}))
    assert (report.repaired, report.problems) == ([], [])
    assert bytes_of(root) == before


def test_repair_goes_on_behind_a_part_that_was_collected(root: Path) -> None:
    one, other = sorted(path for path in files(root) if path.startswith("snapshots/") and path.endswith(".jsonl"))[:2]
    for part in (one, other):
        (root / index_path(part)).unlink()
    report = repaired_with(Failing(root, {}, {one: MissingFileError}))
    assert [sentence.split(" from ")[0] for sentence in report.repaired] == [f"made {index_path(other)} anew"]


def test_repair_waits_for_no_compaction(root: Path) -> None:
    garbage_file(root, "snapshots/00000000000000000002-dead/part-00000.jsonl")
    backend = open_backend(str(root))
    with backend.lock("compaction"):
        assert check(root).ok
        with pytest.raises(opslog.LockedError):
            check(root, repair=True)
    assert check(root, repair=True).problems == []
