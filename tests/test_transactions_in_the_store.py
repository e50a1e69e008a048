"""Compactions, seals, time travel and figures with transactions: the shared log is a log like every other one."""

from __future__ import annotations

import itertools
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import open_backend
from opslog.bulk.copying import copy
from opslog.bulk.replay import write_state
from opslog.environment import REAL, Environment
from opslog.format.commits import Delete, Seal, decode_records
from opslog.format.layout import TRANSACTIONS, segment_path
from opslog.log import session
from opslog.snapshot.manifests import ManifestStore
from opslog.snapshot.runs import BlockRun
from opslog.store import replica_of
from opslog.testing import invariants
from opslog.verify.verify import verify
from tests.support import bucket, missing_logs

_numbers = itertools.count()

assert bucket.BUCKETS is not None  # which registers bucket://


@pytest.fixture(params=["directory", "memory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "directory" else f"{request.param}://shared-{next(_numbers)}"


def at(seconds: float) -> Environment:
    return replace(REAL, time=lambda: seconds)


def check(url: str) -> None:
    assert verify(open_backend(url)).problems == []


def stored(url: str) -> dict[str, opslog.Set | opslog.Delete]:
    """The newest records of the snapshot."""
    backend = open_backend(url)
    runs = ManifestStore(backend).newest().runs
    return {record.id: record for run in reversed(runs) for record in BlockRun(backend, run).records()}


# -- compactions and seals


def test_records_in_a_snapshot_keep_author_and_nonce_in_every_compaction(url: str) -> None:
    settings = opslog.Settings(undo_window=0, grace_seconds=0, tombstone_ttl_seconds=1e9)
    with opslog.open(url, agent="a", settings=settings) as a, opslog.open(url, agent="b") as b:
        a.create("kept", {"n": 1})
        b.create("gone", {"n": 2})
        a["plain"] = {"n": 3}
        a.compact()
        b.modify("gone", lambda document: None)
        with a.transaction() as transaction:
            transaction["both"] = {"n": 4}
            transaction["kept"] = {"n": 5}
        expected = {record.id: record for commit in a.ops() for record in commit.records}
        found = stored(url)
        for full in (False, True, True):
            a["more"] = {}
            a.compact(full=full)
            found = stored(url)
            for id in ("kept", "gone", "both"):
                assert (found[id].by, found[id].tx, found[id].stamp) == (
                    expected[id].by,
                    expected[id].tx,
                    expected[id].stamp,
                )
                assert found[id].agent == "transactions"
            assert (found["plain"].by, found["plain"].tx) == ("", "")
        tombstone = found["gone"]
        assert isinstance(tombstone, Delete)
        assert (tombstone.by, bool(tombstone.folded)) == ("b", True)
        b.refresh()
        before = b.stats().clock
        b["gone"] = {"n": 6}  # its tombstone guards it
        record = b.record("gone")
        assert record is not None
        assert (record.agent, record.by, record.clock >= before + 1000) == ("transactions", "b", True)
    check(url)


def test_a_tombstone_guards_until_it_expires(url: str) -> None:
    settings = opslog.Settings(undo_window=0, grace_seconds=0, tombstone_ttl_seconds=0)
    with opslog.open(url, agent="a", settings=settings) as store:
        store.create("x", {})
        store.modify("x", lambda document: None)
        store["y"] = {}
        store.compact()
        store["y"] = {"again": True}
        store.compact(full=True)
        assert "x" not in stored(url)
        store.refresh()
    with opslog.open(url, agent="a") as store:
        store["x"] = {"plain": True}
        record = store.record("x")
        assert record is not None
        assert (record.agent, record.by) == ("a", "")
        with pytest.raises(opslog.ExistsError):
            store.create("x", {})
    check(url)


def test_an_idle_shared_log_is_sealed_and_goes_on(url: str) -> None:
    with opslog.open(url, agent="a", settings=opslog.Settings(undo_ttl_seconds=0, grace_seconds=0)) as store:
        store.create("x", {"n": 1})
        with opslog.open(url, agent="slow", environment=at(1e9)) as slow:
            slow.refresh()
            assert "transactions" in slow.compact().sealed
        assert "transactions" not in stored(url)
        assert stored(url)["x"].by == "a"
        assert isinstance(list(store.ops())[-1], Seal)
        assert not store.undo(), "a seal ends the undo window of all authors"
        assert store["x"] == {"n": 1}
        store.modify("x", lambda document: {"n": 2})
        with opslog.open(url, agent="slow", environment=at(1e9)) as slow:
            slow.modify("x", lambda document: {"n": document["n"] + 1} if document else None)
        transactions = [commit for commit in store.ops() if commit.tx]
        assert [commit.author for commit in transactions] == ["a", "a", "slow"]
        assert [commit.ts for commit in transactions] == sorted(commit.ts for commit in transactions)
        assert transactions[-1].ts > "2020", "the clock of who sealed does not count"
        store.refresh()
        assert store["x"] == {"n": 3}
        for _ in range(3):
            store.compact(full=True)
            store.modify("x", lambda document: {"n": document["n"] + 1} if document else None)
    check(url)


def test_a_compaction_does_not_seal_while_somebody_appends(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a", settings=opslog.Settings(undo_ttl_seconds=0)) as store:
        store.create("x", {})
        held = open_backend(str(tmp_path)).appender("transactions")  # as an append holds it
        assert store.compact().sealed == ()
        held.close()
        assert store.compact().sealed == ("transactions",)


def test_an_append_waits_for_a_seal_and_decides_again_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seal takes the name. Meanwhile another thread begins its transaction."""
    done: list[object] = []
    threads: list[threading.Thread] = []
    append = session.WriterSession.append
    with opslog.open(tmp_path, agent="a", settings=opslog.Settings(undo_ttl_seconds=0)) as store:
        store.create("x", {"n": 1})

        def during(self: session.WriterSession, lines: bytes, read_at: float | None = None) -> Any:
            if b'"op":"seal"' in lines:
                change = threading.Thread(target=lambda: done.append(store.modify("x", lambda document: {"n": 2})))
                threads.append(change)
                change.start()
                while not replica_of(store).transactions._group and change.is_alive():  # type: ignore[union-attr]
                    pass
                assert not done
            return append(self, lines, read_at)

        with opslog.open(tmp_path, agent="compactor") as other:
            monkeypatch.setattr(session.WriterSession, "append", during)
            assert other.compact().sealed == ("transactions",)
            (change,) = threads
            change.join()
            other.refresh()
            assert (done, other["x"]) == ([{"n": 2}], {"n": 2})
        assert [commit.op for commit in store.ops()] == ["set", "seal", "set"]
    check(str(tmp_path))


def test_collected_segments_of_the_shared_log_are_not_missed(url: str) -> None:
    settings = opslog.Settings(undo_window=2, grace_seconds=0, undo_ttl_seconds=0)
    with opslog.open(url, agent="a", settings=settings) as a, opslog.open(url, agent="b") as b:
        for number in range(30):
            (a if number % 2 else b).modify("n", lambda document: {"n": (document or {"n": 0})["n"] + 1})
            if number % 5 == 4:
                a.compact(keep_history=0, full=number % 10 == 9)
        assert a.stats().log_segments <= 8
        assert b.modify("n", lambda document: document) == {"n": 30}
    with opslog.open(url, agent="late") as late:
        assert late["n"] == {"n": 30}
        assert not late.undo()
        assert late.modify("n", lambda document: None) is None
    check(url)


# -- the past


def test_no_view_of_the_past_cuts_between_transactions_in_the_wrong_order(url: str) -> None:
    """Agents whose clocks are wrong by months move amounts between accounts. At every clock and at every time, the
    total is the same."""
    dice = random.Random(1)
    settings = opslog.Settings(undo_window=2, keep_history_seconds=None)
    start = 1_795_521_600.0
    stores = [
        opslog.open(
            url,
            agent=f"agent-{number}",
            settings=settings,
            compact_after=None,
            environment=replace(REAL, time=lambda: start + dice.random() * 1e7),
        )
        for number in range(3)
    ]
    with stores[0].transaction() as begin:
        for number in range(4):
            begin[f"account-{number}"] = {"amount": 100}

    def move(transaction: opslog.Transaction[Any]) -> None:
        one, other = dice.sample(sorted(transaction), 2)
        amount = dice.randrange(1 + transaction[one]["amount"])
        transaction[one] = {"amount": transaction[one]["amount"] - amount}
        transaction[other] = {"amount": transaction[other]["amount"] + amount}

    for number in range(40):
        dice.choice(stores).transact(move)
        if number % 8 == 7:
            dice.choice(stores).compact()
    commits = [commit for commit in stores[0].ops() if commit.agent == "transactions"]
    assert len(commits) == 41
    for store in stores:
        store.close()
    points: list[int | str] = [*(commit.clock for commit in commits), *sorted({commit.ts for commit in commits})]
    for point in points:
        with opslog.open(url, as_of=point) as past:
            assert sum(account["amount"] for account in past.values()) == 400, point
    seen = []
    for commit in commits:
        with opslog.open(url, as_of=commit.clock) as past:
            seen.append(dict(past.items()))
    by_time = []
    for commit in commits:
        with opslog.open(url, as_of=commit.ts) as past:
            by_time.append(seen.index(dict(past.items())))
    assert by_time == sorted(by_time), "what is later by time is not earlier by the order of transactions"
    invariants.transactions_keep_their_order(commits)
    check(url)


def test_history_and_ops_show_authors_and_what_was_undone(url: str) -> None:
    with opslog.open(url, agent="a") as a, opslog.open(url, agent="b") as b:
        a.create("x", {"n": 1})
        b.modify("x", lambda document: {"n": 2})
        assert b.undo()
        assert a.modify("x", lambda document: document and {"n": document["n"] + 10}) == {"n": 11}
        revisions = a.history("x")
        assert [(each.record.author, each.undone) for each in revisions] == [("a", False), ("b", True), ("a", False)]
        assert [(commit.author, commit.op) for commit in a.ops()] == [
            ("a", "set"),
            ("b", "set"),
            ("b", "undo"),
            ("a", "set"),
        ]
        assert a.ops(since=1000) is not None
        assert [commit.author for commit in a.ops(since=1000)] == ["b", "b", "a"]
        figures = a.stats()
        assert (figures.agents, figures.commits, figures.tail_commits, figures.clock) == (1, 4, 4, 4000)
        with opslog.open(url, as_of=2000) as past:
            assert past["x"] == {"n": 2}
            assert [each.undone for each in past.history("x")] == [False, False]
    check(url)


# -- copies


def test_a_copy_has_the_bytes_of_the_shared_log(tmp_path: Path) -> None:
    with opslog.open(tmp_path / "from", agent="a") as store:
        store.create("x", {"n": 1})
        store.compact()
        store.modify("x", lambda document: {"n": 2})
        stamp = str(store.record("x") and store.record("x").stamp)  # type: ignore[union-attr]
    done = copy(open_backend(tmp_path / "from"), open_backend(tmp_path / "to"))
    assert done.report.problems == []
    path = segment_path("transactions", 1)
    assert (tmp_path / "to" / path).read_bytes() == (tmp_path / "from" / path).read_bytes()
    with opslog.open(tmp_path / "to", agent="b") as store:
        store.set("x", {"n": 3}, if_stamp=stamp)
        with pytest.raises(opslog.ConflictError):
            store.set("x", {"n": 4}, if_stamp=stamp)
    check(str(tmp_path / "to"))


def test_replayed_stores_and_lines_keep_authors(tmp_path: Path) -> None:
    with opslog.open(tmp_path / "from", agent="a") as store:
        store.create("x", {"n": 1})
        store["plain"] = {}
        state = replica_of(store).state
        write_state(state, tmp_path / "store", "store", REAL)
        write_state(state, tmp_path / "lines", "jsonl", REAL)
        expected = {record.id: (record.stamp, record.by, record.tx) for record in store.records()}
    check(str(tmp_path / "store"))
    with opslog.open(tmp_path / "store", agent="b") as store:
        assert {record.id: (record.stamp, record.by, record.tx) for record in store.records()} == expected
        with pytest.raises(opslog.ExistsError, match="a wrote it"):
            store.create("x", {})
        assert store.modify("x", lambda document: document and {"n": 2}) == {"n": 2}
    lines = (tmp_path / "lines" / "part-00000.jsonl").read_bytes()
    assert {record.id: (record.stamp, record.by, record.tx) for record in decode_records(lines, "x", 0)} == expected
    check(str(tmp_path / "store"))


# -- undo after a restart


def write_past_the_window(url: str, **options: Any) -> None:
    """A plain commit of "a", a transaction of "a", and so many other commits that this is compacted."""
    with opslog.open(url, agent="a", settings=opslog.Settings(undo_window=2, **options), compact_after=None) as a:
        a["older"] = {}
        a.create("x", {"n": 1})
        with opslog.open(url, agent="b", compact_after=None) as b, opslog.open(url, agent="c", compact_after=None) as c:
            c["plain"] = {}
            for _ in range(5):
                b.modify("y", lambda _: {})
            b.modify("x", lambda _: {"n": 2})  # so that no record names its author any more


@pytest.mark.parametrize("times", [1, 3])
def test_after_a_restart_undo_does_not_pass_an_own_transaction_that_was_compacted(url: str, times: int) -> None:
    write_past_the_window(url)
    for number in range(times):
        with opslog.open(url, agent="b", compact_after=None) as b:
            b["more"] = {"n": number}
            b.modify("y", lambda _: {})
            b.compact(full=number == 1)
    manifest = ManifestStore(open_backend(url)).newest()
    assert manifest.settled_by.keys() == {"a"}, "of the others an undo would pass nothing"
    with opslog.open(url, agent="a", compact_after=None) as a:
        assert not a.undo()
        assert "older" in a
        a["newer"] = {}
        assert a.undo()
        assert not a.undo()
        assert set(a) == {"older", "more", "plain", "x", "y"}
    with opslog.open(url, agent="c", compact_after=None) as c:
        assert c.undo(), "others' transactions are nothing to it"
        assert "plain" not in c
    check(url)


def test_after_a_restart_undo_passes_an_own_transaction_that_was_undone(url: str) -> None:
    with opslog.open(url, agent="a", settings=opslog.Settings(undo_window=2), compact_after=None) as a:
        a["older"] = {}
        a.create("x", {})
        assert a.undo()
        with opslog.open(url, agent="b", compact_after=None) as b:
            for _ in range(5):
                b.modify("y", lambda _: {})
            b.compact()
    assert ManifestStore(open_backend(url)).newest().settled_by == {}
    with opslog.open(url, agent="a", compact_after=None) as a:
        assert a.undo()
        assert "older" not in a


@pytest.mark.parametrize("how", ["in the same session", "after a restart", "after it was compacted", "full"])
def test_undo_does_not_pass_a_plain_commit_that_is_out_of_reach(url: str, how: str) -> None:
    """For an older transaction of the same agent."""
    a = opslog.open(url, agent="a", settings=opslog.Settings(undo_window=4), compact_after=None)
    a.create("claim", {})
    a["note"] = {}
    for number in range(2):
        a["more"] = {"n": number}
        assert a.undo()
    if how != "in the same session":
        a.close()
        with opslog.open(url, agent="b", compact_after=None) as b:
            b.modify("y", lambda _: {})
            b["z"] = {}
            if how != "after a restart":
                b.compact()
                b["z"] = {"again": True}
                b.compact(full=how == "full")
        a = opslog.open(url, agent="a", compact_after=None)
    if how in ("after it was compacted", "full"):
        assert ManifestStore(open_backend(url)).newest().settled_by.keys() == {"a"}
    assert not a.undo()
    a.create("newer", {})
    assert a.undo()
    assert not a.undo()
    assert {"claim", "note"} <= set(a)
    a.close()
    check(url)


def test_undo_passes_a_plain_commit_that_is_taken_back_and_out_of_reach(url: str) -> None:
    settings = opslog.Settings(undo_window=2)
    with opslog.open(url, agent="a", settings=settings, compact_after=None) as a:
        a.create("claim", {})
        for number in range(5):
            a["note"] = {"n": number}
            assert a.undo()
        a.compact()
    with opslog.open(url, agent="a", compact_after=None) as a:
        assert a.undo()
        assert dict(a) == {}


def test_a_manifest_names_no_authors_whose_logs_are_sealed(url: str) -> None:
    write_past_the_window(url, undo_ttl_seconds=0)
    with opslog.open(url, agent="d", compact_after=None) as d:
        assert "a" in d.compact().sealed
    assert ManifestStore(open_backend(url)).newest().settled_by == {}


@missing_logs.BOTH_LOGS
def test_an_undo_does_not_pass_a_commit_that_a_listing_showed_without_the_older_one(url: str, missed: str) -> None:
    missing_logs.check_undo_after_missing(url, missed, opslog.Store.compact)


def test_close_reports_a_lost_buffer_that_only_the_check_of_a_transaction_has_met() -> None:
    """A storage stops to answer: a transaction has an unknown outcome, and the buffer of another thread is lost. The
    store then reads whether the transaction is there, and suppresses the error of that."""
    url = f"bucket://shared-{next(_numbers)}"
    store = opslog.open(url, agent="a", durability="buffered", buffer_seconds=3600, compact_after=None)
    store["old"] = {}
    store.flush()
    replica_of(store).backend._deadline_seconds = 0.2  # type: ignore[attr-defined]
    log = replica_of(store).log
    assert log is not None

    others: list[threading.Thread] = []

    def write_and_flush() -> None:
        store["new"] = {}
        log.flush()

    def fault(request: bucket.Request) -> bucket.Fault | None:
        if request.method != "put_new":
            return None
        if TRANSACTIONS not in request.key:
            return bucket.Fault("refused")
        if not others:
            others.append(threading.Thread(target=write_and_flush))
            others[0].start()
            others[0].join()
        return bucket.Fault("unknown")

    with bucket.BUCKETS[url.removeprefix("bucket://")].failing(fault), pytest.raises(opslog.CommitUnknownError):
        store.create("job", {})
    with pytest.raises(opslog.WriteFailedError):
        store.close()
