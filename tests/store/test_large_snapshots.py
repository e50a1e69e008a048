"""Snapshots that stay on storage: the cost of reading, and their collection during a read."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opslog
from opslog.backends import Backend, open_backend
from opslog.format import snapshot
from opslog.format.commits import Set, encode_commit
from opslog.format.manifest import Part
from opslog.snapshot import runs
from opslog.snapshot.manifests import ManifestStore
from tests.support.bucket import BUCKETS

TS = "2026-11-20T12:00:00.000000Z"

Store = opslog.Store[dict[str, Any]]
_numbers = itertools.count()
SETTINGS = opslog.Settings(undo_window=1, grace_seconds=0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and parts of a few documents, none of them loaded."""
    monkeypatch.setattr(runs, "LOADED_BYTES", 0)
    monkeypatch.setattr(runs, "_INDEXED_BYTES", 400)
    monkeypatch.setattr(snapshot, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(snapshot, "PART_BYTES", 3000)


@pytest.fixture(params=["directory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "directory" else f"bucket://large-{next(_numbers)}"


def fill(url: str, revision: int = 0) -> dict[str, Any]:
    """A store whose snapshot has 200 documents, in one run."""
    documents = {f"{number:03}": {"number": number, "revision": revision} for number in range(200)}
    with opslog.open(url, agent="writer", settings=SETTINGS, compact_after=None) as store:
        for id, document in documents.items():
            store[id] = document
        store.compact(full=True)
        store.compact()  # collects what the first one replaced
    return documents


def part_paths(url: str) -> list[str]:
    return [part.path for run in ManifestStore(open_backend(url)).newest().runs for part in run.parts]


def test_a_lookup_costs_a_block_and_opening_nothing() -> None:
    url = f"bucket://large-{next(_numbers)}"
    documents = fill(url)
    asked = BUCKETS[url.removeprefix("bucket://")].asked

    def of_the_snapshot(since: int) -> int:
        return sum("snapshots/" in request.key for request in asked[since:])

    start = len(asked)
    with opslog.open(url, read_only=True) as store:
        assert len(store) == 200
        assert of_the_snapshot(start) == 0
        assert store["100"] == documents["100"]
        assert of_the_snapshot(start) == 2, "the index of the part, and the block"
        assert ("100" in store, "1001" in store) == (True, False)
        assert of_the_snapshot(start) == 2
        assert dict(store.items()) == documents
        assert of_the_snapshot(start) == 2 + 1 + len(part_paths(url)), "a listing, and each part whole"


def test_only_the_parts_that_are_read_are_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program reads few of very many parts, and opening the store must not take time for each of them."""
    documents = fill(str(tmp_path))
    assert len(part_paths(str(tmp_path))) > 3
    prepared: list[str] = []
    make = runs._StoredPart.__init__

    def noted(self: runs._StoredPart, backend: Backend, part: Part) -> None:
        prepared.append(part.path)
        make(self, backend, part)

    monkeypatch.setattr(runs._StoredPart, "__init__", noted)
    with opslog.open(tmp_path, read_only=True) as store:
        assert prepared == []
        assert store["100"] == documents["100"]
        assert len(prepared) == 1
        assert dict(store.items()) == documents
        assert sorted(prepared) == sorted(part_paths(str(tmp_path))), "each once"


@given(written=st.dictionaries(st.text(max_size=4), st.booleans(), min_size=1), decoy=st.text(max_size=4))
def test_a_block_finds_its_documents_however_their_lines_are_written(written: dict[str, bool], decoy: str) -> None:
    lines = []
    for id, as_we_do in sorted(written.items()):
        data = json.dumps({"id": decoy, "of": id})
        if as_we_do:
            lines.append(encode_commit(Set(TS, 1, "a", id, msgspec.Raw(data.encode()))))
        else:
            fields = {"id": id, "op": "set", "data": json.loads(data), "agent": "a", "clock": 1, "ts": TS}
            lines.append(json.dumps(fields).encode() + b"\n")
    before = b"something that comes before the block\n"
    block = b"".join(lines)
    opened = runs._OpenBlock(before + block, len(before), len(before + block), path="path", offset=1000, size=0)
    for id in written:
        record = opened.find(id)
        assert isinstance(record, Set)
        assert (record.id, record.document["of"]) == (id, id)
    if decoy not in written:
        assert opened.find(decoy) is None


def test_a_line_that_is_no_record_is_named_though_its_block_has_the_right_checksum() -> None:
    lines = [encode_commit(Set(TS, 1, "a", id, msgspec.Raw(b"{}"))) for id in "abcdefg"]
    lines[4] = lines[4].replace(b'"clock":1', b'"clock":0')
    block = b"".join(lines)
    opened = runs._OpenBlock(block, 0, len(block), path="path", offset=1000, size=0)
    assert opened.find("a") is not None
    with pytest.raises(opslog.CorruptError) as caught:
        opened.find("e")
    assert (caught.value.path, caught.value.offset) == ("path", 1000 + len(b"".join(lines[:4])))


def test_a_collected_document_is_looked_up_in_the_newest_snapshot(url: str) -> None:
    fill(url)
    with opslog.open(url, read_only=True) as reader:
        newest = fill(url, revision=1)
        assert reader["100"] == newest["100"] or reader["100"]["revision"] == 0
        seen = [reader[f"{number:03}"]["revision"] for number in range(0, 200, 7)]
        assert seen == sorted(seen)
        reader.refresh()
        assert dict(reader.items()) == newest


def test_an_iteration_goes_on_while_its_snapshot_is_collected(url: str) -> None:
    before = fill(url)
    with opslog.open(url, read_only=True) as reader:
        documents = iter(reader.items())
        seen = dict(itertools.islice(documents, 20))
        newest = fill(url, revision=1)
        if url.startswith("bucket"):
            with pytest.raises(opslog.RetryError, match="begin it again"):
                seen.update(documents)
            assert dict(reader.items()) == newest
        else:
            seen.update(documents)
            assert seen == before


def test_a_refresh_frees_runs_that_were_replaced(url: str) -> None:
    """Although this store had read everything that was compacted before."""
    fill(url)
    with opslog.open(url, read_only=True) as reader, opslog.open(url, agent="writer", compact_after=None) as writer:
        writer["100"] = {"new": True}
        reader.refresh()
        number = writer.compact(full=True).number
        reader.refresh()
        assert reader.stats().manifest == number
        assert dict(reader.items()) == dict(writer.items())


def test_a_view_of_the_past_whose_snapshot_was_collected_says_so() -> None:
    url = f"bucket://large-{next(_numbers)}"
    fill(url)
    with opslog.open(url, as_of=200) as past:
        fill(url, revision=1)
        with pytest.raises(opslog.ReopenError, match="collected meanwhile: open it again"):
            past["100"]


def test_loss_and_damage_are_named_by_whoever_reads(url: str) -> None:
    documents = fill(url)
    lost, damaged = part_paths(url)[2], part_paths(url)[4]
    backend = open_backend(url)
    data = backend.read(damaged)
    backend.delete([lost, damaged])
    backend.create(damaged, data.replace(b'"number"', b'"numbre"', 1))
    errors = Counter[str]()
    with opslog.open(url, read_only=True) as store:
        for id, document in documents.items():
            try:
                assert store[id] == document
            except opslog.CorruptError as error:
                errors[error.path] += 1
        with pytest.raises(opslog.OpslogError):
            list(store.items())
    assert errors.keys() == {lost, damaged}
    assert errors[damaged] < errors[lost] < 60, "one block, one part"


def test_a_batch_and_an_undo_over_a_large_snapshot(url: str) -> None:
    documents = fill(url)
    with opslog.open(url, agent="other") as store:
        with store.batch():
            store["100"] = {"new": True}
            del store["000"]
            store["zzz"] = {}
            assert len(store) == 200
            assert next(iter(store)) == "001"
        assert (len(store), store["100"], "000" in store) == (200, {"new": True}, False)
        assert store.undo()
        assert (len(store), dict(store.items())) == (200, documents)
        del store["100"]
        assert len(store) == 199
        store["100"] = documents["100"]
        assert (len(store), dict(store.items())) == (200, documents)


@pytest.mark.parametrize("counted_before", [False, True])
def test_documents_of_the_tail_are_counted_whenever_that_is_asked_first(url: str, counted_before: bool) -> None:
    """The loaded documents are counted at the first question, and later only the writes. The question comes in between,
    or after an undo."""
    documents = fill(url)
    with opslog.open(url, agent="other", compact_after=None) as store:
        del store["000"]
        store["zzy"] = store["zzz"] = {}
    with opslog.open(url, agent="other", compact_after=None) as store:
        if counted_before:
            assert len(store) == 201
        assert store.undo()
        assert (len(store), "zzz" in store) == (200, False)
        del store["001"]
        del documents["000"], documents["001"]
        assert (len(store), dict(store.items())) == (199, documents | {"zzy": {}})
