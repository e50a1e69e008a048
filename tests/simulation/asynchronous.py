"""Agents of several asyncio tasks that share one open store; some of their calls are cancelled while they wait.

They expect what threads expect. In addition, a cancelled call has happened or has not happened, and no commit is lost
that others should be handed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from opslog.aio import AsyncStore
from opslog.store import Store, replica_of
from opslog.testing.simulation import Process
from opslog.testing.tasks import drained, run_tasks
from tests.simulation.sessions import Session
from tests.simulation.threaded import SharingAgent


class AsyncAgent(SharingAgent):
    """An agent with several tasks. Its calls are cancelled as often as a watching loop is left."""

    def run(self, process: Process) -> None:
        run_tasks(process, self._main(process))

    async def _main(self, process: Process) -> None:
        store = await self.shared.open_async(process, agent=self.name, durability=self.durability, log=self.log)
        try:
            self.tries = 0
            await self._use(process, store)
        finally:
            await self._end(store)

    async def _end(self, store: AsyncStore[Any]) -> None:
        while True:
            try:
                return await store.close()
            except MemoryError:
                continue

    async def _use(self, process: Process, store: AsyncStore[Any]) -> None:
        inner = Store(replica_of(store))
        crew = self.crew(process, inner)
        watches = process.random.random() < 0.5
        sessions = [self.session(process, crew, f"task-{number}", store) for number in range(self.users)]
        working = [asyncio.create_task(self.work(session, crew)) for session in sessions]
        watcher = self.session(process, crew, "watch", store)
        watching = [asyncio.create_task(self.watch(watcher, crew))] if watches else []
        await asyncio.wait(working)
        crew.ending = True
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        await drained()
        for task in working:
            task.result()
        await sessions[0].elsewhere(lambda: self.settle(crew))
        waiting = self.shared.ledger.buffered(inner)
        await self._end(store)
        self.shared.ledger.flushed(waiting)

    async def do(self, session: Session, doing: str) -> None:
        task = asyncio.ensure_future(session.do(doing))
        if session.random.random() < self.leaving:
            await asyncio.sleep(session.random.expovariate(500.0))
            session.process.note("cancels", "")
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
