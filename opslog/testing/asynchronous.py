"""Agents of several asyncio tasks that share one open store; some of their calls are cancelled while they wait.

They expect what the threads of `opslog.testing.threaded` expect, and one thing more: a cancelled call has happened or
has not, and loses nothing that others are to be handed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from opslog.aio import AsyncStore
from opslog.errors import HistoryGoneError, LockedError, MissingFileError, NotFoundError, ReopenError, RetryError
from opslog.testing import invariants
from opslog.testing.agents import OPEN_TRIES_MAX, PAIRS, Agent, Shared
from opslog.testing.ledger import Attempt
from opslog.testing.simulation import Process
from opslog.testing.tasks import drained, run_tasks
from opslog.testing.threaded import Crew, ThreadSession

WEIGHTS = {"answer": 6.0, "iterate": 2.0}


class AsyncAgent(Agent):
    """:param tasks: how many use its store at once.

    :param leaving: how likely a call is cancelled, and the loop of the one that watches is left, at each commit.
    """

    def __init__(
        self,
        shared: Shared,
        name: str,
        calls: int,
        weights: Mapping[str, float],
        buffered: bool = False,
        *,
        tasks: int,
        leaving: float,
    ) -> None:
        super().__init__(shared, name, calls, {**weights, **WEIGHTS}, buffered)
        self._tasks = tasks
        self._leaving = leaving

    def __call__(self, process: Process) -> None:
        while self.left > 0 and self._tries < OPEN_TRIES_MAX:
            try:
                run_tasks(process, self._main(process))
            except (RetryError, ReopenError) as error:
                self.shared.excuse(error)
                self._tries += 1
                process.sleep(0.5)

    async def _main(self, process: Process) -> None:
        async with self.shared.open_async(process, agent=self.name, durability=self.durability) as store:
            self._tries = 0
            inner = store._store
            crew = Crew(inner, self.shared.ledger.opened(inner, process.name), process.random.randint(5, 40))
            working = [
                asyncio.create_task(self._work(process, crew, store, f"task-{number}")) for number in range(self._tasks)
            ]
            watching = [asyncio.create_task(self._watch(process, crew, store))] * (process.random.random() < 0.5)
            await asyncio.wait(working)
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await drained()
            for task in working:
                task.result()
            if crew.error is not None:
                raise crew.error
            await asyncio.to_thread(self.shared.ledger.catch_up, inner)
            waiting = self.shared.ledger.buffered(inner)
            await store.close()
            self.shared.ledger.flushed(waiting)

    async def _work(self, process: Process, crew: Crew, store: AsyncStore[Any], name: str) -> None:
        session = _TaskSession(self, process, crew, name, store)
        while crew.left > 0 and self.left > 0 and not crew.is_over:
            crew.left -= 1
            self.left -= 1
            await asyncio.sleep(process.random.expovariate(1.0 / self.shared.think_seconds))
            (doing,) = process.random.choices(list(self.weights), list(self.weights.values()))
            try:
                await self._perhaps_cancelled(process, getattr(session, f"do_{doing}"))
            except MissingFileError:
                raise  # no user of a store is to meet that
            except (NotFoundError, LockedError):
                pass  # somebody else deleted it, or compacts
            except RetryError as error:
                self.shared.excuse(error)
            except ReopenError as error:
                crew.error = crew.error or error

    async def _perhaps_cancelled(self, process: Process, call: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(call())
        if process.random.random() < self._leaving:
            await asyncio.sleep(process.random.expovariate(500.0))
            process.note("cancels", "")
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _watch(self, process: Process, crew: Crew, store: AsyncStore[Any]) -> None:
        while not crew.is_over and not crew.store._closed:
            try:
                async for commit in store.watch(0.5 + self.shared.nap_seconds / 100):
                    crew.handout.take("watch", [commit])
                    invariants.commits_are_handed_out_once(crew.handout)
                    if process.random.random() < self._leaving:
                        break
            except MissingFileError:
                raise
            except HistoryGoneError:
                pass  # and it knows
            except RetryError:
                await asyncio.sleep(self.shared.think_seconds)
            except ReopenError as error:
                crew.error = crew.error or error


class _TaskSession(ThreadSession):
    """What one of the tasks does."""

    def __init__(self, agent: Agent, process: Process, crew: Crew, name: str, store: AsyncStore[Any]) -> None:
        super().__init__(agent, process, crew, name)
        self.asynchronous = store

    async def do_set(self) -> None:
        document, text = self.document()
        with self.attempt("set", (self.own, text)) as attempt:
            await self.asynchronous.set(self.own, document)
        await self._check_own(attempt, document)

    async def do_delete(self) -> None:
        with self.attempt("delete", self.own) as attempt:
            await self.asynchronous.delete(self.own)
        await self._check_own(attempt, None)

    async def do_answer(self) -> None:
        id = self.random.choice(self.shared.ids)
        read = await asyncio.to_thread(self.store._record, id)
        document, text = self.document()
        with self.attempt("set", (id, text)) as attempt:
            await self.asynchronous.set(id, document)
        if read is not None:
            invariants.answers_come_after_what_they_answer(read, attempt)

    async def do_batch(self) -> None:
        left, right = self.random.choice(PAIRS)
        document, text = self.document()
        with self.attempt("batch", (left, text), (right, text)):
            async with self.asynchronous.batch() as batch:
                await batch.set(left, document)
                await asyncio.sleep(self.random.choice([0.0, 0.01]))
                await batch.set(right, document)

    async def do_undo(self) -> None:
        with self.attempt("undo", None) as attempt:
            if not await self.asynchronous.undo():
                attempt.outcome = "nothing"

    async def do_refresh(self) -> None:
        self.handout.take(self.name, await self.asynchronous.refresh())
        invariants.commits_are_handed_out_once(self.handout)

    async def do_iterate(self) -> None:
        seen = {id: document async for id, document in self.asynchronous.items()}
        for left, right in PAIRS:
            invariants.batches_are_atomic(seen.get(left), seen.get(right), self.name)

    async def do_flush(self) -> None:
        waiting = self.shared.ledger.buffered(self.store)
        await self.asynchronous.flush()
        self.shared.ledger.flushed(waiting)

    async def do_compact(self) -> None:
        await self.asynchronous.compact(full=self.random.random() < 0.3)

    async def do_archive(self) -> None:
        await asyncio.to_thread(self.archive)

    async def _check_own(self, attempt: Attempt, expected: dict[str, Any] | None) -> None:
        seen = await self.asynchronous.get(self.own)
        if not self.may_be_undone(attempt) and not self._is_overtaken(attempt):
            invariants.own_writes_are_read({self.own: seen}, {self.own: expected}, self.name)

    def _is_overtaken(self, attempt: Attempt) -> bool:
        """Whether a call of this task that was cancelled has written after all, and later."""
        return any(
            other.outcome == "begun" and other.clock > attempt.clock and other.agent == self.agent.name
            for other in self.shared.ledger.attempts
        )
