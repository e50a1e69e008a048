"""Runs of whole stores that can be cut off: agents write, undo, compact, archive and get killed, all at once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from unittest.mock import patch
from zlib import crc32

import opslog
from opslog.backends.local.fs import FsBackend
from opslog.environment import REAL
from opslog.store import replica_of
from tests.powercut.disk import Event
from tests.powercut.recording import Killed, Recorder, Turns

Document = dict[str, object]
Store = opslog.Store[Document]

SETTINGS = opslog.Settings(undo_window=2, grace_seconds=0.0, undo_ttl_seconds=0.0)
"""Everything happens early: compactions, garbage collection, seals."""
NO_UNDO = opslog.Settings(undo_window=0, grace_seconds=0.0, undo_ttl_seconds=0.0)
"""A commit can be compacted as soon as it can be seen."""

STORE = "data/team/store"
"""The path of the store in the world. Those who open the store make all of these directories."""


class Agent:
    """One agent's sessions.

    :param kills: how likely each session is to be killed somewhere.
    """

    def __init__(self, name: str, recorder: Recorder, turns: Turns, *, seed: object, kills: float) -> None:
        self.name = name
        self._settings = random.Random(f"settings {seed}").choice([SETTINGS, NO_UNDO])
        self._recorder = recorder
        self._turns = turns
        self._rng = random.Random(f"agent {name} of {seed}")
        self._kills = kills
        self._compacts = self._rng.choice([0.1, 0.6])
        self._numbers = itertools.count(1)
        self._nonces = _nonces(f"{name} of {seed}")

    def live(self, sessions: int, actions: int) -> None:
        for _ in range(sessions):
            if self._rng.random() < self._kills:
                # Half of the kills come early, while a session opens the store.
                self._turns.doomed[self.name] = self._rng.randrange(self._rng.choice([15, 80]))
            try:
                self._session(actions)
            except opslog.AgentBusyError:
                pass  # a compaction holds the name, to seal the log
            except (Killed, opslog.ReopenError):
                if self._turns.doomed.get(self.name) != 0:
                    raise
            finally:
                self._turns.doomed.pop(self.name, None)

    def _session(self, actions: int) -> None:
        buffered = self._rng.random() < 0.4
        environment = opslog.Environment(nonce=self._nonces.__next__)
        root = self._recorder.world / STORE
        with opened(root, self.name, self._settings, buffered=buffered, environment=environment) as store:
            self._acknowledge(store)
            for _ in range(self._rng.randint(2, actions)):
                self._act(store)
                if not buffered or self._rng.random() < 0.3:
                    store.flush()
                    self._acknowledge(store)
            store.flush()
            self._acknowledge(store)

    def _acknowledge(self, store: Store) -> None:
        """Note that each commit in the agent's log was acknowledged to the agent, or read by it."""
        self._recorder.acknowledge(self.name, replica_of(store).clock.value)

    def _act(self, store: Store) -> None:
        acts = [self._set, self._set, self._set, self._delete, self._batch, self._undo, self._archive, self._refresh]
        with suppress(opslog.LockedError):
            if self._rng.random() < self._compacts:
                self._compact(store)
            else:
                self._rng.choice(acts)(store)

    def _id(self) -> str:
        return self._rng.choice([f"{self.name}-{self._rng.randrange(4)}", f"shared-{self._rng.randrange(4)}"])

    def _document(self) -> Document:
        return {"by": self.name, "number": next(self._numbers), "text": "x" * self._rng.randrange(30)}

    def _set(self, store: Store) -> None:
        store[self._id()] = self._document()

    def _delete(self, store: Store) -> None:
        with suppress(opslog.NotFoundError):
            del store[self._id()]

    def _batch(self, store: Store) -> None:
        with store.batch():
            for _ in range(3):
                store[self._id()] = self._document()

    def _undo(self, store: Store) -> None:
        store.undo()

    def _refresh(self, store: Store) -> None:
        store.refresh()

    def _compact(self, store: Store) -> None:
        store.compact(full=self._rng.random() < 0.3)

    def _archive(self, store: Store) -> None:
        chosen = store.get(self._id())
        store.archive(lambda document: document == chosen, self._rng.choice(["2026-Q3", "2026-Q4"]))


def _nonces(seed: object) -> Iterator[str]:
    """Never repeats a value, even in a run that starts from what another run left."""
    run = crc32(str(seed).encode())
    return (f"{run:08x}{number:08x}" for number in itertools.count(1))


@contextmanager
def opened(
    root: Path, agent: str, settings: opslog.Settings, *, buffered: bool = False, environment: opslog.Environment = REAL
) -> Iterator[Store]:
    """Opens a store that does nothing by itself: only `flush` and `close` write the buffer.

    :param settings: the settings of a new store.
    """
    with opslog.open(
        root,
        agent=agent,
        settings=None if any((root / "manifests").glob("*.json")) else settings,
        compact_after=None,
        durability="buffered" if buffered else "fsync",
        buffer_seconds=1e6,
        environment=environment,
    ) as store:
        try:
            yield store
        finally:
            log = replica_of(store).log
            assert log is not None
            log._flusher.close()  # a killed process does not reach this call in `close`


def play(world: Path, seed: object, *, agents: int = 3, sessions: int = 3, actions: int = 8) -> list[Event]:
    """Play a run that a seed decides, with at most so many sessions and actions of each agent, and return what happened
    to the disk. Every third session is killed somewhere."""
    turns = Turns(seed)
    recorder = Recorder(world, turns.take)
    temporary = _nonces(f"temporary {seed}")
    works: dict[str, Callable[[], None]] = {}
    for name in "abcdefgh"[:agents]:
        agent = Agent(name, recorder, turns, seed=seed, kills=0.33)
        works[name] = partial(agent.live, random.Random(f"{name} {seed}").randint(1, sessions), actions)
    defaults = {
        **(FsBackend.__init__.__kwdefaults__ or {}),
        "environment": opslog.Environment(nonce=temporary.__next__),
    }
    with patch.object(FsBackend.__init__, "__kwdefaults__", defaults), recorder.recording():
        turns.run(works)
    return recorder.events
