"""Leases are claimed for a time, renewed, and taken over when the holder is gone. A late holder changes nothing.

Time is a number that the tests move, so that nothing here waits.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

import opslog
import opslog.aio
from opslog.environment import REAL
from opslog.lease import PREFIX
from tests.support.bucket import BUCKETS

_names = itertools.count()
OPEN, DONE = {"status": "open"}, {"status": "done"}


class Machine:
    """A process with clocks of its own: `monotonic` starts anywhere, and the wall clock is wrong."""

    def __init__(self, started: float) -> None:
        self.seconds = started
        self.environment = opslog.Environment(
            time=lambda: 4e9 - started, monotonic=lambda: self.seconds, sleep=REAL.sleep, nonce=REAL.nonce
        )

    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class Worker:
    """A store on a machine of its own."""

    store: opslog.Store[dict[str, Any]]
    machine: Machine

    def lease(self, id: str = "task", seconds: float = 10.0) -> opslog.Lease:
        return opslog.Lease(self.store, id, seconds)


def _worker(url: str, agent: str, started: float) -> Worker:
    machine = Machine(started)
    return Worker(opslog.open(url, agent=agent, environment=machine.environment), machine)


@pytest.fixture(params=["memory", "bucket"])
def url(request: pytest.FixtureRequest) -> str:
    name = f"lease-{next(_names)}"
    assert name not in BUCKETS
    return f"{request.param}://{name}"


@pytest.fixture
def one(url: str) -> Iterator[Worker]:
    worker = _worker(url, "one", 5.0)
    worker.store.create("task", OPEN)
    yield worker
    worker.store.close()


@pytest.fixture
def two(url: str, one: Worker) -> Iterator[Worker]:
    worker = _worker(url, "two", 1e6)
    yield worker
    worker.store.close()


def is_open(task: Any) -> bool:
    return bool(task["status"] == "open")


def test_one_of_two_has_it(one: Worker, two: Worker) -> None:
    mine, other = one.lease(), two.lease()
    assert mine.claim()
    assert not other.claim()
    assert (mine.holder, other.holder) == ("one", "one")
    assert (mine.remaining, other.remaining) == (10.0, 0.0)
    assert mine.stamp == one.store.record("lease/task").stamp  # type: ignore[union-attr]
    assert (other.stamp, other.token) == (None, None)
    mine.release()
    assert mine.stamp is None
    assert other.claim()
    assert mine.holder is None


def test_finishing_is_one_commit(one: Worker, two: Worker) -> None:
    mine, other = one.lease(), two.lease()
    assert mine.claim(is_open)
    mine.finish(DONE)
    two.store.refresh()
    (commit,) = [commit for commit in two.store.ops() if isinstance(commit, opslog.Batch)]
    assert (commit.author, {record.id for record in commit.records}) == ("one", {"task", "lease/task"})
    assert dict(two.store) == {"task": DONE}
    assert not other.claim(is_open)
    assert other.holder is None
    with pytest.raises(opslog.LeaseLostError):
        mine.finish(DONE)


def test_a_finished_task_may_be_deleted(one: Worker) -> None:
    lease = one.lease()
    for _ in range(2):  # the second time there is no document any more
        assert lease.claim()
        lease.finish(None)
        assert dict(one.store) == {}


def test_it_is_taken_over_when_it_was_not_renewed(one: Worker, two: Worker) -> None:
    mine, other = one.lease(), two.lease()
    assert mine.claim()
    assert not other.claim()
    two.machine.pass_time(9.999)
    assert not other.claim()
    two.machine.pass_time(0.002)
    assert other.claim()
    assert other.holder == "two"
    with pytest.raises(opslog.LeaseLostError, match="two has it now") as caught:
        mine.renew()
    assert (caught.value.id, caught.value.record.author) == ("lease/task", "two")
    assert (mine.stamp, mine.remaining) == (None, 0.0)


def test_nobody_takes_over_a_lease_that_was_just_seen(one: Worker, two: Worker) -> None:
    """However long ago it was claimed, by any clock: the time counts from when it was first seen."""
    assert one.lease().claim()
    for machine in (one.machine, two.machine):
        machine.pass_time(1e9)
    other = two.lease()
    assert not other.claim()
    assert not two.lease().claim()
    two.machine.pass_time(10.0)
    assert other.claim()


def test_each_renewal_restarts_the_time(one: Worker, two: Worker) -> None:
    mine, other = one.lease(), two.lease()
    assert mine.claim()
    for _ in range(5):
        assert not other.claim()
        two.machine.pass_time(9.0)
        one.machine.pass_time(9.0)
        assert mine.remaining == pytest.approx(1.0)
        mine.renew()
        assert mine.remaining == 10.0
    assert not other.claim()


def test_time_that_a_worker_was_paused_does_not_count(one: Worker, two: Worker) -> None:
    mine, other = one.lease(), two.lease()
    assert mine.claim()
    assert not other.claim()
    mine.renew()
    two.machine.pass_time(1000.0)  # paused; when it continues, the stamp is another one
    assert not other.claim()


def test_it_lasts_as_long_as_its_holder_said(one: Worker, two: Worker) -> None:
    assert one.lease(seconds=100.0).claim()
    other = two.lease(seconds=1.0)
    assert not other.claim()
    two.machine.pass_time(99.0)
    assert not other.claim()
    two.machine.pass_time(1.0)
    assert other.claim()
    assert other.remaining == 1.0


def test_an_overdue_lease_that_nobody_took_can_be_used(one: Worker) -> None:
    lease = one.lease()
    assert lease.claim()
    one.machine.pass_time(60.0)
    assert lease.remaining == 0.0
    lease.renew()
    assert lease.remaining == 10.0
    one.machine.pass_time(60.0)
    lease.finish(DONE)
    assert dict(one.store) == {"task": DONE}


def _late(one: Worker, two: Worker) -> tuple[opslog.Lease, opslog.Lease]:
    """A holder that does not know that another worker took the lease over."""
    mine, other = one.lease(), two.lease()
    assert mine.claim(is_open)
    assert not other.claim(is_open)
    two.machine.pass_time(10.0)
    assert other.claim(is_open)
    return mine, other


@pytest.mark.parametrize("call", ["finish", "set", "transact", "renew", "release"])
@pytest.mark.parametrize("state", ["working", "done", "released"])
def test_a_late_holder_changes_nothing(one: Worker, two: Worker, call: str, state: str) -> None:
    mine, other = _late(one, two)
    if state == "done":
        other.finish(DONE)
    elif state == "released":
        other.release()
    before = dict(two.store)
    calls = {
        "finish": lambda: mine.finish({"status": "late"}),
        "set": lambda: mine.set("anything", {"status": "late"}),
        "transact": lambda: mine.transact(lambda transaction: transaction.set("anything", {"status": "late"})),
        "renew": mine.renew,
        "release": mine.release,
    }
    commits = len(list(one.store.ops()))
    for _ in range(2):
        with pytest.raises(opslog.LeaseLostError, match="Nothing was written"):
            calls[call]()
    assert len(list(one.store.ops())) == commits
    assert dict(one.store) == before


def test_the_token_only_grows(one: Worker, two: Worker) -> None:
    mine, other = one.lease(), two.lease()
    tokens = []
    for _ in range(3):
        assert mine.claim()
        tokens.append(mine.token)
        mine.renew()
        tokens.append(mine.token)
        assert not other.claim()
        two.machine.pass_time(10.0)
        assert other.claim()
        tokens.append(other.token)
        other.release()
        with suppress(opslog.LeaseLostError):
            mine.release()
    assert tokens == sorted(set(tokens), key=lambda token: token or 0)


def test_a_held_lease_can_be_claimed_again(one: Worker, two: Worker) -> None:
    """The claim is a renewal, even if the document would no longer be one to claim."""
    mine = one.lease()
    assert mine.claim(is_open)
    mine.set("task", {"status": "active"})
    one.machine.pass_time(5.0)
    assert mine.claim(is_open)
    assert mine.remaining == 10.0
    assert not two.lease().claim(is_open)


def test_a_holder_that_lost_it_may_wait_for_it(one: Worker, two: Worker) -> None:
    mine, other = _late(one, two)
    assert not mine.claim()
    assert mine.holder == "two"
    one.machine.pass_time(10.0)
    assert mine.claim()
    with pytest.raises(opslog.LeaseLostError):
        other.renew()


def test_two_leases_of_one_process_are_two_parties(one: Worker) -> None:
    mine, other = one.lease(), one.lease()
    assert mine.claim()
    assert not other.claim()
    with pytest.raises(opslog.LeaseLostError):
        other.renew()
    mine.renew()


def test_a_claim_goes_on_by_its_key_in_another_process(one: Worker, two: Worker) -> None:
    lease = one.lease()
    assert lease.claim()
    assert lease.key is not None
    other = opslog.Lease(two.store, "task", 60, key=lease.key, holder="the second of one")
    other.renew()
    record = two.store.record(PREFIX + "task")
    assert record is not None
    assert record.document == {"holder": "the second of one", "seconds": 60.0, "claim": lease.key}
    other.finish(DONE)
    with pytest.raises(opslog.LeaseLostError):
        lease.renew()
    with pytest.raises(opslog.LeaseLostError):
        opslog.Lease(two.store, "task", 60, key="unknown").release()


def test_an_observed_lease_counts_as_seen_by_a_claim(one: Worker, two: Worker) -> None:
    lease, waiting = one.lease(seconds=10), two.lease()
    assert lease.observe()
    assert waiting.observe(), "nobody has it"
    assert lease.claim()
    two.store.refresh()
    assert not waiting.observe()
    two.machine.pass_time(9)
    assert not waiting.observe()
    assert waiting.holder is not None
    two.machine.pass_time(2)
    assert waiting.observe()
    assert waiting.claim(), "without having seen it in a claim before"


def test_the_next_claim_may_last_longer(one: Worker, two: Worker) -> None:
    lease, waiting = one.lease(seconds=10), two.lease()
    assert lease.claim()
    lease.seconds = 100
    lease.renew()
    assert lease.remaining == 100
    assert not waiting.claim()
    two.machine.pass_time(50)
    assert not waiting.claim()
    for wrong in (0, -1, math.inf, math.nan):
        with pytest.raises(opslog.UsageError):
            lease.seconds = wrong


def test_the_writes_of_a_lease_are_in_one_transaction_with_it(one: Worker, two: Worker) -> None:
    mine = one.lease()
    assert mine.claim()

    def move(transaction: opslog.Transaction[dict[str, Any]]) -> int:
        transaction["part-1"] = {"of": transaction["task"]["status"]}
        transaction["part-2"] = {}
        return len(transaction)

    assert mine.transact(move) == 4
    mine.set("part-3", {})
    two.store.refresh()
    assert sorted(two.store) == ["lease/task", "part-1", "part-2", "part-3", "task"]


def test_to_delete_the_document_of_a_lease_frees_it(one: Worker, two: Worker) -> None:
    mine, other = one.lease(), two.lease()
    assert mine.claim()
    two.store.refresh()
    two.store.delete("lease/task")
    assert other.claim()
    with pytest.raises(opslog.LeaseLostError):
        mine.renew()


def test_an_undo_of_a_takeover_gives_it_back(one: Worker, two: Worker) -> None:
    mine, other = _late(one, two)
    assert two.store.undo()
    with pytest.raises(opslog.LeaseLostError):
        other.finish(DONE)
    mine.finish(DONE)


def test_the_outcome_of_a_claim_that_is_unknown_is_known_at_the_next(
    one: Worker, two: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = one.lease()
    transact = one.store.transact

    def lose_the_answer(function: Any) -> Any:
        transact(function)
        raise opslog.CommitUnknownError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(one.store, "transact", lose_the_answer)
        with pytest.raises(opslog.CommitUnknownError):
            mine.claim()
    assert not two.lease().claim()
    assert mine.claim()


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
def test_no_duration(one: Worker, seconds: float) -> None:
    with pytest.raises(opslog.UsageError, match="some seconds"):
        opslog.Lease(one.store, "task", seconds)


def test_these_claims_are_refused(one: Worker, url: str) -> None:
    with pytest.raises(opslog.InvalidNameError):
        opslog.Lease(one.store, "\ud800")
    one.store["lease/task"] = {"mine": True}
    with pytest.raises(opslog.UsageError, match="'lease/task', written by one, is no lease"):
        one.lease().claim()

    @dataclass
    class Task:
        status: str

    with (
        opslog.open(f"{url}-typed", type=Task) as typed,
        pytest.raises(opslog.UsageError, match="Task cannot hold"),
    ):
        opslog.Lease(typed, "task")  # type: ignore[arg-type]
    with opslog.open(url, read_only=True) as reader, pytest.raises(opslog.ReadOnlyError):
        opslog.Lease(reader, "other").claim()
    with one.store.batch(), pytest.raises(opslog.UsageError):
        opslog.Lease(one.store, "other").claim()


def test_it_shows_itself(one: Worker) -> None:
    lease = one.lease()
    assert (repr(lease), lease.id) == ("<Lease of 'task': not held>", "task")
    assert lease.claim()
    assert repr(lease) == "<Lease of 'task': held, 10.0 s left>"
    assert PREFIX == "lease/"


def test_with_asyncio(one: Worker, url: str) -> None:
    machine = Machine(77.0)

    async def work() -> None:
        async with opslog.aio.open(url, agent="two", environment=machine.environment) as store:
            mine, others = one.lease(), [opslog.aio.AsyncLease(store, "task", 10.0) for _ in range(20)]
            assert mine.claim(is_open)
            assert not any(await asyncio.gather(*(other.claim(is_open) for other in others)))
            assert others[0].holder == "one"
            machine.pass_time(10.0)
            won = await asyncio.gather(*(other.claim(is_open) for other in others))
            assert sorted(won) == [False] * 19 + [True]
            with pytest.raises(opslog.LeaseLostError):
                mine.finish({"status": "late"})
            lease = others[won.index(True)]
            await lease.renew()
            await lease.set("part", {})
            assert await lease.transact(len) == 3
            await lease.finish(DONE)
            with pytest.raises(opslog.LeaseLostError):
                await lease.renew()
            with pytest.raises(opslog.LeaseLostError):
                await lease.release()
            assert await lease.claim()
            await lease.release()

    asyncio.run(work())
    one.store.refresh()
    assert dict(one.store) == {"task": DONE, "part": {}}
