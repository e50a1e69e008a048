"""The operations behind the doors, on a store with a log of its own and on one that writes only to the shared log."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

import opslog
from opslog.backends.local.fs import FsBackend
from opslog.doors.operations import Operations, merge_patched
from opslog.doors.problems import CODES, code_of, problem_of
from opslog.doors.values import Expect, Op, Undone, Written
from opslog.replica.state import View
from opslog.store import Store, replica_of

Documents = dict[str, object]


@pytest.fixture(params=["own", "shared"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store[Documents]]:
    with opslog.open(tmp_path, agent="door", version=None, log=request.param) as opened:
        yield opened


@pytest.fixture
def door(store: Store[Documents]) -> Operations:
    return Operations(store)


def test_a_write_gives_the_stamp_that_its_document_has(door: Operations) -> None:
    written = door.set("a", {"n": 1})
    entry = door.get("a")
    assert (entry.stamp, entry.author, entry.data) == (written.stamp, "door", {"n": 1})
    assert written.ids == ["a"]
    assert door.set("a", {"n": 2}, if_stamp=written.stamp).stamp != written.stamp
    with pytest.raises(opslog.ConflictError):
        door.set("a", {"n": 3}, if_stamp=written.stamp)
    with pytest.raises(opslog.ConflictError):
        door.set("a", {"n": 3}, if_stamp=None)
    assert door.get("a").data == {"n": 2}


def test_the_stamp_of_a_write_is_its_own_also_where_another_one_follows_at_once(tmp_path: Path) -> None:
    """Twenty threads write one document. Each gets another stamp, and one of these is the document's stamp."""
    with opslog.open(tmp_path, agent="door", version=None, log="shared") as store:
        stamps: list[str | None] = []
        threads = [
            threading.Thread(target=lambda n=n: stamps.append(Operations(store).set("a", {"n": n}).stamp))
            for n in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(stamps)) == 20
        assert Operations(store).get("a").stamp in stamps


def test_a_document_is_not_created_after_another_op_of_the_request_wrote_it(door: Operations) -> None:
    """The answer used to be that the document exists, and showed the one that was never written, with a stamp `0@`."""
    before = door.set("a", {"n": 1})
    for first in (Op("set", "a", {}), Op("create", "a", {}), Op("set", "b", {})):
        with pytest.raises(opslog.UsageError, match="an op before it") as refused:
            door.batch([first, Op("create", first.id, {"n": 2})])
        problem = problem_of(refused.value)
        assert (problem.code, problem.now) == ("invalid", None)
    assert [(item.id, item.stamp) for item in door.find().items] == [("a", before.stamp)]
    door.batch([Op("delete", "a"), Op("create", "a", {"n": 3})])
    assert door.get("a").data == {"n": 3}


def test_stamps_are_those_before_the_request_also_where_it_wrote_the_document_already(door: Operations) -> None:
    before = door.set("a", {"n": 1}).stamp
    now = door.batch([Op("set", "a", {"n": 2}), Op("set", "a", {"n": 3}, before), Op("set", "b", {})]).stamp
    assert door.get("a").data == {"n": 3}
    with pytest.raises(opslog.ConflictError) as refused:
        door.batch([Op("set", "a", {"n": 4}), Op("delete", "a", None, before)])
    problem = problem_of(refused.value)
    assert problem.now is not None
    assert (problem.now.stamp, problem.now.data) == (now, {"n": 3})


def test_create_delete_and_what_is_missing(door: Operations) -> None:
    door.create("a", {})
    with pytest.raises(opslog.ExistsError) as exists:
        door.create("a", {"n": 1})
    problem = problem_of(exists.value)
    assert (problem.code, problem.id, problem.now and problem.now.author) == ("exists", "a", "door")
    door.delete("a")
    for call in (lambda: door.get("a"), lambda: door.delete("a")):
        with pytest.raises(opslog.NotFoundError):
            call()


def test_modify_changes_fields_and_leaves_the_others(door: Operations) -> None:
    door.set("a", {"title": "x", "tags": {"k": 1, "l": 2}, "gone": 1})
    written, document = door.modify("a", {"tags": {"k": 3}, "gone": None, "new": [1]})
    assert document == {"title": "x", "tags": {"k": 3, "l": 2}, "new": [1]}
    assert door.get("a") == msgspec.structs.replace(door.get("a"), data=document, stamp=written.stamp)
    assert door.modify("b", {"n": 1})[1] == {"n": 1}, "one that is not there is made"
    with pytest.raises(opslog.ConflictError):
        door.modify("a", {"n": 1}, if_stamp="1@door")


def test_modify_makes_a_document_unless_it_must_exist(door: Operations) -> None:
    with pytest.raises(opslog.NotFoundError, match="Nothing was written"):
        door.modify("a", {"n": 1}, exists=True)
    door.modify("a", {"n": 1})
    assert door.modify("a", {"m": 2}, exists=True)[1] == {"n": 1, "m": 2}


