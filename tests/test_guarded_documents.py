"""Archives, imports and other writers that have not asked whether a document is guarded: guarded documents go through
the shared log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import open_backend
from opslog.bulk import guarded as guarded_module
from opslog.bulk import ingest as ingest_module
from opslog.bulk.ingest import ingest
from opslog.bulk.replay import write_state
from opslog.environment import REAL
from opslog.format.commits import DeleteOp
from opslog.importers import ImportedCommit, ImportedOp
from opslog.importers.agents import AgentNames
from opslog.importers.jsonl import read_json_lines
from opslog.store import replica_of
from opslog.testing import invariants
from opslog.verify.verify import verify


def put(id: str, agent: str | None, **document: Any) -> ImportedCommit:
    return ImportedCommit(agent, "2020-01-01T00:00:00.000000Z", (ImportedOp("set", id, document),), "x:1")


def check(root: Path) -> None:
    assert verify(open_backend(str(root))).problems == []
    with opslog.open(root, read_only=True) as store:
        shared = [commit for commit in store.ops() if commit.agent == "transactions"]
    invariants.transactions_keep_their_order(shared)


# -- archives


def test_an_archive_of_guarded_documents_is_one_transaction(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["plain"] = {"n": 1}
        store.create("guarded", {"n": 2})
        store["stays"] = {"n": 3}
        assert store.archive(lambda document: document["n"] < 3, "p") == 2
        assert set(store) == {"stays"}
        *_, last = store.ops()
        assert isinstance(last, opslog.Batch)
        assert (last.agent, last.by) == ("transactions", "a")
        assert {op.id: op.archived for op in last.ops if isinstance(op, DeleteOp)} == {"guarded": "p", "plain": "p"}
        assert store.load_archive("p") == {"plain": {"n": 1}, "guarded": {"n": 2}}
        assert store.undo(), "all of it at once"
        assert set(store) == {"plain", "guarded", "stays"}
    check(tmp_path)


def test_a_guarded_document_that_changed_meanwhile_is_not_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opslog import archive

    write_archive = archive.write_archive
    with opslog.open(tmp_path, agent="a") as store, opslog.open(tmp_path, agent="b") as other:
        for id in ("kept", "moved"):
            store.create(id, {"n": 1})
        store["plain"] = {"n": 1}

        def write(*arguments: Any) -> None:
            write_archive(*arguments)
            other.modify("kept", lambda document: {"n": 2})
            other.set("plain", {"n": 2})

        monkeypatch.setattr(archive, "write_archive", write)
        assert store.archive(lambda document: True, "p") == 1
        assert dict(store.items()) == {"kept": {"n": 2}, "plain": {"n": 2}}
        assert set(store.load_archive("p")) == {"kept", "moved", "plain"}
        monkeypatch.setattr(archive, "write_archive", write_archive)
        with pytest.raises(opslog.ExistsError):
            other.create("kept", {})
        other.create("moved", {"n": 3})
    check(tmp_path)


# -- imports


def test_an_import_writes_guarded_documents_through_the_shared_log(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store.create("claim", {"by": "a"})
        before = store.record("claim")
        assert before is not None
        batch = ImportedCommit(
            "zoe", None, (ImportedOp("set", "claim", {"by": "zoe"}), ImportedOp("set", "beside", {"n": 2})), "x:2"
        )
        stream = [
            put("plain", "zoe", n=1),
            put("beside", "ann", n=1),
            batch,
            put("beside", "ann", n=3),
            put("claim", None, by="me"),
            put("other", "ann", n=4),
        ]
        done = ingest(open_backend(str(tmp_path)), stream, agent="me")
        assert (done.commits, done.ops) == (6, 7)
        with pytest.raises(opslog.ConflictError):
            store.set("claim", {}, if_stamp=before.stamp)
        assert dict(store.items()) == {
            "plain": {"n": 1},
            "beside": {"n": 3},
            "claim": {"by": "me"},
            "other": {"n": 4},
        }
        found = [(commit.agent, commit.by, commit.op) for commit in store.ops()]
        assert found == [
            ("transactions", "a", "set"),
            ("zoe", "", "set"),
            ("ann", "", "set"),
            ("ann", "", "set"),
            ("transactions", "zoe", "batch"),
            ("transactions", "ann", "set"),
            ("transactions", "me", "set"),
        ]
        assert done.clock == store.stats().clock
    check(tmp_path)


def test_an_import_in_chunks_keeps_the_order_of_each_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_module, "_CHUNK_BYTES", 200)
    monkeypatch.setattr(guarded_module, "_TOGETHER", 3)
    with opslog.open(tmp_path, agent="a", settings=opslog.Settings(undo_window=2, grace_seconds=0)) as store:
        for number in range(0, 10, 2):
            store.create(f"d{number}", {})

        def stream() -> Any:
            for n in range(100):
                yield put(f"d{n % 10}", f"agent-{n % 3}", n=n)
                if n % 17 == 5:
                    store.compact(full=True)
                    store.modify("counter", lambda document: {"n": (document or {"n": 0})["n"] + 1})

        ingest(open_backend(str(tmp_path)), stream())
        store.refresh()
        expected = {f"d{n % 10}": {"n": n} for n in range(90, 100)}
        assert dict(store.items()) == expected | {"counter": {"n": 6}}
        authors = {id: record.author for id in store if (record := store.record(id)) is not None}
        assert authors == {f"d{n % 10}": f"agent-{n % 3}" for n in range(90, 100)} | {"counter": "a"}
        assert {record.id for record in store.records() if record.agent == "transactions"} == {
            *(f"d{n}" for n in range(0, 10, 2)),
            "counter",
        }
    check(tmp_path)


def test_an_import_into_a_store_without_transactions_asks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_module, "GuardedWriter", None)
    assert ingest(open_backend(str(tmp_path)), [put("x", "ann", n=1)]).clock == 1


def test_an_imported_agent_is_never_called_transactions(tmp_path: Path) -> None:
    backend = open_backend(str(tmp_path))
    with pytest.raises(opslog.InvalidNameError, match=r"x:1: no agent is called 'transactions'"):
        ingest(backend, [put("x", "transactions")])
    with pytest.raises(opslog.InvalidNameError, match="Choose another name"):
        ingest(backend, [put("x", None)], agent="transactions")
    names = AgentNames()
    assert names.name("1", "transactions") == "transactions-2"
    assert names.name("2", "Transactions") == "Transactions-3"
    with pytest.raises(opslog.InvalidNameError, match="no agent is called"):
        opslog.open(tmp_path, agent="transactions")


def test_exported_transactions_are_imported_under_their_authors(tmp_path: Path) -> None:
    from opslog.format.commits import encode_commit

    with opslog.open(tmp_path / "old", agent="planner") as store:
        store.create("x", {"n": 1})
        with store.transaction() as transaction:
            transaction["y"] = {"n": 2}
            transaction["z"] = {"n": 3}
        lines = b"".join(map(encode_commit, store.ops()))
    path = tmp_path / "lines.jsonl"
    path.write_bytes(lines)
    assert [commit.agent for commit in read_json_lines(path)] == ["planner", "planner"]
    ingest(open_backend(str(tmp_path / "new")), read_json_lines(path))
    with opslog.open(tmp_path / "new", read_only=True) as store:
        assert dict(store.items()) == {"x": {"n": 1}, "y": {"n": 2}, "z": {"n": 3}}
        assert {commit.agent for commit in store.ops()} == {"planner"}
    line = json.loads(lines.splitlines()[0])
    del line["by"], line["tx"]
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(opslog.InvalidNameError, match=r"lines.jsonl:1: no agent is called 'transactions'"):
        ingest(open_backend(str(tmp_path / "new")), read_json_lines(path))


# -- stores that replay has made


def replayed(root: Path, to: Path) -> None:
    with opslog.open(root, agent="a") as store:
        store.create("guarded", {"n": 1})
        store.create("gone", {})
        del store["gone"]
        store["plain"] = {"n": 1}
        write_state(replica_of(store).state, to, "store", REAL)


def test_a_replayed_store_guards_from_the_start(tmp_path: Path) -> None:
    replayed(tmp_path / "from", tmp_path / "to")
    root = tmp_path / "to"
    check(root)
    with opslog.open(root, agent="a") as a, opslog.open(root, agent="b") as b:
        seen = b.record("guarded")
        assert seen is not None
        a["guarded"] = {"n": 2}
        a["plain"] = {"n": 2}
        with a.batch():
            a["guarded"] = {"n": 3}
            a["other"] = {}
        with pytest.raises(opslog.ConflictError):
            b.set("guarded", {"n": 4}, if_stamp=seen.stamp)
        commits = [commit for commit in a.ops() if commit.agent == "transactions"]
        assert [(commit.op, commit.by) for commit in commits] == [("set", "a"), ("batch", "a")]
        assert a.undo()
        assert a.undo(), "the plain one"
        assert a.undo()
        assert dict(a.items()) == {"guarded": {"n": 1}, "plain": {"n": 1}}
        for number in range(40):
            b["guarded"] = {"n": number}
            b[str(number)] = {}
        b.compact(full=True)
        a.refresh()
        assert a["guarded"] == b["guarded"] == {"n": 39}
        assert {change.id for change in a.changes()} == set(b)
        ingest(open_backend(root), [put("guarded", "c", n=5)])
        with pytest.raises(opslog.ExistsError, match="c wrote it"):
            a.create("guarded", {})
    check(root)


def test_a_replayed_store_without_transactions_has_no_shared_log(tmp_path: Path) -> None:
    with opslog.open(tmp_path / "from", agent="a") as store:
        store.create("x", {})
        del store["x"]
        store["plain"] = {}
        write_state(replica_of(store).state, tmp_path / "to", "store", REAL)
    with opslog.open(tmp_path / "to", agent="a") as store:
        assert not replica_of(store).state.has_transactions
        store["x"] = {}
        assert store.undo()
    check(tmp_path / "to")
