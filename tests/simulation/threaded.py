"""Agents of several threads that share one open store, and do at once whatever one thread may do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from opslog.aio import AsyncStore
from opslog.store import Store, replica_of
from opslog.testing.simulation import Process
from opslog.testing.threads import Threading
from tests.simulation import ledger_invariants
from tests.simulation.agents import Agent
from tests.simulation.sessions import Crew, Session, SharedSession, over
from tests.simulation.shared import Shared

# The maximum time between two checks for commits. No other sleep in a store has the same length.
_POLL_SECONDS = 0.7


class _Called(Exception):
    """A watching thread is called away in its sleep."""


class SharingAgent(Agent):
    """An agent with `users` threads or tasks.

    :param leaving: the probability at each commit that the watching one leaves its loop, and starts another one.
    """

    calls_max = 40

    def __init__(
        self,
        shared: Shared,
        name: str,
        calls: int,
        weights: Mapping[str, float],
        buffered: bool = False,
        *,
        users: int,
        leaving: float,
    ) -> None:
        super().__init__(shared, name, calls, {**weights, "answer": 6.0, "iterate": 2.0, "close": 0.05}, buffered)
        self.users = users
        self.leaving = leaving
        self.poll_seconds = _POLL_SECONDS + shared.nap_seconds / 100

    def session(self, process: Process, crew: Crew, name: str, calls: AsyncStore[Any] | None = None) -> SharedSession:
        return SharedSession(self.shared, self.name, process, crew, name=name, calls=calls)

    async def watch(self, session: Session, crew: Crew) -> None:
        """Read new commits, in one loop after the other."""
        while not (crew.ending or crew.is_over or replica_of(crew.store).is_closed):
            async with self.forgiving(session, crew):
                async for commit in session.calls.watch(self.poll_seconds):
                    crew.handout.take("watch", [commit])
                    ledger_invariants.commits_are_handed_out_once(crew.handout)
                    if session.random.random() < self.leaving:
                        break

    def settle(self, crew: Crew) -> None:
        """All users have finished with the store.

        :raises OpslogError: the store has to be opened again.
        """
        if crew.error is not None:
            raise crew.error
        if crew.closed:
            self.shared.ledger.flushed(crew.buffered)
        else:
            self.shared.ledger.catch_up(crew.store)


class ThreadedAgent(SharingAgent):
    """An agent with several threads, including the program's main thread."""

    def use(self, process: Process, store: Store[Any]) -> None:
        crew = self.crew(process, store)
        watches = process.random.random() < 0.5

        def sleep(seconds: float) -> None:
            process.sleep(seconds)
            if crew.ending and seconds == self.poll_seconds:
                raise _Called

        replica_of(store).environment = replace(process.environment, sleep=sleep)
        sessions = [self.session(process, crew, f"t{number}") for number in range(self.users)]
        sessions[0].is_main = True
        working = [_started(process, session.name, partial(self._work, session, crew)) for session in sessions[1:]]
        watcher = self.session(process, crew, "watch")
        watching = [_started(process, "watch", partial(self._watch, watcher, crew))] if watches else []
        self._work(sessions[0], crew)
        for thread in working:
            thread.join()
        crew.ending = True
        for thread in watching:
            thread.join()
        self.settle(crew)

    def _work(self, session: Session, crew: Crew) -> None:
        over(self.work(session, crew))

    def _watch(self, session: Session, crew: Crew) -> None:
        try:
            over(self.watch(session, crew))
        except _Called:
            return


class _NoThread:
    """In place of a thread that the system refused to start."""

    def join(self) -> None:
        """There is nothing to wait for."""


def _started(process: Process, name: str, target: Callable[[], object]) -> Any:
    thread = Threading(process.simulation).Thread(target=target, name=name)
    try:
        thread.start()
    except RuntimeError:
        return _NoThread()
    return thread
