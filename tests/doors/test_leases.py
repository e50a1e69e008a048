"""Claims for those who stand at a door."""

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
    """Two sessions over one store."""
    environment = replace(REAL, monotonic=clock)
    with opslog.open(tmp_path, agent="door", version=None, log="shared", environment=environment) as store:
        yield Operations(store, "ann"), Operations(store, "bob")


def test_a_document_has_one_holder_who_is_named(sessions: tuple[Operations, Operations]) -> None:
    ann, bob = map(Leases, sessions)
    sessions[0].set("t", {"status": "open"})
    mine = ann.claim("t", 60)
    assert (mine.claimed, mine.holder, mine.data) == (True, "ann", {"status": "open"})
    theirs = bob.claim("t", 60)
    assert (theirs.claimed, theirs.holder, theirs.seconds) == (False, "ann", 60)
    again = ann.claim("t", 90)
    assert again.claimed
    assert (again.token or 0) > (mine.token or 0), "renewed"
    with pytest.raises(opslog.LeaseLostError, match="ann holds it"):
        bob.release("t")
    with pytest.raises(opslog.LeaseLostError, match="ann holds it"):
        bob.release("t", data={})
    assert ann.release("t", changes={"status": "done"}) == sessions[0].get("t").stamp
    assert sessions[0].get("t").data == {"status": "done"}
    assert bob.claim("t", 60).claimed
    assert sessions[1].get("t").author == "ann"


def test_a_claim_that_is_not_renewed_is_taken_over(sessions: tuple[Operations, Operations], clock: Clock) -> None:
    ann, bob = map(Leases, sessions)
    assert ann.claim("t", 60).claimed
    assert not bob.claim("t", 60).claimed, "seen for the first time"
    clock.now += 59
    assert not bob.claim("t", 60).claimed
    clock.now += 2
    assert bob.claim("t", 60).claimed
    with pytest.raises(opslog.LeaseLostError):
        ann.release("t", data={"late": True})
    assert sessions[0].find("late = true").items == []
    with pytest.raises(opslog.LeaseLostError, match="bob holds it"):
        ann.release("t")


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
    assert bob.claim_one("status = open", 60).id == "", "t1 fulfils it no more"


def test_a_condition_is_judged_when_it_is_claimed(sessions: tuple[Operations, Operations]) -> None:
    ann, bob = map(Leases, sessions)
    sessions[0].set("t", {"status": "done"})
    refused = ann.claim("t", 60, "status = open")
    assert (refused.claimed, refused.holder) == (False, None)
    sessions[1].modify("t", {"status": "open"})
    assert bob.claim("t", 60, "status = open and @author = bob").claimed
    assert bob.release("t") is not None
    assert bob.claim("new", 60).data is None
    assert bob.release("new") is None


def test_sessions_in_threads_share_out_tasks(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="door", version=None, log="shared") as store:
        Operations(store).batch([Op("set", f"t{n:02d}", {"status": "open"}) for n in range(40)])
        done: list[str] = []

        def work(number: int) -> None:
            leases = Leases(Operations(store, f"worker-{number}"))
            while (claimed := leases.claim_one("status = open", 600)).claimed:
                done.append(claimed.id)
                leases.release(claimed.id, changes={"status": "done", "by": number})

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(done) == [f"t{n:02d}" for n in range(40)]


def test_what_cannot_be_claimed(sessions: tuple[Operations, Operations]) -> None:
    leases = Leases(sessions[0])
    with pytest.raises(opslog.UsageError, match="itself a lease"):
        leases.claim("lease/t", 60)
    with pytest.raises(opslog.UsageError):
        leases.claim("t", 0)
    with pytest.raises(opslog.UsageError):
        leases.release("t", data={}, changes={})
    with pytest.raises(opslog.QueryError):
        leases.claim_one("= =", 60)
    sessions[0].set("lease/u", {"no": "lease"})
    with pytest.raises(opslog.UsageError, match="is no lease"):
        leases.claim("u", 60)