def test_twenty_threads_that_modify_one_document_lose_nothing(door: Operations) -> None:
    threads = [threading.Thread(target=lambda n=n: door.modify("a", {f"n{n}": n})) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(door.get("a").data) == 20


@pytest.mark.parametrize(
    ("document", "changes", "expected"),
    [  # from RFC 7396
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": "foo"}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        (None, {"a": 1}, {"a": 1}),
    ],
)
def test_merge_patches(document: Documents, changes: Documents, expected: Documents) -> None:
    assert merge_patched(document, changes) == expected


def test_a_batch_is_one_commit_and_all_or_nothing(door: Operations) -> None:
    written = door.batch([Op("set", "a", {"n": 1}), Op("create", "b", {}), Op("set", "c", {})])
    assert {entry.stamp for entry in door.find().items} == {written.stamp}
    with pytest.raises(opslog.ExistsError):
        door.batch([Op("delete", "a"), Op("create", "b", {})])
    with pytest.raises(opslog.NotFoundError):
        door.batch([Op("delete", "a"), Op("delete", "nobody")])
    assert [entry.id for entry in door.find().items] == ["a", "b", "c"]
    door.batch([Op("delete", "b"), Op("create", "b", {"again": True})])
    assert door.get("b").data == {"again": True}, "the ops are done in their order"
    for wrong in (Op("set", "a"), Op("delete", "a", {})):
        with pytest.raises(opslog.UsageError):
            door.batch([wrong])
    assert door.batch([]).stamp is None


def test_a_transaction_checks_documents_that_it_does_not_write(door: Operations) -> None:
    stamp = door.set("a", {}).stamp
    door.transact([Op("set", "b", {})], [Expect("a", stamp), Expect("nobody", None)])
    with pytest.raises(opslog.ConflictError) as conflict:
        door.transact([Op("set", "b", {"n": 1})], [Expect("a", None)])
    assert problem_of(conflict.value).id == "a"
    with pytest.raises(opslog.ConflictError):
        door.transact([Op("set", "b", {"n": 1}), Op("set", "a", {}, stamp)], [Expect("nobody", "1@door")])
    assert door.get("b").data == {}


def test_find_gives_pages_and_fields(door: Operations) -> None:
    for n in range(7):
        door.set(f"t{n}", {"n": n, "even": n % 2 == 0, "due": {"year": 2020 + n}, "tags": ["x", "y"]})
    page = door.find("even = true", limit=2, fields=["n", "due.year", "tags[*]", "nothing"])
    assert [entry.data for entry in page.items] == [
        {"n": 0, "due.year": 2020, "tags[*]": ["x", "y"]},
        {"n": 2, "due.year": 2022, "tags[*]": ["x", "y"]},
    ]
    rest = door.find("even = true", limit=2, cursor=page.cursor)
    assert ([entry.id for entry in rest.items], rest.cursor) == (["t4", "t6"], None)
    sorted_page = door.find(order_by="-n", limit=3, offset=1)
    assert [entry.id for entry in sorted_page.items] == ["t5", "t4", "t3"]
    assert [entry.id for entry in door.find(order_by="-n", limit=3, cursor=sorted_page.cursor).items] == [
        "t2",
        "t1",
        "t0",
    ]
    assert door.find(order_by="-n", limit=7).cursor is None
    assert (door.count("n > 3"), door.count()) == (3, 7)
    assert [(each.value, each.documents) for each in door.group("even")] == [(True, 4), (False, 3)]
    for cursor in (page.cursor, "skip:x", "3", ""):
        with pytest.raises(opslog.UsageError):
            door.find(order_by="n", cursor=cursor)
    with pytest.raises(opslog.QueryError):
        door.find(fields=["a b"])


def test_pages_in_order_of_id_hide_nothing_that_is_written_meanwhile(door: Operations) -> None:
    for n in range(1, 6):
        door.set(f"t{n}", {})
    page = door.find(limit=2)
    door.set("t0", {})
    door.delete("t1")
    assert [entry.id for entry in door.find(limit=9, cursor=page.cursor).items] == ["t3", "t4", "t5"]


def test_undo_takes_back_the_newest_commit_and_says_which(door: Operations) -> None:
    door.set("a", {"n": 1})
    stamp = door.batch([Op("set", "a", {"n": 2}), Op("set", "b", {})]).stamp
    undone = door.undo()
    assert undone.undone
    if replica_of(door.store).log is None:
        assert (undone.stamp, undone.ids) == (stamp, ["a", "b"])
    assert {entry.id: entry.data for entry in door.find().items} == {"a": {"n": 1}}
    assert door.undo().undone
    assert not door.undo().undone


def test_two_authors_over_one_store_undo_their_own(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="server", version=None, log="shared") as store:
        ann, bob = Operations(store, "ann"), Operations(store, "bob")
        ann.set("a", {"by": "ann"})
        bob.set("b", {"by": "bob"})
        assert (ann.get("a").author, ann.get("b").author) == ("ann", "bob")
        assert ann.undo().ids == ["a"]
        assert not ann.undo().undone
        bob.modify("b", {"n": 1})
        ann.modify("b", {"n": 2})
        with pytest.raises(opslog.ConflictError) as conflict:
            bob.undo()
        assert problem_of(conflict.value).code == "conflict"
        assert [each.author for each in ann.history("b").revisions] == ["bob", "bob", "ann"]


def test_a_session_does_not_undo_commits_in_the_own_log_of_the_agent_of_its_name(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="ann") as own, opslog.open(tmp_path, agent="ann", log="shared") as session:
        session["b"] = {}
        own.refresh()
        own["a"] = {}
        for undo in (Operations(session).undo, session.undo):
            with pytest.raises(opslog.UsageError, match="in a log of that name"):
                undo()
        assert own.undo()
        assert Operations(session).undo().ids == ["b"]


def test_an_undo_that_finds_nothing_rests_on_what_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must not take away what the answer rests on."""
    persisted: list[str] = []
    with opslog.open(tmp_path, agent="a", log="shared") as store, opslog.open(tmp_path, agent="b") as other:
        other.create("x", {})
        persist = FsBackend.persist

        def note(backend: FsBackend, paths: Sequence[str]) -> None:
            persisted.extend(paths)
            persist(backend, paths)

        monkeypatch.setattr(FsBackend, "persist", note)
        assert not Operations(store).undo().undone
    assert [path.rpartition("/")[0] for path in persisted] == ["ops/transactions"]


def test_an_undo_beside_a_newer_write_of_its_author_takes_back_that_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer write comes into memory after the documents were frozen, on which the undo is decided."""
    stores = [opslog.open(tmp_path, agent="alice", log="shared", compact_after=None) for _ in range(2)]
    door, other = map(Operations, stores)
    door.set("x", {"n": 1})
    replica = replica_of(stores[0])
    freeze = replica.freeze

    def freeze_and_read_on() -> View:
        view = freeze()
        monkeypatch.setattr(replica, "freeze", freeze)
        other.set("x", {"n": 2})
        reading = threading.Thread(target=stores[0].refresh)
        reading.start()
        reading.join()
        return view

    monkeypatch.setattr(replica, "freeze", freeze_and_read_on)
    assert door.undo().stamp == "2000@transactions"
    assert stores[0]["x"] == {"n": 1}
    for store in stores:
        store.close()


def test_changes_name_what_is_new_and_say_what_they_leave_out(door: Operations) -> None:
    door.set("a", {"n": 1})
    everything = door.changes(most=0)
    assert everything.reset
    assert (everything.changes, everything.omitted, everything.complete) == ([], [], False)
    stamp = door.batch([Op("set", "b", {}), Op("delete", "a")]).stamp
    page = door.changes(everything.token)
    assert [(each.op, each.id, each.existed, each.stamp) for each in page.changes] == [
        ("delete", "a", True, stamp),
        ("set", "b", False, stamp),
    ]
    assert [(each.op, each.ids, each.author, each.won) for each in page.commits] == [
        ("batch", ["b", "a"], "door", True)
    ]
    some = door.changes(everything.token, most=1)
    assert (some.omitted, some.complete) == (["b"], True)
    assert door.changes(page.token).commits == []


def test_too_many_documents_are_read_in_pages_and_then_changes_go_on(door: Operations) -> None:
    """Writes between the pages are in the changes after the token, however pages and changes overlap."""
    for n in range(5):
        door.set(f"{n}", {"n": n})
    reset = door.changes(most=4)
    assert (reset.changes, reset.complete) == ([], False)
    assert len(door.changes(most=5).changes) == 5
    first = door.find(limit=2)
    door.set("0", {"n": 10})
    door.delete("3")
    door.set("9", {"n": 9})
    known: dict[str, object] = {
        entry.id: entry.data for page in (first, door.find(limit=9, cursor=first.cursor)) for entry in page.items
    }
    for change in door.changes(reset.token).changes:
        if change.op == "set":
            known[change.id] = change.data
        else:
            known.pop(change.id, None)
    assert known == {entry.id: entry.data for entry in door.find().items}


def test_history_keeps_the_newest(door: Operations) -> None:
    for n in range(3):
        door.set("a", {"n": n})
    door.delete("a")
    history = door.history("a", limit=2)
    assert ([each.data for each in history.revisions], history.earlier) == ([{"n": 2}, None], 2)
    assert door.history("a").earlier == 0


def test_a_description_says_what_is_there(door: Operations) -> None:
    door.set("a", {"title": "x", "due": {"year": 1}, "odd name": 1.5})
    door.set("b", {"title": None})
    description = door.describe()
    assert (description.documents, description.agent, description.ids) == (2, "door", ["a", "b"])
    seen = {field.path: (field.documents, field.types) for field in description.fields}
    assert seen["title"] == (2, ["null", "string"])
    assert (seen["due.year"], seen['"odd name"']) == ((1, ["integer"]), (1, ["number"]))
    assert "door" in {agent.name for agent in description.agents}
    assert description.settings["undo_window"] == 32
    assert msgspec.json.encode(description)


def test_a_description_names_fields_as_a_condition_does(door: Operations) -> None:
    names = ["not", "AND", "or", "in", "exists", "true", "null", "odd name", "plain", "a.b", "Not"]
    door.set("a", dict.fromkeys(names, dict.fromkeys(["not", "odd name"])))
    paths = [field.path for field in door.describe().fields]
    assert len(paths) == 3 * len(names)
    for path in paths:
        assert [item.id for item in door.find(f"exists {path}", fields=[path]).items] == ["a"], path


def test_all_results_are_json(door: Operations) -> None:
    token = door.changes().token
    written = door.set("a", {"n": 2**64 - 1, "f": 1.0})
    for result in (written, door.get("a"), door.find(), door.history("a"), door.changes(token), door.undo()):
        msgspec.json.decode(msgspec.json.encode(result))
    assert msgspec.json.decode(b'{"op":"set","id":"a","data":{},"if_stamp":null}', type=Op).if_stamp is None
    assert msgspec.json.decode(b'{"op":"set","id":"a","data":{}}', type=Op).if_stamp is msgspec.UNSET


def test_a_store_that_only_reads_says_so(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {}
        clock = store.stats().clock
    with opslog.open(tmp_path, read_only=True) as store:
        door = Operations(store)
        assert (door.author, door.get("x").data) == (None, {})
        for call in (lambda: door.set("a", {}), door.undo):
            with pytest.raises(opslog.ReadOnlyError) as error:
                call()
            assert problem_of(error.value).code == "read_only"
    with opslog.open(tmp_path, as_of=clock) as store:
        assert Operations(store).find().items[0].id == "x"


def test_typed_stores_are_refused() -> None:
    class Task(msgspec.Struct):
        title: str

    with opslog.open("memory://", type=Task) as store, pytest.raises(opslog.UsageError):
        Operations(store)  # type: ignore[arg-type]  # that is the question


def test_every_error_has_a_code() -> None:
    def all_of(kind: type[opslog.OpslogError]) -> Iterator[type[opslog.OpslogError]]:
        if kind.__module__ == opslog.OpslogError.__module__:
            yield kind
        for each in kind.__subclasses__():
            yield from all_of(each)

    codes = {kind.__name__: code_of(kind("what happened")).code for kind in all_of(opslog.OpslogError)}
    assert set(codes.values()) == set(CODES)
    assert codes["ExistsError"] == "exists"
    assert codes["ConflictError"] == "conflict"
    assert codes["QueryError"] == "invalid"
    assert codes["CommitUnknownError"] == "unknown"


def test_the_agent_of_a_store_may_write_to_its_own_log(tmp_path: Path) -> None:
    """What has a condition is a transaction all the same, and a document that a transaction wrote stays guarded."""
    with opslog.open(tmp_path, agent="door", version=None) as store:
        door = Operations(store, plain=True)
        assert door.set("a", {"n": 1}).stamp == door.get("a").stamp == "1@door"
        assert door.batch([Op("set", "b", {}), Op("set", "c", {}), Op("delete", "a")]).stamp == door.get("c").stamp
        assert door.delete("b") == Written(["b"], None)
        with pytest.raises(opslog.NotFoundError):
            door.batch([Op("set", "d", {}), Op("delete", "b")])
        assert [commit.op for commit in store.ops()] == ["set", "batch", "delete"], "all of a batch or nothing"
        assert {commit.agent for commit in store.ops()} == {"door"}
        assert door.undo() == Undone(True, None, ["b"])
        written = door.set("b", {"n": 2}, if_stamp=door.get("b").stamp)
        for guarded in (written, door.set("b", {"n": 3}), door.create("e", {}), door.batch([Op("create", "f", {})])):
            assert guarded.stamp
            assert guarded.stamp.endswith("@transactions")


def test_a_page_or_a_history_of_nothing_is_empty() -> None:
    with opslog.open("memory://") as store:
        store["a"] = {}
        assert Operations(store).find(limit=0).items == []
        assert Operations(store).history("a", 0).earlier == 1
        assert Operations(store).history("a", -1).revisions == []
