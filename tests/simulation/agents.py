"""Programs that open a store: agents that write and archive, readers.

Each is a callable object that takes a `Process`. When that process dies, a new process runs the same object, which
knows how much is left to do. The programs catch the errors that a program is meant to catch, and no others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from opslog.errors import (
    ClosedError,
    HistoryGoneError,
    InvalidNameError,
    MissingFileError,
    NotFoundError,
    ReopenError,
    RetryError,
)
from opslog.options import Log
from opslog.store import Store, replica_of
from opslog.testing import invariants
from opslog.testing.signals import Interrupt
from opslog.testing.simulation import Process
from tests.simulation import ledger_invariants
from tests.simulation.sessions import Crew, Session, check_pairs, over
from tests.simulation.shared import Shared

OPEN_TRIES_MAX = 400


class Agent:
    """Writes under a name of its own until its calls are used up.

    :param weights: the weights of its actions, by the names of `Session` methods.
    :param buffered: whether its writes wait in memory until it flushes.
    :ivar log: with "shared" it has no log of its own, and writes only transactions.
    """

    # State of one session.
    calls_max = 25

    def __init__(
        self, shared: Shared, name: str, calls: int, weights: Mapping[str, float], buffered: bool = False
    ) -> None:
        self.shared = shared
        self.name = name
        self.left = calls
        self.weights = {**weights, "flush": 3.0} if buffered else weights
        self.durability = "buffered" if buffered else "fsync"
        self.log: Log = "own"
        self.tries = 0

    def __call__(self, process: Process) -> None:
        process.is_tough = True
        while self.left > 0 and self.tries < OPEN_TRIES_MAX:
            try:
                self.run(process)
            except (Interrupt, MemoryError):
                self.tries += 1
            except (RetryError, ReopenError) as error:
                self.shared.excuse(error)
                self.tries += 1
                process.sleep(0.5)
            except InvalidNameError:
                return  # another agent has it, on a disk that ignores case

    def run(self, process: Process) -> None:
        """Open the store, work with it, and close it, or leave it open when nothing is left to do."""
        with process.signals.handled():
            store = self.shared.open(process, agent=self.name, durability=self.durability, log=self.log)
        try:
            self.tries = 0
            self.use(process, store)
            if not self.left and not replica_of(store).is_closed and process.random.random() < 0.5:
                if not replica_of(store).is_buffered or process.random.random() < 0.5:
                    self.shared.flush(store)
                self.shared.left_open[process] = store
                return
            with process.signals.handled():
                self.shared.close(store)
        except BaseException:
            self.shared.end(store)
            raise

    def crew(self, process: Process, store: Store[Any]) -> Crew:
        """The users of a store that was just opened."""
        handout = self.shared.ledger.opened(store, process.name)
        return Crew(store, handout, process.random.randint(1, self.calls_max))

    def use(self, process: Process, store: Store[Any]) -> None:
        """Work with an open store for a while."""
        crew = self.crew(process, store)
        session = Session(self.shared, self.name, process, crew)
        session.is_main = True
        over(self.work(session, crew))
        if crew.error is not None:
            raise crew.error
        if crew.was_disturbed or process.random.random() < 0.1:
            self.shared.check_memory(store, process.name)

    async def work(self, session: Session, crew: Crew) -> None:
        """The calls of one thread or task until they are used up, or the store has to be opened again."""
        while crew.left > 0 and self.left > 0 and not crew.is_over:
            crew.left -= 1
            self.left -= 1
            await session.think()
            (doing,) = session.random.choices(list(self.weights), list(self.weights.values()))
            before = replica_of(crew.store).clock.value
            async with self.forgiving(session, crew):
                await self.do(session, doing)
            after = replica_of(crew.store).clock.value
            if after < before:
                invariants.violated("clocks_never_go_back", f"{self.name}'s went from {before} to {after}")

    async def do(self, session: Session, doing: str) -> None:
        await session.do(doing)

    @asynccontextmanager
    async def forgiving(self, session: Session, crew: Crew) -> AsyncIterator[None]:
        """Around a call: lets only those errors pass that no program is meant to catch."""
        try:
            yield
        except MissingFileError:
            raise  # no user of a store is to see that
        except NotFoundError:
            pass  # somebody else deleted it
        except HistoryGoneError:
            pass  # of a watch, which then knows that it missed commits
        except (Interrupt, MemoryError):
            crew.was_disturbed = True  # and whether the call has happened is unknown
        except RetryError as error:
            self.shared.excuse(error)
            await session.think()
        except ReopenError as error:
            crew.error = crew.error or error
        except ClosedError:
            if not crew.closed:
                raise


class Reader:
    """Opens the store for reading, refreshes for a while, and reads the past."""

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
            before = replica_of(store).clock.value
            handout.take("", store.refresh())
            ledger_invariants.commits_are_handed_out_once(handout)
            check_pairs(store, self.name)
            after = replica_of(store).clock.value
            if after < before:
                invariants.violated("clocks_never_go_back", f"{self.name}'s went from {before} to {after}")
            if process.random.random() < 0.1:
                self._read_past(process, store)

    def _read_past(self, process: Process, store: Store[Any]) -> None:
        """It only checks that reading the past works, or is refused in the right way. What it shows is checked when all
        is quiet."""
        clock = process.random.randint(0, replica_of(store).clock.value)
        try:
            with self.shared.open(process, as_of=clock) as past:
                check_pairs(past, f"{self.name} as of {clock}")
            list(store.ops(since=clock))
            store.history(process.random.choice(self.shared.ids))
        except HistoryGoneError:
            pass
