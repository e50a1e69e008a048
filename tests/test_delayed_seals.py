"""Object storages: a paused compaction creates a seal under a number that was used, compacted and collected, and the
logs of idle agents are sealed, compacted and collected. Everybody reads everything that is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import opslog
from opslog import aio
from opslog.backends.objects import backend as objects
from opslog.bulk.ingest import ingest
from opslog.importers import ImportedCommit, ImportedOp
from opslog.snapshot.manifests import ManifestStore
from opslog.store import replica_of
from opslog.verify.verify import verify
from tests.support.bucket import Fault, Request
from tests.support.worlds import DAY, Nobody, Store, World, delay_seal, leave_delayed_seal

Write = Callable[[Store], None]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(objects, "_held", Nobody())
    return World()


@pytest.fixture
def live(world: World) -> Iterator[Store]:
    """An agent that was idle over a weekend, but is alive."""
    with world.open("a") as store:
        store["one"] = {}
        store["two"] = {}
        world.seconds += 2 * DAY
        yield store


def set_one(store: Store) -> None:
    store["busy"] = {"by": "a"}


def batch(store: Store) -> None:
    with store.batch():
        store["busy"] = {"by": "a"}
        store["z"] = {"by": "a"}


def undo_first(store: Store) -> None:
    assert not store.undo(), "its undo window ended with the seal"
    store["busy"] = {"by": "a"}


def undo_between(store: Store) -> None:
    store["busy"] = {"by": "a"}
    store["y"] = {"by": "a"}
    assert store.undo()
    assert "y" not in store, "it has not read what others wrote"
    assert not store.undo(), "the window counts undos, too"


def archive(store: Store) -> None:
    assert store.archive(lambda document: document == {"n": 29}, "2027") == 1
    store["busy"] = {"by": "a"}


def refreshed(store: Store) -> None:
    store.refresh()
    store["busy"] = {"by": "a"}


def flushed(store: Store) -> None:
    store.flush()
    store.compact()
    store["busy"] = {"by": "a"}


WRITES = [set_one, batch, undo_first, undo_between, archive, refreshed, flushed]


def check_converged(world: World, live: Store) -> None:
    """Everybody reads what was acknowledged, and the log is whole."""
    documents = world.documents()
    assert documents["busy"] == {"by": "a"}
    assert dict(live.items()) | documents == documents
    live.refresh()
    assert dict(live.items()) == documents
    clocks = [commit.clock for commit in live.ops() if commit.agent == "a"]
    assert clocks == sorted(set(clocks))
    assert live.stats().clock >= ManifestStore(world.backend).newest().clock
    assert [str(problem) for problem in verify(world.backend).problems if problem.severity == "error"] == []


@pytest.mark.parametrize("write", WRITES)
def test_a_delayed_seal_is_not_mistaken_for_the_end_of_the_log(world: World, live: Store, write: Write) -> None:
    leave_delayed_seal(world)
    write(live)
    check_converged(world, live)


@pytest.mark.parametrize("write", WRITES)
def test_a_writer_that_meets_a_delayed_seal_always_reads_the_newest_manifest(world: World, write: Write) -> None:
    """Also if the manifest that it knows counts as recent, by a monotonic clock that does not count pauses."""
    with world.open("a", environment=world.unaware) as live:
        live["one"] = {}
        live["two"] = {}
        world.seconds += 2 * DAY
        leave_delayed_seal(world)
        write(live)
        check_converged(world, live)


@pytest.mark.parametrize("write", WRITES)
def test_an_idle_agent_goes_on_after_its_seal_was_collected(world: World, live: Store, write: Write) -> None:
    world.compact_beyond("a")
    write(live)
    check_converged(world, live)


@pytest.mark.parametrize("durability", ["fsync", "buffered"])
def test_an_idle_agent_that_has_loaded_its_seal_goes_on_after_that_was_collected(world: World, durability: str) -> None:
    """It loads the seal while no manifest has it yet, so it expects to meet the seal at its next append."""

    def load(request: Request) -> None:
        if request.method == "put_new" and request.key.startswith("prefix/manifests/") and len(world.segments("a")) > 1:
            world.bucket.fault = lambda request: None
            store.refresh()

    with world.open("a", durability=durability) as store:
        store["one"] = {}
        store["two"] = {}
        store.flush()
        world.seconds += 2 * DAY
        world.bucket.fault = load
        while world.bucket.fault is load:
            assert world.compact().number is not None
            world.seconds += 60
        world.compact_beyond("a")
        store["later"] = {"by": "a"}
        store.flush()
        assert "later" in world.documents()
        store.refresh()
        assert dict(store.items()) == world.documents()
    assert [str(problem) for problem in verify(world.backend).problems if problem.severity == "error"] == []


def test_a_compaction_does_not_count_a_seal_that_came_too_late(world: World, live: Store) -> None:
    assert delay_seal(world, "a", lambda: world.compact_beyond("a")).sealed == ()
    live["busy"] = {"by": "a"}
    check_converged(world, live)


def test_with_asyncio_a_delayed_seal_is_not_mistaken_for_the_end_of_the_log(world: World) -> None:
    async def write() -> None:
        options: dict[str, Any] = {"environment": world.environment, "now": world.now, "compact_after": None}
        async with aio.open(world.url, agent="a", **options) as store:
            await store.set("one", {})
            await store.set("two", {})
            world.seconds += 2 * DAY
            leave_delayed_seal(world)
            await asyncio.gather(*[store.set(f"task-{number}", {}) for number in range(5)])
            await store.set("busy", {"by": "a"})
            check_converged(world, opslog.Store(replica_of(store)))

    asyncio.run(write())


def test_a_read_only_store_passes_over_a_delayed_seal(world: World, live: Store) -> None:
    with opslog.open(world.url, read_only=True, environment=world.environment, now=world.now) as reader:
        leave_delayed_seal(world)
        reader.refresh()
        assert dict(reader.items()) == world.documents()


def test_an_import_goes_on_behind_a_delayed_seal(world: World, live: Store) -> None:
    """Its first chunk had read the log up to the position of the delayed seal."""
    live.close()
    commits = [ImportedCommit("a", None, (ImportedOp("set", "busy", {"by": "a"}),), f"file:{n}") for n in (1, 2)]

    def two_chunks() -> Iterator[ImportedCommit]:
        yield commits[0]
        world.seconds += 2 * DAY
        leave_delayed_seal(world)
        yield commits[1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opslog.bulk.ingest._CHUNK_BYTES", 1)
        ingest(world.backend, two_chunks(), environment=world.environment)
    with world.open("a") as again:
        check_converged(world, again)


def test_an_import_whose_log_is_sealed_before_its_append_is_to_be_run_again(world: World, live: Store) -> None:
    live.close()
    number = world.segments("a")[-1] + 1

    def seal(request: Request) -> None:
        if request.method == "put_new" and request.key.startswith("prefix/ops/a/"):
            world.bucket.fault = lambda request: None
            assert world.compact().sealed == ("a",)

    world.bucket.fault = seal
    commit = ImportedCommit("a", None, (ImportedOp("set", "busy", {"by": "a"}),), "file:1")
    with pytest.raises(opslog.RetryError, match="run the import again"):
        ingest(world.backend, [commit], environment=world.environment)
    assert world.segments("a")[-1] == number
    ingest(world.backend, [commit], environment=world.environment)
    with world.open("a") as again:
        check_converged(world, again)


def test_a_storage_that_does_not_answer_beside_a_seal_leaves_the_store_usable(world: World, live: Store) -> None:
    """Nothing was written, and the next attempt continues after the seal."""
    assert world.compact().sealed == ("a",)

    def fail(request: Request) -> Fault | None:
        return Fault("unknown") if request.method == "list" else None

    replica = replica_of(live)
    replica.freshness.note(replica.state.manifest, world.seconds)
    with world.bucket.failing(fail), pytest.raises(opslog.WriteFailedError):
        live["busy"] = {"by": "a"}
    live["busy"] = {"by": "a"}
    check_converged(world, live)
