"""Documents that stay decoded in memory: a read returns the current document, and the caller owns the result."""

from __future__ import annotations

import copy
import gc
import random
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import opslog
from opslog import kernel
from opslog.errors import UsageError
from opslog.format import commits, documents
from opslog.format.exact import load_document
from opslog.replica.decoded import CACHE_BYTES, DecodedDocuments
from opslog.store import replica_of

Document = dict[str, Any]
NESTED: Document = {"a": 1, "list": [1, [2, {"deep": []}], {}], "object": {"x": {"y": [None, True]}}, "text": "é"}

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("aé"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=10,
)


def containers(value: Any) -> set[int]:
    """The identities of all objects and arrays in a value."""
    if not isinstance(value, dict | list):
        return set()
    items = value.values() if isinstance(value, dict) else value
    return {id(value)}.union(*map(containers, items))


@given(st.dictionaries(st.text("ab"), VALUES, max_size=4))
def test_a_copy_is_equal_and_shares_nothing_that_can_change(document: Document) -> None:
    kept = DecodedDocuments(CACHE_BYTES)
    kept.keep("x", None, document, 100)
    first, second = kept.by_id["x"].copy(), kept.by_id["x"].copy()
    assert first == second == document
    assert documents.encode(first) == documents.encode(document)  # types and the order of keys, too
    assert not containers(first) & containers(second)
    assert not containers(first) & containers(document)


def test_documents_read_are_the_callers_own(tmp_path: Path) -> None:
    with opslog.open(tmp_path) as store:
        store["x"] = copy.deepcopy(NESTED)
        for _ in range(3):
            read = store["x"]
            assert read == NESTED
            read["list"][1][1]["deep"].append(1)
            read["object"].clear()
        assert store.stats().cached_documents == 1


def test_a_document_that_is_read_again_is_not_decoded_again(tmp_path: Path) -> None:
    with opslog.open(tmp_path) as store:
        store["x"] = NESTED
        assert store["x"] == NESTED
        with patch.object(commits, "load_document", side_effect=AssertionError("decoded")):
            assert store["x"] == store.get("x") == NESTED


def large(store: opslog.Store[Document]) -> None:
    """Fill a store so that its snapshot stays on storage."""
    with store.batch():
        for number in range(1000):
            store[f"other-{number:04}"] = {"text": "x" * 10_000}


@pytest.mark.parametrize("prepare", [lambda store: None, large], ids=["small", "large"])
def test_every_change_is_seen(tmp_path: Path, prepare: Callable[[opslog.Store[Document]], None]) -> None:
    """By the writer and by another store: sets, deletes, undos, batches, compactions and reloads, in all orders."""
    choose = random.Random(7)
    settings = opslog.Settings(undo_window=4, grace_seconds=0)
    with opslog.open(tmp_path, settings=settings, compact_after=None) as store:
        prepare(store)
        with (
            opslog.open(tmp_path, agent="other", compact_after=None) as other,
            opslog.open(tmp_path, agent="plain", compact_after=None, cache_bytes=0) as plain,
        ):
            for step in range(400):
                writer = choose.choice((store, other))
                id = choose.choice("abc")
                match choose.randrange(10):
                    case 0 if id in writer:
                        del writer[id]
                    case 1:
                        writer.undo()
                    case 2 if step % 5 == 0:
                        writer.compact()
                    case 3:
                        with writer.batch():
                            writer[id] = {"batch": [step]}
                            assert writer[id] == {"batch": [step]}
                    case _:
                        writer[id] = {"step": [step]}
                store.refresh()
                other.refresh()
                plain.refresh()
                for each in "abc":
                    expected = plain.get(each)
                    assert store.get(each) == other.get(each) == store.get(each) == expected, step
            assert store.stats().cached_documents
            assert not plain.stats().cached_documents


def test_a_batch_that_fails_leaves_the_document_as_it_was(tmp_path: Path) -> None:
    with opslog.open(tmp_path) as store:
        store["x"] = {"n": 1}
        assert store["x"] == {"n": 1}
        with pytest.raises(ZeroDivisionError), store.batch():  # noqa: PT012
            store["x"] = {"n": 2}
            assert store["x"] == {"n": 2}
            raise ZeroDivisionError
        assert store["x"] == {"n": 1}


def test_documents_of_older_versions_are_migrated_each_time(tmp_path: Path) -> None:
    with opslog.open(tmp_path, version=1) as store:
        store["x"] = {"n": [1]}
    calls: list[int] = []

    def migrate(document: Document, version: int) -> Document:
        calls.append(version)
        return document | {"n": [2]}

    with opslog.open(tmp_path, version=2, migrate=migrate) as store:
        assert store["x"] == store["x"] == {"n": [2]}
        assert calls == [1, 1]
        store["x"] = {"n": [3]}
        assert store["x"] == store["x"] == {"n": [3]}
        assert calls == [1, 1]


def test_memory_is_bounded_and_what_was_kept_first_goes_first(tmp_path: Path) -> None:
    with opslog.open(tmp_path, durability="buffered", cache_bytes=100_000) as store:
        with store.batch():
            for number in range(1000):
                store[f"{number:04}"] = {"n": number, "list": [number]}
            store["long"] = {"text": "x" * 50_000}
        for _ in range(10):
            for id in store:
                store.get(id)
        stats = store.stats()
        assert 50 < stats.cached_documents < 200
        assert 80_000 < stats.cached_bytes <= 100_000
        kept = replica_of(store).decoded
        assert stats.cached_bytes == sum(known.size for known in kept.by_id.values())
        assert "long" not in kept.by_id  # it alone would take half of it
        for _ in range(60):
            store.get("0000")  # a document that is read often is kept again
        assert "0000" in kept.by_id


