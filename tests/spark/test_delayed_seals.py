"""Object storages: Spark beside delayed seals, and paused drivers. This needs no Spark session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import opslog
from opslog.backends.objects import backend as objects
from opslog.format.commits import Commit, DeleteOp, encode_commit
from opslog.log import session
from opslog.spark.read.planning import survey_retained
from opslog.spark.write import ends, writing
from opslog.spark.write.writing import Log
from opslog.verify.verify import verify
from tests.support.bucket import Request
from tests.support.worlds import DAY, Nobody, World, leave_delayed_seal


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(objects, "_held", Nobody())
    world = World()
    monkeypatch.setattr(writing, "REAL", world.environment)
    return world


@pytest.fixture
def log(world: World) -> Iterator[Log]:
    """The log of a job under way, to which nobody has written over a weekend."""
    with world.open("a") as store:
        store["one"] = {}
        store["two"] = {}
    world.seconds += 2 * DAY
    log = Log(world.backend, "a")
    yield log
    log.close()


def check_converged(world: World) -> None:
    assert "two" not in world.documents()
    with opslog.open(world.url, read_only=True, now=world.now) as store:
        clocks = [commit.clock for commit in store.ops() if commit.agent == "a"]
        assert clocks == sorted(set(clocks))
    assert verify(world.backend).ok


def test_a_job_goes_on_behind_a_delayed_seal(world: World, log: Log) -> None:
    leave_delayed_seal(world)
    log.append([DeleteOp("two")])
    check_converged(world)


def test_a_job_goes_on_after_a_seal(world: World, log: Log) -> None:
    assert world.compact().sealed == ("a",)
    log.append([DeleteOp("two")])
    check_converged(world)


def test_a_job_goes_on_after_its_seal_was_collected(world: World, log: Log) -> None:
    world.compact_beyond("a")
    log.append([DeleteOp("two")])
    check_converged(world)


def test_a_compaction_does_not_count_a_seal_that_came_too_late(world: World, log: Log) -> None:
    log.close()
    tails = ends.read_ends(world.backend, world.environment)

    def pause(request: Request) -> None:
        if request.method == "put_new" and request.key.startswith("prefix/ops/a/"):
            world.bucket.fault = lambda request: None
            world.seconds += 120
            world.compact_beyond("a")

    world.bucket.fault = pause
    assert tails.seal_idle(world.backend) == ()
    assert world.segments("a"), "it is there, and nobody reads it"


def test_the_ops_view_passes_over_a_delayed_seal(world: World, log: Log) -> None:
    log.close()
    leave_delayed_seal(world)
    (number,) = world.segments("a")
    with world.open("a") as store:
        store["three"] = {}
    assert world.segments("a") == [number, number + 1]
    (retained,) = [found for found in survey_retained(world.backend).logs if found.agent == "a"]
    assert [segment.number for segment in retained.segments] == [number + 1]


def test_a_job_that_took_long_reads_what_is_new_before_it_goes_on(world: World, log: Log) -> None:
    """It reads again half a tombstone TTL after it read the logs."""
    log.append([DeleteOp("two")])
    with world.open("b") as b:
        for number in range(100):
            b["busy"] = {"n": number}
        clock = b.stats().clock
        world.seconds += 4 * DAY
        log.append([DeleteOp("busy")])
        b.refresh()
        assert "busy" not in b
        assert b.stats().clock == clock + 1


def test_a_commit_of_a_driver_paused_for_longer_than_the_tombstone_ttl_is_refused(
    world: World, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:

    def pause(commit: Commit) -> bytes:
        world.seconds += 7 * DAY
        return encode_commit(commit)

    monkeypatch.setattr(session, "encode_commit", pause)
    with pytest.raises(opslog.WriteFailedError, match="paused for most of the tombstone TTL"):
        log.append([DeleteOp("two")])
    assert "two" in world.documents()
