"""Agents of several threads that share one open store, and do to it at once whatever one thread may do.

A thread may expect less than an agent of one thread: between two of its calls the others write, undo and refresh. So
each has a document of its own, in which it must see its own writes. What it writes to any other document must outrank
what it has read of it before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from opslog.errors import (
    ClosedError,
    HistoryGoneError,
    MissingFileError,
    NotFoundError,
    OpslogError,
    ReopenError,
    RetryError,
)
from opslog.store import Store
from opslog.testing import invariants
from opslog.testing.agents import PAIRS, Agent, Session, Shared
from opslog.testing.ledger import Attempt, Handout
from opslog.testing.simulation import Process
from opslog.testing.threads import Threading

_POLL_SECONDS = 0.7
"""How often at least a thread that watches looks for commits; no other sleep in a store takes just as long."""


class _Called(Exception):
    """A thread that watches is called away, in its sleep."""


@dataclass
class Crew:
    """The threads that use one open store.

    :ivar left: how many calls they still make.
    :ivar error: the first one after which the store has to be opened again.
    :ivar closed: one of them has closed the store, and so written what was `buffered`, unless there was an error.
    :ivar ending: the one that watches is to stop.
    """

    store: Store[Any]
    handout: Handout
    left: int
    error: OpslogError | None = None
    closed: bool = False
    buffered: list[Attempt] = field(default_factory=list)
    ending: bool = False

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.closed


class ThreadedAgent(Agent):
    """:param threads: how many use its store at once.

    :param leaving: how likely the one that watches leaves its loop, and begins another one, at each commit.
    """

    def __init__(
        self,
        shared: Shared,
        name: str,
        calls: int,
        weights: Mapping[str, float],
        buffered: bool = False,
        *,
        threads: int,
        leaving: float,
    ) -> None:
        super().__init__(shared, name, calls, {**weights, "answer": 6.0, "iterate": 2.0, "close": 0.05}, buffered)
        self._threads = threads
        self._leaving = leaving
        self._poll_seconds = _POLL_SECONDS + shared.nap_seconds / 100

    def use(self, process: Process, store: Store[Any]) -> None:
        crew = Crew(store, self.shared.ledger.opened(store, process.name), process.random.randint(5, 40))
        watches = process.random.random() < 0.5

        def sleep(seconds: float) -> None:
            process.sleep(seconds)
            if crew.ending and seconds == self._poll_seconds:
                raise _Called

        store._environment = replace(process.environment, sleep=sleep)
        working = [
            Threading(process.simulation).Thread(
                target=partial(self._work, process, crew, f"t{number}"), name=f"t{number}"
            )
            for number in range(1, self._threads)
        ]
        watching = [
            Threading(process.simulation).Thread(target=partial(self._watch, process, crew), name="watch")
        ] * watches
        for thread in working + watching:
            thread.start()
        self._work(process, crew, "t0")
        for thread in working:
            thread.join()
        crew.ending = True
        for thread in watching:
            thread.join()
        if crew.error is not None:
            raise crew.error
        if crew.closed:
            self.shared.ledger.flushed(crew.buffered)
        else:
            self.shared.ledger.catch_up(store)

    def _work(self, process: Process, crew: Crew, name: str) -> None:
        session = ThreadSession(self, process, crew, name)
        while crew.left > 0 and self.left > 0 and not crew.is_over:
            crew.left -= 1
            self.left -= 1
            self.shared.think(process)
            (doing,) = process.random.choices(list(self.weights), list(self.weights.values()))
            try:
                getattr(session, doing)()
            except MissingFileError:
                raise  # no user of a store is to meet that
            except NotFoundError:
                pass  # somebody else deleted it
            except RetryError as error:
                self.shared.excuse(error)
                self.shared.think(process)
            except ReopenError as error:
                crew.error = crew.error or error
            except ClosedError:
                if not crew.closed:
                    raise

    def _watch(self, process: Process, crew: Crew) -> None:
        while not crew.ending and not crew.is_over:
            try:
                for commit in crew.store.watch(self._poll_seconds):
                    crew.handout.take("watch", [commit])
                    invariants.commits_are_handed_out_once(crew.handout)
                    if process.random.random() < self._leaving:
                        break
            except _Called:
                return
            except MissingFileError:
                raise
            except HistoryGoneError:
                pass  # and it knows
            except RetryError:
                self.shared.think(process)
            except ReopenError as error:
                crew.error = crew.error or error
            except ClosedError:
                if not crew.closed:
                    raise


class ThreadSession(Session):
    """What one of the threads does."""

    def __init__(self, agent: Agent, process: Process, crew: Crew, name: str) -> None:
        super().__init__(agent, process, crew.store, crew.handout)
        self.crew = crew
        self.name = name
        self.own = f"own-{process.name}-{name}"

    def set(self) -> None:
        """Write what nobody else writes, and see it."""
        document, text = self.document()
        with self.attempt("set", (self.own, text)) as attempt:
            self.store.set(self.own, document)
        seen = self.store.get(self.own)
        if not self.may_be_undone(attempt):
            invariants.own_writes_are_read({self.own: seen}, {self.own: document}, self.name)

    def delete(self) -> None:
        with self.attempt("delete", self.own) as attempt:
            self.store.delete(self.own)
        seen = self.store.get(self.own)
        if not self.may_be_undone(attempt):
            invariants.own_writes_are_read({self.own: seen}, {self.own: None}, self.name)

    def answer(self) -> None:
        """Write, or delete, what others write, after having read it."""
        id = self.random.choice(self.shared.ids)
        read = self.store._record(id)
        if self.random.random() < 0.2:
            with self.attempt("delete", id) as attempt:
                self.store.delete(id)
        else:
            document, text = self.document()
            with self.attempt("set", (id, text)) as attempt:
                self.store.set(id, document)
        if read is not None:
            invariants.answers_come_after_what_they_answer(read, attempt)

    def batch(self) -> None:
        left, right = self.random.choice(PAIRS)
        document, text = self.document()
        with self.attempt("batch", (left, text), (right, text)), self.store.batch():
            self.store.set(left, document)
            if self.random.random() < 0.3:
                self.process.sleep(0.01)
            self.store.set(right, document)

    def refresh(self) -> None:
        self.handout.take(self.name, self.store.refresh())
        invariants.commits_are_handed_out_once(self.handout)

    def iterate(self) -> None:
        """Read all documents, slowly: as they were when that began."""
        seen = {}
        for id, document in self.store.items():
            seen[id] = document
            if self.random.random() < 0.2:
                self.process.sleep(0.01)
        for left, right in PAIRS:
            invariants.batches_are_atomic(seen.get(left), seen.get(right), self.name)

    def close(self) -> None:
        waiting = self.shared.ledger.buffered(self.store)
        self.crew.closed = True
        self.store.close()
        self.crew.buffered = waiting

    def may_be_undone(self, attempt: Attempt) -> bool:
        """Whether an undo of another thread, or of another process under this name, may have cancelled what this call
        wrote."""
        return any(
            other.store is not self.store or other.clock > attempt.clock or other.outcome == "begun"
            for other in self.shared.ledger.attempts
            if other.content[0] == "undo" and other.agent == self.agent.name
        )
