"""find, count and group of an open store: the same answers as from a plain filter, in every kind of store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.errors import ConflictError, QueryError, SchemaVersionError

TASKS: dict[str, dict[str, Any]] = {
    "a": {"status": "active", "hours": 3, "tags": ["x", "y"]},
    "b": {"status": "done", "hours": 10},
    "c": {"status": "active", "hours": 2.5, "due": {"year": 2026}},
    "d": {"hours": None, "tags": ["x", "x"]},
    "e": {"status": 7, "hours": "many"},
    "f": {"status": True},
}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with opslog.open(tmp_path / "tasks", agent="a") as store:
        store.update(TASKS)
        yield store


def ids(found: Iterable[tuple[str, Any]]) -> str:
    return "".join(id for id, _ in found)


def test_find_returns_documents_in_order_of_id(store: opslog.Store[Any]) -> None:
    assert store.find('status = "active"') == [("a", TASKS["a"]), ("c", TASKS["c"])]
    assert store.find() == list(TASKS.items())
    assert ids(store.find({"hours": {">": 2.5}})) == "ab"
    assert store.find("status = nobody") == []


def test_documents_that_were_found_are_the_callers_own(store: opslog.Store[Any]) -> None:
    for _, document in store.find(order_by="hours"):
        document.clear()
    for _, document in store.find("exists hours"):
        document.clear()
    assert dict(store) == TASKS


@pytest.mark.parametrize(
    ("order_by", "found"),
    [
        ("hours", "fdcabe"),  # missing, null, numbers, strings
        ("-hours", "ebacdf"),
        ("status", "dfeacb"),  # missing, true, a number, strings
        ("-status", "bacefd"),
        (["status", "-hours"], "dfeacb"),
        (["-status", "hours"], "bcaefd"),
        ("due.year", "abdefc"),
        ("-@id", "fedcba"),
        ("@clock", "abcdef"),
        ([], "abcdef"),
    ],
)
def test_every_value_has_a_place_in_an_order(store: opslog.Store[Any], order_by: Any, found: str) -> None:
    assert ids(store.find(order_by=order_by)) == found
    assert ids(store.find(order_by=order_by, limit=2)) == found[:2]
    assert ids(store.find(order_by=order_by, limit=3, offset=2)) == found[2:5]
    assert ids(store.find(order_by=order_by, offset=4)) == found[4:]
    assert store.find(order_by=order_by, limit=0) == store.find(order_by=order_by, offset=99) == []
    assert ids(store.find(order_by=order_by, limit=2**63, offset=1)) == found[1:]
    assert store.find(order_by=order_by, limit=2**70, offset=2**70) == []


def test_filter_refuses_a_condition_and_names_find(store: opslog.Store[Any]) -> None:
    condition: Any = "n = 1"
    with pytest.raises(opslog.UsageError, match=r"filter takes a function of a document, not 'n = 1'; find takes"):
        store.filter(condition)
    with store.transaction() as transaction, pytest.raises(opslog.UsageError, match="find takes conditions"):
        transaction.filter(condition)


def test_count_takes_conditions_and_predicates(store: opslog.Store[Any]) -> None:
    assert store.count() == 6
    assert store.count({}) == 6
    assert store.count("status = active") == store.count(lambda document: document.get("status") == "active") == 2
    assert store.count({"tags[*]": "x"}) == 2


def test_group_counts_values(store: opslog.Store[Any]) -> None:
    assert store.group("status") == [("active", 2), (None, 1), (True, 1), (7, 1), ("done", 1)]
    assert store.group("tags[*]") == [("x", 2), ("y", 1)]
    assert store.group("hours", "status = active") == [(2.5, 1), (3, 1)]
    assert store.group("hours", "status = nobody") == []
    store["g"] = {"status": 7.0}
    store["h"] = {"status": None}
    groups = store.group("status")
    assert groups == [(None, 2), (7, 2), ("active", 2), (True, 1), ("done", 1)]
    assert [type(group.value) for group in groups] == [type(None), int, str, bool, str]


def test_group_gives_values_that_a_document_can_hold(store: opslog.Store[Any]) -> None:
    store["g"] = {"n": [-1e19, 1e19, 1e20, float(-(2**63)), float(2**64)]}
    values = [group.value for group in store.group("n[*]")]
    assert values == [-1e19, float(-(2**63)), 1e19, float(2**64), 1e20]
    assert [type(value) for value in values] == [float, int, int, float, float]
    store["h"] = {"n": values}


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.find("status = "),
        lambda store: store.find({"a": {"~": 1}}),
        lambda store: store.find(order_by="a b"),
        lambda store: store.find(3),
        lambda store: store.count("x"),
        lambda store: store.group(""),
        lambda store: store.group(3),
        lambda store: store.index(3),
        lambda store: store.group("status", "x"),
        lambda store: store.archive("x"),
    ],
)
def test_a_question_that_cannot_be_read_is_refused(
    store: opslog.Store[Any], call: Callable[[opslog.Store[Any]], object]
) -> None:
    with pytest.raises(QueryError):
        call(store)


def test_a_batch_finds_what_it_has_written(store: opslog.Store[Any]) -> None:
    with store.batch():
        store["a"] = {"status": "done"}
        store["g"] = {"status": "active"}
        del store["c"]
        assert ids(store.find("status = active")) == "g"
        assert store.count("status = active") == 1
        assert store.find("@clock >= 0 and status = done") == [("b", TASKS["b"])]  # not committed: no clock yet
    assert ids(store.find("status = done and @author = a")) == "ab"


def test_the_past_can_be_asked(store: opslog.Store[Any], tmp_path: Path) -> None:
    clock = max(record.clock for record in store.records())
    store["a"] = {"status": "done"}
    with opslog.open(tmp_path / "tasks", as_of=clock) as past:
        assert ids(past.find("status = active")) == "ac"
        assert past.group("status")[0] == ("active", 2)
    with opslog.open(tmp_path / "tasks", read_only=True) as reader:
        assert ids(reader.find("status = active")) == "c"


@dataclass
class Task:
    title: str
    hours: int = 0


def test_a_typed_store_finds_typed_documents(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a", type=Task) as store:
        store["a"] = Task("Build", 3)
        store["b"] = Task("Test")
        assert store.find("hours > 0") == store.find({"hours": {">": 0}}, order_by="title") == [("a", Task("Build", 3))]
        assert store.find(order_by="-hours")[0][1] == Task("Build", 3)


def test_conditions_see_what_migrate_returns(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["a"] = {"name": "Build"}
    with opslog.open(
        tmp_path, agent="b", version=2, migrate=lambda document, version: {"title": document["name"]}
    ) as store:
        store["b"] = {"title": "Test"}
        assert store.find("title = Build") == [("a", {"title": "Build"})]
        assert store.find(order_by="-title", limit=1) == [("b", {"title": "Test"})]
        assert store.count("exists name") == 0
    with opslog.open(tmp_path, read_only=True) as old, pytest.raises(SchemaVersionError):
        old.find("title = nobody")


def test_the_first_by_an_index_are_in_its_order_whatever_version_they_are_of(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store.update({id: {"n": 9 - n, "is": "old"} for n, id in enumerate("abc")})
    with opslog.open(tmp_path, agent="b", version=2, migrate=lambda document, version: document) as store:
        store.update({id: {"n": n, "is": "new"} for n, id in enumerate("xyz", 6)})
        for order in ("n", "-n"):
            found = store.find("is != lost", order_by=order, limit=5)
            assert found.explain == "index on n, in its order"
            assert found == store.find("is != lost", order_by=order)[:5]


def test_damage_affects_only_reads_that_reach_it(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a", version=2, settings=opslog.Settings(undo_window=0)) as store:
        store["z"] = {"n": 1}
    with opslog.open(tmp_path, agent="b") as store:
        store.update({"a": {"n": 1}, "b": {"n": 1}})
        store.compact()
    with opslog.open(tmp_path, read_only=True) as old:
        assert old.find("n != 2", limit=2) == [("a", {"n": 1}), ("b", {"n": 1})]
        with pytest.raises(SchemaVersionError):
            old.find("n != 2", limit=3)


def test_archive_takes_a_condition(store: opslog.Store[Any]) -> None:
    assert store.archive("status = done or @id = c", "p") == 2
    assert [*store.load_archive("p")] == ["b", "c"]


def test_a_transaction_finds_what_it_has_written(store: opslog.Store[Any]) -> None:
    with store.transaction() as t:
        t["g"] = {"status": "active", "hours": 9}
        del t["a"]
        assert ids(t.find("status = active", order_by="-hours", limit=1)) == "g"
        assert t.count("status = active") == 2
        assert t.group("status")[0] == ("active", 2)
        with pytest.raises(QueryError):
            t.count("x")
    assert ids(store.find("status = active")) == "cg"


@pytest.mark.parametrize("ask", ["find", "count", "group"])
@pytest.mark.parametrize(
    ("document", "conflicts"),
    [({"status": "active"}, True), ({"status": "blocked"}, False)],
    ids=["fulfils it", "does not"],
)
def test_a_document_that_comes_to_fulfil_the_condition_conflicts(
    store: opslog.Store[Any], tmp_path: Path, ask: str, document: Any, conflicts: bool
) -> None:
    def run() -> None:
        with opslog.open(tmp_path / "tasks", agent="b") as other, store.transaction() as t:
            if ask == "find":
                t.find("status = active", limit=1)
            elif ask == "count":
                t.count({"status": "active"})
            else:
                t.group("hours", "status = active")
            other.create("z", document)
            t["made"] = {}

    if conflicts:
        with pytest.raises(ConflictError):
            run()
    else:
        run()
    assert ("made" in store) is not conflicts


def test_asyncio_has_the_same(tmp_path: Path) -> None:
    async def ask() -> None:
        async with opslog.aio.open(tmp_path, agent="a") as store:
            for id, document in TASKS.items():
                await store.set(id, document)
            assert ids(await store.find("status = active", order_by="hours", limit=5, offset=1)) == "a"
            assert await store.count("status = active") == await store.count({"status": "active"}) == 2
            assert await store.count(lambda document: "due" in document) == 1
            assert (await store.group("status", "exists status"))[0] == ("active", 2)
            assert await store.archive("status = done", "p") == 1
            async with store.transaction() as t:
                assert t.find("status = done") == []
            with pytest.raises(QueryError):
                await store.find("status =")

    asyncio.run(ask())
