"""Stores without a log of their own (`log="shared"`): sessions that come and go."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import opslog
from opslog.backends import open_backend
from opslog.format.layout import TRANSACTIONS
from opslog.log.reader import list_segments
from opslog.snapshot.manifests import ManifestStore
from opslog.testing.invariants import transactions_keep_their_order

Documents = dict[str, object]


def test_everything_a_session_writes_is_a_transaction_in_its_name(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="session", log="shared") as store:
        store["a"] = {"n": 1}
        with store.batch():
            store["b"] = {}
            store["c"] = {}
        del store["c"]
        store.create("d", {})
        store.update({"e": {}, "f": {}})
        store.archive("@id = f", "old")
        assert store.undo()
        commits = list(store.ops())
    assert {(commit.agent, commit.by) for commit in commits} == {(TRANSACTIONS, "session")}
    assert transactions_keep_their_order(commits) is None
    assert [path.name for path in (tmp_path / "ops").iterdir()] == [TRANSACTIONS]
    with opslog.open(tmp_path, read_only=True) as reader:
        assert list(reader) == ["a", "b", "d", "e", "f"], "the undo gave the archived one back"


def test_sessions_of_one_name_are_open_at_once(tmp_path: Path) -> None:
    with (
        opslog.open(tmp_path, agent="session", log="shared") as one,
        opslog.open(tmp_path, agent="session", log="shared") as other,
        opslog.open(tmp_path, agent="session") as with_a_log,
    ):
        one["a"] = {"n": 1}
        other["b"] = {"n": 2}
        with_a_log["c"] = {"n": 3}
        for store in (one, other, with_a_log):
            store.refresh()
            assert dict(store) == {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}
        assert [commit.agent for commit in opslog.open(tmp_path, read_only=True).ops()].count("session") == 1


def test_writes_of_a_session_are_guarded(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="session", log="shared") as session, opslog.open(tmp_path, agent="a") as agent:
        session["x"] = {"n": 1}
        agent.refresh()
        agent["x"] = {"n": 2}
        stamp = agent.record("x")
        assert stamp is not None
        assert stamp.agent == TRANSACTIONS
        session.refresh()
        assert session["x"] == {"n": 2}


def test_threads_of_a_session_lose_nothing(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="session", log="shared") as store:
        threads = [threading.Thread(target=lambda n=n: store.set(f"d{n}", {"n": n})) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store) == 20


def test_a_session_with_asyncio(tmp_path: Path) -> None:
    async def write() -> None:
        async with opslog.aio.open(tmp_path, agent="session", log="shared") as store:
            await asyncio.gather(*(store.set(f"d{n}", {"n": n}) for n in range(20)))
            async with store.batch() as batch:
                await batch.delete("d0")
                await batch.set("d1", {"n": 100})
            assert await store.count() == 19
            assert await store.undo()
            assert await store.count() == 20

    asyncio.run(write())
    with opslog.open(tmp_path, read_only=True) as store:
        assert {commit.author for commit in store.ops()} == {"session"}


@pytest.mark.parametrize("sessions", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_past_sessions_leave_manifests_and_refreshes_as_they_were(sessions: int) -> None:
    """Neither the cut of a manifest nor the listing of a refresh contains them."""
    url = f"memory://sessions-{sessions}"
    with opslog.open(url, agent="keeper", compact_after=None) as keeper:
        backend = open_backend(url)

        def figures() -> tuple[list[str], list[str]]:
            keeper.refresh()
            keeper.compact(full=True)
            return sorted(ManifestStore(backend).newest().cut), sorted(list_segments(backend))

        def write(first: int, last: int) -> None:
            for number in range(first, last):
                with opslog.open(url, agent=f"claude.host.{number}", log="shared", compact_after=None) as session:
                    session[f"d{number % 10}"] = {"n": number}
                if number % 1000 == 0:
                    keeper.compact()

        write(0, sessions // 2)
        before = figures()
        write(sessions // 2, sessions)
        assert figures() == before == ([TRANSACTIONS], [TRANSACTIONS])


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(opslog.UsageError, match="buffered"):
        opslog.open(tmp_path, agent="session", log="shared", durability="buffered")
    with pytest.raises(opslog.UsageError, match="own"):
        opslog.open(tmp_path, agent="session", log="none")  # type: ignore[call-overload]  # that is the question
    with pytest.raises(opslog.InvalidNameError):
        opslog.open(tmp_path, agent=TRANSACTIONS, log="shared")
    assert not list(tmp_path.iterdir())


def test_a_session_is_shown_with_its_name(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="session", log="shared") as store:
        assert "agent='session'" in repr(store)
        lease = opslog.Lease(store, "x")
        assert lease.claim()
        assert lease.holder == "session"
        assert store.changes().reset


def test_a_transaction_knows_its_stamp(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        with store.transaction() as made:
            made["x"] = {}
        record = store.record("x")
        assert record is not None
        assert made.stamp == record.stamp
        with store.transaction() as reading:
            assert reading["x"] == {}
        assert reading.stamp is None