def test_what_is_read_once_takes_the_place_of_nothing(tmp_path: Path) -> None:
    """Nor does the store remember more ids than a part of the number of documents that it keeps."""
    with opslog.open(tmp_path, durability="buffered", cache_bytes=100_000) as store:
        for number in range(3000):
            store[f"{number:04}"] = {"n": number, "list": [number]}
        kept = replica_of(store).decoded
        for number in range(3000):
            assert store[f"{number:04}"]["n"] == number
        before = list(kept.by_id)
        assert before == [f"{number:04}" for number in range(len(before))]
        for number in range(1000, 3000):
            assert store[f"{number:04}"]["n"] == number
            assert kept.read is not None
            assert len(kept.read) <= 1 + len(before) // 4
        assert list(kept.by_id) == before
        for _ in range(2):
            assert store["2000"]["n"] == 2000
        assert "2000" in kept.by_id


@pytest.mark.skipif(not kernel.IS_USED, reason="only the kernel holds lines")
def test_a_get_that_a_reload_overtakes_does_not_show_what_the_lines_of_the_former_state_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opslog.open(tmp_path, durability="buffered", compact_after=None, cache_bytes=0) as store:
        for number in range(3000):
            store[f"{number:04}"] = {"n": number, "text": "x" * 1000}
    with opslog.open(tmp_path, compact_after=None, cache_bytes=0) as store:
        replica = replica_of(store)
        assert replica.state.lines is not None
        store["0001"] = {"n": -1}
        asked: list[object] = []

        def overtaken(id: str, *rest: Any) -> Any:
            """Another thread loads another state after this thread has got the state to search in."""
            if not asked:
                asked.append(id)
                replica.between_refreshes(replica._load_again)
            return find_document(id, *rest)

        find_document: Any = kernel.find_document
        monkeypatch.setattr("opslog.replica.replica.find_document", overtaken)
        assert store["0001"] == {"n": -1}
        assert asked


def test_the_estimate_is_near_what_documents_take() -> None:
    kept = DecodedDocuments(CACHE_BYTES)
    text = documents.encode(NESTED | {f"field-{number}": f"value {number}" for number in range(10)})
    gc.collect()
    tracemalloc.start()
    for number in range(1000):
        kept.keep(f"task-{number}", None, load_document(text), len(text))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.5 < kept.bytes / taken < 2, (kept.bytes, taken, sys.version)


def test_nothing_is_kept_with_0_nor_with_a_type(tmp_path: Path) -> None:
    with opslog.open(tmp_path, cache_bytes=0) as store:
        store["x"] = NESTED
        assert store["x"] == store["x"] == NESTED
        assert (store.stats().cached_documents, store.stats().cached_bytes) == (0, 0)
    with opslog.open(tmp_path, type=dict[str, Any]) as typed:
        assert typed["x"] == typed["x"] == NESTED
        assert typed.stats().cached_documents == 0
    with pytest.raises(UsageError, match="cache_bytes is a number of bytes from 0 on, not -1"):
        opslog.open(tmp_path, cache_bytes=-1)


def test_kept_documents_are_dropped_when_there_is_no_more_memory(tmp_path: Path) -> None:
    with opslog.open(tmp_path) as store:
        store["x"], store["y"] = NESTED, {"n": 1}
        assert store["x"] == NESTED
        fails = [True]

        def load(text: bytes) -> Document:
            if fails:
                fails.clear()
                raise MemoryError
            return load_document(text)

        with patch.object(commits, "load_document", load):
            assert store["y"] == {"n": 1}
        assert store.stats().cached_documents == 0


@pytest.mark.skipif(not kernel.IS_USED, reason="without it there is one path")
def test_kept_documents_are_dropped_when_the_kernel_gets_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise MemoryError

    with opslog.open(tmp_path) as store:
        store["x"], store["y"] = NESTED, {"n": 1}
        assert store["x"] == NESTED
        monkeypatch.setattr("opslog.replica.replica.find_document", fail)
        assert store["y"] == {"n": 1}
        assert store.get("z") is None
        assert store.stats().cached_documents == 0


def test_an_interrupt_while_kept_documents_are_dropped_leaves_no_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: DecodedDocuments) -> None:
        raise KeyboardInterrupt

    with opslog.open(tmp_path, agent="planner") as writer:

        def settle(number: int) -> None:
            writer["task"] = {"number": number}
            for _ in range(200):  # so that the set can no longer be undone, and leaves the tail
                writer["other"] = {}
            writer.compact()

        settle(1)
        with opslog.open(tmp_path, read_only=True) as store:
            assert "task" not in replica_of(store).state.winners
            assert store["task"] == {"number": 1}
            settle(2)
            replica_of(store).invalidate()  # so that the next call loads
            with monkeypatch.context() as context:
                context.setattr(DecodedDocuments, "clear", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    store.get("task")
            assert store["task"] == {"number": 2}
