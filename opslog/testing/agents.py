"""What simulated processes do with a store that they have open: agents that write and archive, readers.

Each is a callable object that is given a `Process`; when that dies, a new process runs the same object, which knows how
much is left to do. They catch the errors that a program is meant to catch, and no others.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from opslog.aio import Opening
from opslog.errors import (
    HistoryGoneError,
    LockedError,
    MissingFileError,
    NotFoundError,
    OpslogError,
    ReopenError,
    RetryError,
    WriteFailedError,
)
from opslog.format.manifest import Settings
from opslog.store import Store
from opslog.testing import invariants
from opslog.testing.invariants import State
from opslog.testing.ledger import Handout, Ledger
from opslog.testing.simulation import Process
from opslog.testing.storages import SimulatedStorage, open_async_store, open_store

PAIRS = (("left-0", "right-0"), ("left-1", "right-1"))
"""Documents that are only ever written together."""

OPEN_TRIES_MAX = 400


class Shared:
    """What all processes of a run have in common.

    :param ids: of the documents; `periods`: what names of archives begin with.
    :param is_calm: nothing goes wrong, and nobody else uses an agent's name: no write may fail.
    """

    def __init__(
        self,
        storage: SimulatedStorage,
        settings: Settings,
        ids: Sequence[str],
        *,
        think_seconds: float = 1.0,
        nap_seconds: float = 0.0,
        periods: Sequence[str] = ("p",),
        compact_after: int | None = None,
        is_calm: bool = False,
    ) -> None:
        self.storage = storage
        self.settings = settings
        self.ids = list(ids)
        self.periods = periods
        self.ledger = Ledger()
        self.think_seconds = think_seconds
        self.nap_seconds = nap_seconds
        self.compact_after = compact_after
        self._is_calm = is_calm
        self.left_open: dict[Process, Store[Any]] = {}
        """Stores that nobody closed, by who opened them: those still have to show the right thing after a refresh."""
        self._tokens = 0

    def close_all(self) -> None:
        """Give back the names of those who left their stores open."""
        while self.left_open:
            self.left_open.popitem()[1].close()

    def lose_power(self, choices: random.Random) -> None:
        """Nobody has a store open any more, and commits that were handed out may be gone, and their places taken."""
        self.left_open.clear()
        for handout in self.ledger.handouts:
            handout.until = None

    def process_died(self, process: Process) -> None:
        """What it had open is gone."""
        self.left_open.pop(process, None)

    def recover(self) -> None:
        """Nothing of this lasts."""

    def excuse(self, error: OpslogError) -> None:
        """:raises: the error, where there is nothing that it could come from."""
        if self._is_calm and isinstance(error, (ReopenError, WriteFailedError)):
            raise error

    def token(self) -> int:
        """A number that was never given before."""
        self._tokens += 1
        return self._tokens

    def open(self, process: Process, **options: Any) -> Store[Any]:
        options.setdefault("compact_after", self.compact_after)
        return open_store(self.storage, process, settings=self.settings, **options)

    def open_async(self, process: Process, **options: Any) -> Opening[Any]:
        options.setdefault("compact_after", self.compact_after)
        return open_async_store(self.storage, process, settings=self.settings, **options)

    def flush(self, store: Store[Any]) -> None:
        waiting = self.ledger.buffered(store)
        store.flush()
        self.ledger.flushed(waiting)

    def close(self, store: Store[Any]) -> None:
        """Close a store that nobody writes to any more."""
        store.close()
        self.ledger.flushed(self.ledger.buffered(store))

    def think(self, process: Process, times: float = 1.0) -> None:
        """Do nothing for a while: so many times what a process thinks between two calls, and now and then a nap."""
        process.sleep(process.random.expovariate(1.0 / (times * self.think_seconds)))
        if self.nap_seconds and process.random.random() < 0.05:
            process.sleep(self.nap_seconds)


def look_at_pairs(store: Store[Any], who: str) -> None:
    """What is only ever written together is seen together. Both are read from one state: a store whose snapshot was
    collected goes on to a newer state when it is read."""
    for left, right in PAIRS:
        while True:
            state = store._state
            seen = store.get(left), store.get(right)
            if store._state is state:
                break
        invariants.batches_are_atomic(*seen, who)


def view(store: Store[Any]) -> State:
    """All that a store shows."""
    return {record.id: bytes(record.data) for record in store.records()}


class Agent:
    """Writes under a name of its own until its calls are used up.

    :param weights: of the things it can do, by the names of the methods below.
    :param buffered: whether what it writes waits in memory until it flushes.
    """

    def __init__(
        self, shared: Shared, name: str, calls: int, weights: Mapping[str, float], buffered: bool = False
    ) -> None:
        self.shared = shared
        self.name = name
        self.left = calls
        self.weights = {**weights, "flush": 3.0} if buffered else weights
        self.durability = "buffered" if buffered else "fsync"
        self._tries = 0

    def __call__(self, process: Process) -> None:
        while self.left > 0 and self._tries < OPEN_TRIES_MAX:
            try:
                store = self.shared.open(process, agent=self.name, durability=self.durability)
                try:
                    self._tries = 0
                    self.use(process, store)
                    if not self.left and not store._closed and process.random.random() < 0.5:
                        self.shared.flush(store)
                        self.shared.left_open[process] = store
                        return
                    self.shared.close(store)
                except BaseException:
                    store.close()
                    raise
            except (RetryError, ReopenError) as error:
                self.shared.excuse(error)
                self._tries += 1
                process.sleep(0.5)

    def use(self, process: Process, store: Store[Any]) -> None:
        """Work with an open store for a while."""
        session = Session(self, process, store)
        for _ in range(process.random.randint(1, 25)):
            if self.left <= 0:
                return
            self.left -= 1
            self.shared.think(process)
            (doing,) = process.random.choices(list(self.weights), list(self.weights.values()))
            clock = store._clock.value
            try:
                getattr(session, doing)()
            except MissingFileError:
                raise  # no user of a store is to meet that
            except NotFoundError:
                pass  # somebody else deleted it
            except RetryError as error:
                self.shared.excuse(error)
                self.shared.think(process)
            if store._clock.value < clock:
                invariants.violated("clocks_never_go_back", f"{self.name}'s went from {clock} to {store._clock.value}")


class Session:
    """One open store of an agent, and what it can do with it."""

    def __init__(self, agent: Agent, process: Process, store: Store[Any], handout: Handout | None = None) -> None:
        self.agent = agent
        self.shared = agent.shared
        self.process = process
        self.random = process.random
        self.store = store
        self.handout = handout or self.shared.ledger.opened(store, process.name)

    def attempt(self, *content: Any) -> Any:
        self.process.note(f"{content[0]} {content[1] if len(content) > 1 else ''}")
        return self.shared.ledger.attempt(self.store, self.agent.name, content)

    def document(self) -> tuple[dict[str, Any], bytes]:
        """A document like no other one, and its text."""
        token = self.shared.token()
        padding = "x" * self.random.choice([0, 0, 0, 40, 400])
        return {"n": token, "pad": padding}, b'{"n":%d,"pad":"%b"}' % (token, padding.encode())

    def set(self) -> None:
        id = self.random.choice(self.shared.ids)
        document, text = self.document()
        with self.attempt("set", (id, text)):
            self.store.set(id, document)
        invariants.own_writes_are_read({id: self.store.get(id)}, {id: document}, self.agent.name)

    def delete(self) -> None:
        id = self.random.choice(self.shared.ids)
        with self.attempt("delete", id):
            self.store.delete(id)
        invariants.own_writes_are_read({id: self.store.get(id)}, {id: None}, self.agent.name)

    def batch(self) -> None:
        left, right = self.random.choice(PAIRS)
        if self.random.random() < 0.2 and left in self.store:
            with self.attempt("batch", (left, None), (right, None)), self.store.batch():
                self.store.delete(left)
                self.store.delete(right)
            return
        document, text = self.document()
        with self.attempt("batch", (left, text), (right, text)), self.store.batch():
            self.store.set(left, document)
            self.store.set(right, document)
        invariants.own_writes_are_read({left: self.store.get(left)}, {left: document}, self.agent.name)

    def undo(self) -> None:
        with self.attempt("undo", None) as attempt:
            if not self.store.undo():
                attempt.outcome = "nothing"

    def refresh(self) -> None:
        self.handout.take("", self.store.refresh())
        invariants.commits_are_handed_out_once(self.handout)
        look_at_pairs(self.store, self.agent.name)

    def flush(self) -> None:
        self.shared.flush(self.store)

    def compact(self) -> None:
        try:
            self.store.compact(full=self.random.random() < 0.3)
        except LockedError:
            return

    def archive(self) -> None:
        # Each once, so that what was archived can be told by its period; within the length of a name.
        period = f"{self.random.choice(self.shared.periods)[:100]}-{self.shared.token()}"
        ids = {id for id in self.shared.ids if self.random.random() < 0.3}
        by_token = {document["n"] for id, document in self.store.items() if id in ids}

        def is_old(document: dict[str, Any]) -> bool:
            if self.random.random() < 0.1:
                self.process.sleep(0.01)  # it takes its time, as one that looks something up does
            return document["n"] in by_token

        with self.attempt("archive", period) as attempt:
            if not self.store.archive(is_old, period):
                attempt.outcome = "nothing"


class Reader:
    """Opens the store for reading, refreshes for a while, and looks into the past."""

    def __init__(self, shared: Shared, name: str, calls: int) -> None:
        self.shared = shared
        self.name = name
        self.left = calls
        self._tries = 0

    def __call__(self, process: Process) -> None:
        while self.left > 0 and self._tries < OPEN_TRIES_MAX:
            try:
                store = self.shared.open(process, read_only=True)
                self._session(process, store)
                if not self.left:
                    self.shared.left_open[process] = store
                    return
            except MissingFileError:
                raise
            except (RetryError, ReopenError, NotFoundError):
                self._tries += 1
                process.sleep(0.5)

    def _session(self, process: Process, store: Store[Any]) -> None:
        handout = self.shared.ledger.opened(store, self.name)
        for _ in range(process.random.randint(1, 12)):
            if self.left <= 0:
                return
            self.left -= 1
            self.shared.think(process)
            clock = store._clock.value
            handout.take("", store.refresh())
            invariants.commits_are_handed_out_once(handout)
            look_at_pairs(store, self.name)
            if store._clock.value < clock:
                invariants.violated("clocks_never_go_back", f"{self.name}'s went from {clock} to {store._clock.value}")
            if process.random.random() < 0.1:
                self._look_back(process, store)

    def _look_back(self, process: Process, store: Store[Any]) -> None:
        """Only that it can be done, or is refused in the right way: what it shows is checked when all is quiet."""
        clock = process.random.randint(0, store._clock.value)
        try:
            with self.shared.open(process, as_of=clock) as past:
                look_at_pairs(past, f"{self.name} as of {clock}")
            list(store.ops(since=clock))
            store.history(process.random.choice(self.shared.ids))
        except HistoryGoneError:
            pass
