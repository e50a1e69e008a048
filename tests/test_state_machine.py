"""Random histories of whole stores, compared with a plain model: several agents with stale views, compactions computed
early and published late, garbage collection, seals, restarts.

The model is the list of all commits that were acknowledged, and `opslog.merge.merge.reference` over it. The promises of
the format must hold: every fresh, refreshed and long-lived view equals the reference; an undo takes back exactly the
agent's newest commit within the window; clocks only grow; nothing needed is ever collected.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

import opslog
from opslog.backends import open_backend
from opslog.compaction import compact as compaction
from opslog.compaction.compact import Tail
from opslog.errors import AlreadyExistsError, MissingFileError
from opslog.format.commits import Batch, Commit, Set, Stamp, Undo
from opslog.format.layout import TRANSACTIONS
from opslog.log.reader import Cursor, list_log
from opslog.log.survey import survey
from opslog.merge.merge import reference
from opslog.options import Log
from opslog.snapshot import runs
from opslog.snapshot.manifests import ManifestStore
from tests.support import bucket, served_storage  # noqa: F401  (stores at bucket:// and served+lossy://)
from tests.support.consuming import Consumer

WINDOW = 3
"""Small, so that histories often reach its edge."""

NAMES = ("A", "B", "C")
IDS = st.sampled_from(["x", "y", "z"])
AGENTS = st.sampled_from(NAMES)

_urls = itertools.count()


class World:
    """Simulated time: one clock for the storage and all agents, and names that never repeat."""

    def __init__(self) -> None:
        self.seconds = 1_000_000_000.0
        self.nonces = itertools.count()
        self.environment = opslog.Environment(
            time=lambda: self.seconds,
            monotonic=lambda: self.seconds,
            sleep=self.sleep,
            nonce=lambda: f"n{next(self.nonces)}",
        )

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def plain(store: opslog.Store[Any]) -> dict[str, Any]:
    return dict(store.items())


class Agents(RuleBasedStateMachine):
    """See the module's docstring."""

    scheme = "memory"
    loaded_bytes = runs.LOADED_BYTES
    undo_ttl_min = 0.0
    plans = Bundle("plans")

    @initialize(grace=st.sampled_from([0.0, 50.0]), undo_ttl=st.sampled_from([30.0, 1e9]), ttl=st.sampled_from([1e9]))
    def create(self, grace: float, undo_ttl: float, ttl: float) -> None:
        self.world = World()
        runs.LOADED_BYTES = self.loaded_bytes
        self.url = f"{self.scheme}://state-machine-{next(_urls)}"
        self.options: dict[str, Any] = {
            "environment": self.world.environment,
            "now": lambda: self.world.seconds,
            "compact_after": None,
        }
        configuration = opslog.Settings(
            undo_window=WINDOW,
            grace_seconds=grace,
            undo_ttl_seconds=max(undo_ttl, self.undo_ttl_min),
            tombstone_ttl_seconds=ttl,
        )
        self.agents = {name: self.open(name, settings=configuration) for name in NAMES}
        self.readers = [opslog.open(self.url, read_only=True, **self.options) for _ in range(2)]
        self.backend = open_backend(self.url, now=lambda: self.world.seconds)
        self.cursors: dict[str, Cursor] = {}
        self.everything: list[Commit] = []
        self.clocks: dict[str, int] = {}
        self.value = 0
        self.consumers = [Consumer(), Consumer()]
        self.before: list[set[Stamp]] = [set(), set()]

    def open(self, name: str, **more: Any) -> opslog.Store[Any]:
        return opslog.open(self.url, agent=name, **self.options, **more)

    def note_commits(self, name: str, count: int) -> list[Commit]:
        """Read into the model what an agent has just written. It comes from the agent's log or the shared one, without
        the store."""
        written = self.note_log(name) if list_log(self.backend, name) else []
        if list_log(self.backend, TRANSACTIONS):
            shared = self.note_log(TRANSACTIONS)
            assert all(commit.by == name for commit in shared)
            written += shared
        assert len(written) == count
        return written

    def note_log(self, name: str) -> list[Commit]:
        cursor = self.cursors.setdefault(name, Cursor(name))
        listed = list_log(self.backend, name)
        if listed and cursor.segment < listed[0].number:  # what was read here before was compacted and collected since
            cursor.segment, cursor.offset = listed[0].number, 0
        new = [commit for _, commit in cursor.read(self.backend, listed)]
        written: list[opslog.Commit] = [commit for commit in new if not isinstance(commit, opslog.Seal)]
        for commit in written:
            assert commit.clock > self.clocks.get(name, 0), "a clock went back"
            self.clocks[name] = commit.clock
        self.everything += new
        return written

    def read_seals(self) -> None:
        for name in NAMES:
            if list_log(self.backend, name):
                self.note_commits(name, 0)

    @rule(name=AGENTS, id=IDS)
    def set(self, name: str, id: str) -> None:
        self.value += 1
        self.agents[name].set(id, {"value": self.value})
        (commit,) = self.note_commits(name, 1)
        assert isinstance(commit, Set)
        assert commit.document == {"value": self.value}

    @rule(name=AGENTS, id=IDS)
    def delete(self, name: str, id: str) -> None:
        store = self.agents[name]
        if id in store:
            store.delete(id)
            assert id not in store
            self.note_commits(name, 1)
        else:
            try:
                store.delete(id)
            except opslog.NotFoundError:
                return
            raise AssertionError("deleted what was not there")

    @rule(name=AGENTS, ids=st.lists(IDS, min_size=1, max_size=3), fails=st.booleans())
    def batch(self, name: str, ids: list[str], fails: bool) -> None:
        store, before = self.agents[name], plain(self.agents[name])
        try:
            with store.batch():
                for id in ids:
                    self.value += 1
                    store[id] = {"value": self.value}
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert plain(store) == before
            self.note_commits(name, 0)
            return
        (commit,) = self.note_commits(name, 1)
        assert isinstance(commit, Batch) or commit.by
        assert store[ids[-1]] == {"value": self.value}

    @rule(name=AGENTS)
    def undo(self, name: str) -> None:
        expected = self.newest_undoable(name)
        done = self.agents[name].undo()
        assert done is (expected is not None)
        if expected is not None:
            (commit,) = self.note_commits(name, 1)
            assert isinstance(commit, Undo)
            assert commit.target == expected

    def newest_undoable(self, name: str) -> int | None:
        """The model's own answer, from the whole log: the window counts commits, including undos, back to the last
        seal."""
        log = [commit for commit in self.everything if commit.agent == name]
        cancelled = {commit.target for commit in log if isinstance(commit, Undo)}
        for commit in list(reversed(log))[:WINDOW]:
            if isinstance(commit, opslog.Seal):
                return None
            if commit.records and commit.clock not in cancelled:
                return commit.clock
        return None

    @rule(name=AGENTS)
    def refresh(self, name: str) -> None:
        self.agents[name].refresh()
        assert plain(self.agents[name]) == self.expected()

    @rule(number=st.integers(0, 1))
    def refresh_reader(self, number: int) -> None:
        self.readers[number].refresh()
        assert plain(self.readers[number]) == self.expected()

    @rule(number=st.integers(0, 1), by=st.sampled_from([*NAMES, 0, 1]), limit=st.sampled_from([None, None, 1, 3]))
    def consume(self, number: int, by: str | int, limit: int | None) -> None:
        """Consumers follow the store through any agent or reader that is open."""
        store = self.agents[by] if isinstance(by, str) else self.readers[by]
        consumer = self.consumers[number]
        resets = consumer.resets
        changes = store.changes(consumer.token, limit)
        consumer.take(changes)
        written = {commit.stamp for commit in self.everything if not isinstance(commit, opslog.Seal)}
        if consumer.resets > resets:
            self.before[number] = written
        elif limit is not None:
            assert len(changes.commits) <= limit  # each append is one commit here
        if limit is None or consumer.resets > resets:
            assert consumer.documents == plain(store) == self.expected()
            assert {*consumer.stamps} == written - self.before[number], "no commit is missing"
        if limit is None:
            assert not store.changes(consumer.token).commits

    @rule(name=AGENTS)
    def restart(self, name: str) -> None:
        self.agents[name].close()
        self.agents[name] = self.open(name)
        assert plain(self.agents[name]) == self.expected()

    @rule(name=AGENTS, full=st.booleans(), keep=st.sampled_from([None, "forever", 0]))
    def compact(self, name: str, full: bool, keep: Any) -> None:
        self.agents[name].compact(full=full, keep_history=keep)
        self.read_seals()

    @rule(target=plans, full=st.booleans())
    def begin_compaction(self, full: bool) -> compaction._Plan:
        """It is computed from the current state, and published later or never."""
        tail = survey(ManifestStore(self.backend), partial(Tail.read, self.backend))
        manifest = tail.manifest
        return compaction._Plan(self.backend, manifest, tail.input(self.backend, (), None), manifest.settings, full)

    @rule(plan=consumes(plans))
    def publish(self, plan: compaction._Plan) -> None:
        # A paused compaction either publishes the number it aimed at, or finds that others have. It does so once: the
        # rows of a plan are freed when they are written.
        newest = ManifestStore(self.backend).newest_number()
        try:
            plan.carry_out(self.world.environment)
        except (AlreadyExistsError, MissingFileError):
            assert newest > plan.old.number

    @rule(seconds=st.sampled_from([1.0, 40.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.world.sleep(seconds)

    @rule(name=AGENTS)
    def close_and_idle(self, name: str) -> None:
        """Idle long enough for the undo window to be sealed. Then somebody else compacts."""
        self.agents[name].close()
        self.world.sleep(60.0)
        other = next(store for other, store in self.agents.items() if other != name)
        other.compact()
        self.read_seals()
        self.agents[name] = self.open(name)

    def expected(self) -> dict[str, Any]:
        winners = reference(self.everything)
        return {id: winners[id].document for id in sorted(winners) if isinstance(winners[id], Set)}  # type: ignore[union-attr]

    @invariant()
    def counts_agree(self) -> None:
        for store in getattr(self, "agents", {}).values():
            ids = list(store)  # this may load again, and then there are more than before
            assert len(store) == len(ids)

    def teardown(self) -> None:
        if hasattr(self, "agents"):
            self.check_everything()
        runs.LOADED_BYTES = Agents.loaded_bytes

    def check_everything(self) -> None:
        expected = self.expected()
        with opslog.open(self.url, read_only=True, **self.options) as fresh:
            assert plain(fresh) == expected, "a fresh view"
        for store in [*self.agents.values(), *self.readers]:
            store.refresh()
            assert plain(store) == expected, "a refreshed view"
            assert list(store) == sorted(expected), "iteration is in order of id"
            store.close()


class AgentsOnObjects(Agents):
    """The same where each append is a segment of its own."""

    scheme = "bucket"


class AgentsWithLargeSnapshots(AgentsOnObjects):
    """The same with runs that stay on storage, and cannot be mapped."""

    loaded_bytes = 0


class AgentsAndSessions(Agents):
    """Only A has a log of its own. B and C write only transactions, so everything that they touch is guarded."""

    def open(self, name: str, **more: Any) -> opslog.Store[Any]:
        log: Log = "own" if name == "A" else "shared"
        return opslog.open(self.url, agent=name, log=log, **self.options, **more)

    def read_seals(self) -> None:
        self.note_commits("A", 0)

    @rule(name=AGENTS)
    def undo(self, name: str) -> None:
        target = self.target(name)
        winners = reference(self.everything)
        if target is not None and target.by and any(winners[r.id].stamp != target.stamp for r in target.records):
            with pytest.raises(opslog.ConflictError):
                self.agents[name].undo()
            self.note_commits(name, 0)
            return
        assert self.agents[name].undo() is (target is not None)
        if target is not None:
            (commit,) = self.note_commits(name, 1)
            assert isinstance(commit, Undo)
            assert (commit.agent, commit.target) == (target.agent, target.clock)

    def target(self, name: str) -> Commit | None:
        """The newest commit of an agent in both logs, if an undo reaches it. If it does not, the undo takes back no
        older one instead."""
        newest: Commit | None = None
        is_reached = False
        for agent in (name, TRANSACTIONS):
            log = [commit for commit in self.everything if commit.agent == agent]
            cancelled = {commit.target for commit in log if isinstance(commit, Undo)}
            reached = True
            for back, commit in enumerate(reversed(log), 1):
                reached = reached and back <= WINDOW and not isinstance(commit, opslog.Seal)
                if commit.author == name and commit.records and commit.clock not in cancelled:
                    if newest is None or commit.clock > newest.clock:
                        newest, is_reached = commit, reached
                    break
        return newest if is_reached else None


class AgentsAndSessionsOnObjects(AgentsAndSessions):
    """The same where each append is a segment of its own."""

    scheme = "bucket"


class AgentsElsewhere(Agents):
    """The same through a server, and a network that loses, repeats and delays requests."""

    scheme = "served+lossy"
    # A remote compaction that seals a log ends its agent's session: it has to open the store again (docs/http.md).
    undo_ttl_min = 1e9


class AgentsAndSessionsElsewhere(AgentsAndSessions):
    scheme = "served+lossy"
    undo_ttl_min = AgentsElsewhere.undo_ttl_min


def for_examples(machine: type[Agents], examples: int) -> type:
    """The machine's tests with this many histories. Each is a class of its own, because settings belong to a class."""
    own: type[Agents] = type(machine.__name__, (machine,), {})
    own.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    tests: type = own.TestCase
    return tests


TestAgents = for_examples(Agents, 60)
TestAgentsOnObjects = for_examples(AgentsOnObjects, 60)
TestAgentsWithLargeSnapshots = for_examples(AgentsWithLargeSnapshots, 60)
TestAgentsAndSessions = for_examples(AgentsAndSessions, 40)
TestAgentsAndSessionsOnObjects = for_examples(AgentsAndSessionsOnObjects, 40)
TestAgentsElsewhere = for_examples(AgentsElsewhere, 3)
TestAgentsAndSessionsElsewhere = for_examples(AgentsAndSessionsElsewhere, 3)
TestAgentsForLong = pytest.mark.long(for_examples(Agents, 200))
TestAgentsOnObjectsForLong = pytest.mark.long(for_examples(AgentsOnObjects, 200))
TestAgentsWithLargeSnapshotsForLong = pytest.mark.long(for_examples(AgentsWithLargeSnapshots, 200))
TestAgentsAndSessionsForLong = pytest.mark.long(for_examples(AgentsAndSessions, 200))
TestAgentsAndSessionsOnObjectsForLong = pytest.mark.long(for_examples(AgentsAndSessionsOnObjects, 200))
TestAgentsElsewhereForLong = pytest.mark.slow(for_examples(AgentsElsewhere, 100))
TestAgentsAndSessionsElsewhereForLong = pytest.mark.slow(for_examples(AgentsAndSessionsElsewhere, 100))
