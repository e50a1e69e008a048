"""Claims through doors, whose callers keep no object between calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import opslog
from opslog.doors.leases import Leases
from opslog.doors.operations import Operations
from opslog.doors.values import Op
from opslog.environment import REAL


class Clock:
    """A monotonic clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(tmp_path: Path, clock: Clock) -> Iterator[tuple[Operations, Operations]]:
    """Two sessions on one store."""
    environment = replace(REAL, monotonic=clock)
    with opslog.open(tmp_path, agent="door", version=None, log="shared", environment=environment) as store:
        yield Operations(store, "ann"), Operations(store, "bob")


def test_a_document_has_one_named_holder(sessions: tuple[Operations, Operations]) -> None:
    ann, bob = map(Leases, sessions)
    sessions[0].set("t", {"status": "open"})
    mine = ann.claim("t", 60)
    assert (mine.claimed, mine.holder, mine.data) == (True, "ann", {"status": "open"})
    assert mine.key
    for leases in (ann, bob):  # the key is enough to renew a claim
        theirs = leases.claim("t", 60)
        assert (theirs.claimed, theirs.holder, theirs.seconds, theirs.key) == (False, "ann", 60, None)
    again = ann.renew("t", mine.key, 90)
    assert (again.claimed, again.key, again.seconds) == (True, mine.key, 90)
    assert (again.token or 0) > (mine.token or 0)
    for key in ("", "another"):
        with pytest.raises(opslog.LeaseLostError, match="ann has it"):
            bob.release("t", key)
        with pytest.raises(opslog.LeaseLostError, match="ann has it"):
            bob.release("t", key, data={})
        with pytest.raises(opslog.LeaseLostError, match="ann has it"):
            bob.renew("t", key, 60)
    assert ann.release("t", mine.key, changes={"status": "done"}) == sessions[0].get("t").stamp
    assert sessions[0].get("t").data == {"status": "done"}
    theirs = bob.claim("t", 60)
    assert theirs.key not in (None, mine.key)
    with pytest.raises(opslog.LeaseLostError, match="bob has it"):
        ann.release("t", mine.key)


def test_a_claim_goes_on_by_its_key_through_another_server(sessions: tuple[Operations, Operations]) -> None:
    key = Leases(sessions[0]).claim("t", 60).key
    assert key is not None
    elsewhere = Leases(sessions[1])
    assert elsewhere.renew("t", key, 60).holder == "bob"
    assert elsewhere.release("t", key, data={"n": 1}) == sessions[0].get("t").stamp


def test_an_undo_of_a_release_gives_the_claim_back(sessions: tuple[Operations, Operations]) -> None:
    ann = Leases(sessions[0])
    sessions[0].set("t", {"status": "open"})
    key = ann.claim("t", 60).key
    assert key is not None
    ann.release("t", key, changes={"status": "done"})
    assert sessions[0].undo().ids == ["t", "lease/t"]
    assert not ann.claim("t", 60).claimed
    ann.release("t", key, changes={"status": "really done"})
    assert sessions[0].get("t").data == {"status": "really done"}


def test_a_claim_that_is_not_renewed_is_taken_over(sessions: tuple[Operations, Operations], clock: Clock) -> None:
    ann, bob = map(Leases, sessions)
    key = ann.claim("t", 60).key
    assert key is not None
    assert not bob.claim("t", 60).claimed, "seen for the first time"
    clock.now += 59
    assert not bob.claim("t", 60).claimed
    ann.renew("t", key, 60)
    clock.now += 2
    assert not bob.claim("t", 60).claimed, "renewed"
    clock.now += 60
    assert bob.claim("t", 60).claimed
    with pytest.raises(opslog.LeaseLostError):
        ann.release("t", key, data={"late": True})
    assert sessions[0].find("late = true").items == []
    with pytest.raises(opslog.LeaseLostError, match="bob has it"):
        ann.release("t", key)


