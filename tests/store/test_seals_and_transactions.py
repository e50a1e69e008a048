"""Object storages: a plain write of an idle agent that has not read a transaction loses against it. The same holds if a
compaction has sealed the agent's log meanwhile, and the write goes after the seal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import opslog
from opslog import aio
from opslog.backends.objects import backend as objects
from opslog.compaction.compact import Tail
from opslog.log.freshness import Freshness
from opslog.log.survey import survey
from opslog.snapshot.manifests import ManifestStore
from opslog.store import replica_of
from opslog.verify.verify import verify
from tests.support.worlds import DAY, Nobody, Store, World

SEALS = ["there", "compacted", "collected"]
DURABILITIES = ["fsync", "buffered"]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(objects, "_held", Nobody())
    return World()


def open_idle(world: World, durability: Any) -> Store:
    """An agent with two commits in its log."""
    live = world.open("a", durability=durability, buffer_seconds=10 * DAY)
    live["one"] = {}
    live["two"] = {}
    live.flush()
    return live


def claim(world: World) -> None:
    with world.open("b") as b:
        b.create("claim", {"by": "b"})


def seal(world: World, seal: str) -> None:
    """Somebody else's compaction takes agent "a" for gone. :param seal: how far the compaction comes."""
    if seal == "there":
        manifests = ManifestStore(world.backend)
        tail = survey(manifests, lambda found: Tail.read(world.backend, found))
        freshness = Freshness(manifests, world.environment, tail.manifest, world.seconds)
        assert tail.seal_idle(world.backend, freshness) == ("a",)
    elif seal == "compacted":
        assert world.compact().sealed == ("a",)
    else:
        world.compact_beyond("a")


def check(world: World, live: Store) -> None:
    """Everybody reads the same, and the log is whole."""
    live.refresh()
    assert dict(live.items()) == world.documents()
    clocks = [commit.clock for commit in live.ops() if commit.agent == "a"]
    assert clocks == sorted(set(clocks))
    assert [str(problem) for problem in verify(world.backend).problems if problem.severity == "error"] == []


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("how", SEALS)
def test_a_commit_stamped_before_a_transaction_was_read_does_not_outrank_it_behind_a_seal(
    world: World, how: str, is_read: bool
) -> None:
    """A buffered set. The same holds if the agent reads the transaction before it writes its buffer."""
    with open_idle(world, "buffered") as live:
        live["claim"] = {"by": "a"}
        with live.batch():
            live["claim"] = {"by": "a", "again": True}
            live["other"] = {"by": "a"}
        world.seconds += 2 * DAY
        claim(world)
        seal(world, how)
        if is_read:
            live.refresh()
        live.flush()
        assert world.documents()["claim"] == {"by": "b"}
        assert world.documents()["other"] == {"by": "a"}
        check(world, live)
        assert live.undo(), "the batch is in the log, behind the seal"
        live.flush()
        assert "other" not in world.documents()
        live["claim"] = {"by": "a"}  # now it knows
        assert world.documents()["claim"] == {"by": "a"}
        check(world, live)


@pytest.mark.parametrize("how", SEALS)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_set_by_an_idle_agent_that_has_not_read_a_transaction_loses_behind_a_seal(
    world: World, how: str, durability: str
) -> None:
    with open_idle(world, durability) as live:
        world.seconds += 2 * DAY
        claim(world)
        seal(world, how)
        live["claim"] = {"by": "a"}
        live.flush()
        assert world.documents()["claim"] == {"by": "b"}
        check(world, live)
        assert live["claim"] == {"by": "b"}


@pytest.mark.parametrize("how", SEALS)
def test_with_asyncio_a_set_that_has_not_read_a_transaction_loses_behind_a_seal(world: World, how: str) -> None:
    async def write() -> None:
        options: dict[str, Any] = {"environment": world.environment, "now": world.now, "compact_after": None}
        async with aio.open(world.url, agent="a", **options) as store:
            await store.set("one", {})
            await store.set("two", {})
            world.seconds += 2 * DAY
            claim(world)
            seal(world, how)
            await asyncio.gather(*[store.set(id, {"by": "a"}) for id in ("claim", "x", "y")])
            assert world.documents()["claim"] == {"by": "b"}
            assert world.documents()["x"] == {"by": "a"}
            check(world, opslog.Store(replica_of(store)))

    asyncio.run(write())


@pytest.mark.parametrize("how", SEALS)
def test_a_transaction_after_a_seal_outranks_it(world: World, how: str) -> None:
    """The seal's clock follows that of the last commit before it, whatever its writer had read."""
    with open_idle(world, "fsync") as live:
        world.seconds += 2 * DAY
        with world.open("b") as b:
            for number in range(30):
                b[str(number)] = {}
        seal(world, how)
        if how == "there":
            seals = [commit for commit in live.ops() if commit.op == "seal"]
            assert [(commit.agent, commit.clock) for commit in seals] == [("a", 3)]
        live["x"] = {"by": "a"}
        assert live["x"] == world.documents()["x"] == {"by": "a"}
        check(world, live)
