"""Every single bit: what readers see if it flips, and where a flip goes unnoticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from opslog.archive import read_archive
from opslog.errors import CorruptError, DataError
from opslog.format.exact import loads
from opslog.format.layout import STORE
from opslog.format.manifest import decode_manifest
from opslog.format.snapshot import decode_index
from opslog.snapshot.identity import decode_identity
from opslog.snapshot.runs import BlockRun, load_runs
from opslog.verify.verify import verify
from tests.fuzz import stores, targets
from tests.fuzz.stores import Files


def flipped(data: bytes, bits: range) -> Iterator[tuple[int, bytes]]:
    """(the bit's number, the data with that bit flipped)"""
    for bit in bits:
        place = bit // 8
        yield bit, data[:place] + bytes([data[place] ^ 1 << bit % 8]) + data[place + 1 :]


def every(data: bytes, step: int = 1) -> range:
    return range(0, 8 * len(data), step)


def checked_files() -> list[str]:
    return sorted(path for path in stores.compacted() if not path.startswith("ops/"))


def test_the_store_has_files_of_all_kinds() -> None:
    kinds = {path.partition("/")[0] + path[path.rindex(".") :] for path in checked_files()}
    assert kinds == {
        "manifests.json",
        "snapshots.jsonl",
        "snapshots.index",
        "archive.jsonl",
        "archive.index",
        "store.json.json",
    }


def test_each_bit_of_a_manifest_and_of_an_index() -> None:
    files = stores.compacted()
    for path in checked_files():
        if path.startswith("manifests/"):
            for _, data in flipped(files[path], every(files[path])):
                with pytest.raises(CorruptError):
                    decode_manifest(data, path, int(path[-25:-5]))
        elif path.endswith(".index"):
            for _, data in flipped(files[path], every(files[path])):
                with pytest.raises(CorruptError):
                    decode_index(data, path.replace(".index", ".jsonl"))
        elif path == STORE:
            for _, data in flipped(files[path], every(files[path])):
                with pytest.raises(CorruptError):
                    decode_identity(data)


def test_each_bit_of_a_part_and_of_an_archive() -> None:
    """The part is read into memory in one case, and stays on storage in the other."""
    files = stores.compacted()
    backend = stores.place(files)
    (run,) = decode_manifest(files[targets.NEWEST], targets.NEWEST, 2).runs
    for part in run.parts:
        only = type(run)(run.name, [part])
        for _, data in flipped(files[part.path], every(files[part.path])):
            backend.delete([part.path])
            backend.create(part.path, data)
            with pytest.raises(CorruptError):
                load_runs(backend, [only])
            with pytest.raises(CorruptError):
                list(BlockRun(backend, only).records())
        backend.delete([part.path])
        backend.create(part.path, files[part.path])
    path = targets.archive()
    for _, data in flipped(files[path], every(files[path])):
        backend.delete([path])
        backend.create(path, data)
        with pytest.raises(CorruptError) as caught:
            read_archive(backend, "2026-Q4")
        assert caught.value.path == path


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow, id="all"), pytest.param(997, id="some")])
def test_each_bit_of_what_has_checksums_is_seen_by_verify_and_changes_no_answer(step: int) -> None:
    for path in checked_files():
        data = stores.compacted()[path]
        for _, damaged in flipped(data, every(data, step)):
            stores.check_damaged(path, damaged)


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow, id="all"), pytest.param(29, id="some")])
def test_a_bit_of_a_log_is_seen_or_changes_that_commit_alone(step: int) -> None:
    """It also counts how often each of them happens: `docs/decisions/checksums.md` has the figures for all bits."""
    files = stores.uncompacted()
    log = files[targets.LOG]
    backend = stores.place(files)
    before = stores.state()
    seen: Counter[str] = Counter()
    for bit, damaged in flipped(log, every(log, step)):
        backend.delete([targets.LOG])
        backend.create(targets.LOG, damaged)
        try:
            after = stores.state()
        except DataError:
            seen["an error when it is read"] += 1
            continue
        if not verify(backend).ok:
            seen["verify alone"] += 1
            continue
        changed = {id for id in before.keys() | after if repr(before.get(id)) != repr(after.get(id))}
        number = log[: bit // 8].count(b"\n")
        assert changed <= touched(files, damaged, number), f"bit {bit}"
        seen["nothing sees it, and a document differs" if changed else "nothing sees it, and no document differs"] += 1
    print(dict(seen), f"of {len(every(log, step))} bits")  # noqa: T201  (pytest -s shows it)
    assert seen["an error when it is read"] > seen.total() / 2


def touched(files: Files, damaged: bytes, number: int) -> set[str]:
    """The documents that the commit on line `number` of the log changes, before and after the damage. (If a newline is
    damaged, two lines become one, and that is never a commit.)"""
    found: set[str] = set()
    for log in (files[targets.LOG], damaged):
        commits = [loads(line) for line in log.split(b"\n")[:-1]]
        commit = commits[number] if number < len(commits) else {"op": "lost"}
        clocks = {commit.get("clock"), commit.get("target")}
        found |= {id for other in commits if other["clock"] in clocks for id in ids(other)}
    return found


def ids(commit: dict[str, Any]) -> set[str]:
    return {op["id"] for op in commit.get("ops", [commit]) if "id" in op}