def test_the_first_that_nobody_holds(sessions: tuple[Operations, Operations], clock: Clock) -> None:
    door, other = sessions
    door.batch([Op("set", f"t{n}", {"status": "open", "n": -n}) for n in range(3)])
    ann, bob = Leases(door), Leases(other)
    assert ann.claim_one("status = open", 60).id == "t0"
    assert bob.claim_one("status = open", 60, order_by="n").id == "t2"
    assert ann.claim_one("status = open", 60).id == "t1", "not again what is held already"
    assert bob.claim_one("status = open", 60) == ann.claim_one("status = open", 60)
    assert not bob.claim_one("status = open", 60).claimed
    clock.now += 61
    assert bob.claim_one("status = open", 60).id == "t0"
    door.modify("t1", {"status": "done"})
    door.modify("t2", {"status": "done"})
    assert bob.claim_one("status = open", 60).id == "", "they fulfil it no more"


def test_a_document_in_the_place_of_a_lease_stops_only_its_own_document(
    sessions: tuple[Operations, Operations], caplog: pytest.LogCaptureFixture
) -> None:
    ann, _ = map(Leases, sessions)
    for id in ("t0", "t1"):
        sessions[0].set(id, {"status": "open"})
    for broken in ({"holder": 7}, {}):
        sessions[1].set("lease/t0", broken)
        mine = ann.claim_one("status = open", 60)
        assert (mine.claimed, mine.id) == (True, "t1")
        assert "lease/t0 is no lease" in caplog.text
        with pytest.raises(opslog.UsageError, match="is no lease"):
            ann.claim("t0", 60)
        ann.release("t1", mine.key or "")


def test_a_condition_is_judged_when_it_is_claimed(sessions: tuple[Operations, Operations]) -> None:
    ann, bob = map(Leases, sessions)
    sessions[0].set("t", {"status": "done"})
    refused = ann.claim("t", 60, "status = open")
    assert (refused.claimed, refused.holder) == (False, None)
    sessions[1].modify("t", {"status": "open"})
    claimed = bob.claim("t", 60, "status = open and @author = bob")
    assert claimed.key
    assert bob.release("t", claimed.key) == sessions[0].get("t").stamp
    new = bob.claim("new", 60)
    assert (new.claimed, new.data) == (True, None)
    assert bob.release("new", new.key or "") is None


def test_sessions_in_threads_share_out_tasks(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="door", version=None, log="shared") as store:
        Operations(store).batch([Op("set", f"t{n:02d}", {"status": "open"}) for n in range(40)])
        done: list[str] = []

        def work(number: int) -> None:
            leases = Leases(Operations(store, f"worker-{number}"))
            while key := (claimed := leases.claim_one("status = open", 600)).key:
                done.append(claimed.id)
                leases.release(claimed.id, key, changes={"status": "done", "by": number})

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(done) == [f"t{n:02d}" for n in range(40)]


def test_an_undo_does_not_take_a_claim_back(sessions: tuple[Operations, Operations]) -> None:
    ann, bob = sessions
    ann.set("t", {"status": "open"})
    key = Leases(ann).claim("t", 60).key
    assert key is not None
    for stamp in (None, str(ann.store.record("lease/t").stamp)):  # type: ignore[union-attr]  # it is there
        with pytest.raises(opslog.UsageError, match=r"claim of 't'.*release it by the key"):
            ann.undo(stamp)
    assert not Leases(bob).claim("t", 60).claimed, "ann holds it still"
    assert Leases(ann).renew("t", key, 60).claimed
    Leases(ann).release("t", key)
    with pytest.raises(opslog.UsageError, match="released the claim of 't'"):
        ann.undo()
    assert Leases(bob).claim("t", 60).claimed
    assert ann.get("t").data == {"status": "open"}


def test_what_cannot_be_claimed(sessions: tuple[Operations, Operations]) -> None:
    leases = Leases(sessions[0])
    with pytest.raises(opslog.UsageError, match="itself a lease"):
        leases.claim("lease/t", 60)
    with pytest.raises(opslog.UsageError):
        leases.claim("t", 0)
    with pytest.raises(opslog.UsageError):
        leases.release("t", "key", data={}, changes={})
    with pytest.raises(opslog.QueryError):
        leases.claim_one("= =", 60)
    sessions[0].set("lease/u", {"no": "lease"})
    with pytest.raises(opslog.UsageError, match="is no lease"):
        leases.claim("u", 60)
