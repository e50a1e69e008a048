"""What agents do with an open store, each call written once: for a program of one thread, for one of several threads,
and for tasks of asyncio.

A session calls the store through `Calls`. For threads `Direct` implements it, for tasks `opslog.aio.AsyncStore`. A call
of `Direct` never waits for an event loop, so a thread runs it to its end with `over`.

A user that shares a store may expect less than one that has it alone, because the others write, undo and refresh
between its calls. So each user has a document of its own, in which it must see its own writes. Its write to any other
document must outrank what it has read of that document before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from opslog.aio import AsyncStore
from opslog.concurrency.pool import in_thread
from opslog.errors import LockedError, MissingFileError, OpslogError, ReopenError, RetryError
from opslog.format.commits import Commit, Record, Set
from opslog.format.layout import TRANSACTIONS
from opslog.replica.state import State
from opslog.replica.terms import ATTEMPTS, NO_CONDITION, Condition, Never
from opslog.replica.transaction import Transaction
from opslog.store import Store, replica_of
from opslog.testing import invariants
from opslog.testing.simulation import Process
from tests.simulation import ledger_invariants, transactions
from tests.simulation.ledger import Attempt, Handout
from tests.simulation.shared import Shared
from tests.simulation.transaction_invariants import ACCOUNTS, TASKS, check_views_of_transactions

T = TypeVar("T")

# Documents that are only written together.
PAIRS = (("left-0", "right-0"), ("left-1", "right-1"))

# What a signal handler may do with the store that its thread is in.
_HANDLED = ("set", "batch", "undo", "refresh", "flush", "read")
_HANDLED_BY_TRANSACTIONS = (*_HANDLED, "create", "modify")


class Calls(Protocol):
    """A store as tasks have it; see `opslog.aio.AsyncStore`."""

    async def get(self, id: str) -> Any: ...
    async def set(self, id: str, document: Any, *, if_stamp: Condition | Never = ...) -> None: ...
    async def delete(self, id: str, *, if_stamp: Condition | Never = ...) -> None: ...
    async def record(self, id: str) -> Set | None: ...
    async def create(self, id: str, document: Any) -> None: ...
    async def modify(self, id: str, function: Callable[[Any], Any]) -> Any: ...
    async def transact(self, function: Callable[[Transaction[Any]], T], *, attempts: int = ...) -> T: ...
    def transaction(self) -> AbstractAsyncContextManager[Transaction[Any]]: ...
    async def undo(self) -> bool: ...
    async def refresh(self) -> list[Commit]: ...
    async def flush(self) -> None: ...
    async def compact(self, *, full: bool) -> Any: ...
    async def close(self) -> None: ...
    def items(self) -> AsyncIterator[tuple[str, Any]]: ...
    def watch(self, poll_seconds: float) -> AsyncIterator[Commit]: ...
    def batch(self) -> AbstractAsyncContextManager[Any]: ...


class Direct:
    """A store of a program without an event loop. No call waits for a loop."""

    def __init__(self, store: Store[Any]) -> None:
        self._store = store

    async def get(self, id: str) -> Any:
        return self._store.get(id)

    async def set(self, id: str, document: Any, *, if_stamp: Condition | Never = NO_CONDITION) -> None:
        self._store.set(id, document, if_stamp=if_stamp)

    async def delete(self, id: str, *, if_stamp: Condition | Never = NO_CONDITION) -> None:
        self._store.delete(id, if_stamp=if_stamp)

    async def record(self, id: str) -> Set | None:
        return self._store.record(id)

    async def create(self, id: str, document: Any) -> None:
        self._store.create(id, document)

    async def modify(self, id: str, function: Callable[[Any], Any]) -> Any:
        return self._store.modify(id, function)

    async def transact(self, function: Callable[[Transaction[Any]], T], *, attempts: int = ATTEMPTS) -> T:
        return self._store.transact(function, attempts=attempts)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction[Any]]:
        with self._store.transaction() as transaction:
            yield transaction

    async def undo(self) -> bool:
        return self._store.undo()

    async def refresh(self) -> list[Commit]:
        return self._store.refresh()

    async def flush(self) -> None:
        self._store.flush()

    async def compact(self, *, full: bool) -> Any:
        return self._store.compact(full=full)

    async def close(self) -> None:
        self._store.close()

    async def items(self) -> AsyncIterator[tuple[str, Any]]:
        for item in self._store.items():
            yield item

    async def watch(self, poll_seconds: float) -> AsyncIterator[Commit]:
        for commit in self._store.watch(poll_seconds):
            yield commit

    @asynccontextmanager
    async def batch(self) -> AsyncIterator[Direct]:
        with self._store.batch():
            yield self


def over(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call that never waits for an event loop."""
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits for an event loop, and there is none")


@dataclass
class Crew:
    """The threads or tasks that use one open store, at least one.

    :ivar left: how many calls they will still make.
    :ivar error: the first error after which the store has to be opened again.
    :ivar closed: one of them has closed the store. Unless there was an error, this has written what was `buffered`.
    :ivar ending: the watching one is to stop.
    :ivar was_disturbed: an exception from outside came into one of the calls.
    """

    store: Store[Any]
    handout: Handout
    left: int
    error: OpslogError | None = None
    closed: bool = False
    buffered: list[Attempt] = field(default_factory=list)
    ending: bool = False
    was_disturbed: bool = False

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.closed


class Session:
    """What one thread or task does with a store that nobody shares with it.

    :param agent: the agent under whose name the store is open.
    :param name: the name of the thread or task; "" for the only user of a store.
    :param calls: the store of a task; None for a thread, which calls the store directly.
    """

    def __init__(
        self,
        shared: Shared,
        agent: str,
        process: Process,
        crew: Crew,
        *,
        name: str = "",
        calls: AsyncStore[Any] | None = None,
    ) -> None:
        self.shared = shared
        self.agent = agent
        self.process = process
        self.random = process.random
        self.crew = crew
        self.store = crew.store
        self.handout = crew.handout
        self.name = name
        self.calls: Calls = Direct(crew.store) if calls is None else calls
        self.has_loop = calls is not None
        # Whether signals come to this thread.
        self.is_main = False
        # How many times a handler has used the store: in total, and before the call under way.
        self._handled = self._handled_before = 0

    # -- waiting

    async def sleep(self, seconds: float) -> None:
        if self.has_loop:
            await asyncio.sleep(seconds)
        else:
            self.process.sleep(seconds)

    async def think(self) -> None:
        """Do nothing for a while."""
        await self.sleep(self.shared.thinking(self.process))

    async def elsewhere(self, call: Callable[[], T]) -> T:
        """The result of a call that must not block an event loop."""
        return await in_thread(call) if self.has_loop else call()

    # -- calls

    async def do(self, doing: str) -> None:
        """Make one call, by its name."""
        call = partial(transactions.CALLS[doing], self) if doing in transactions.CALLS else getattr(self, doing)
        if not self.is_main:
            await call()
            return
        self._handled_before = self._handled
        with self.process.signals.handled(self.handle):
            await call()

    def attempt(self, *content: Any) -> Any:
        self.process.note(f"{content[0]} {content[1] if len(content) > 1 else ''}")
        return self.shared.ledger.attempt(self.store, self.agent, content)

    def document(self) -> tuple[dict[str, Any], bytes]:
        """A unique document, and its text."""
        token = self.shared.token()
        padding = "x" * self.random.choice([0, 0, 0, 40, 400])
        return {"n": token, "pad": padding}, b'{"n":%d,"pad":"%b"}' % (token, padding.encode())

    async def set(self) -> None:
        id = self.random.choice(self.shared.ids)
        document, text = self.document()
        with self.attempt("set", (id, text)) as attempt:
            await self.calls.set(id, document)
        await self.check_own(attempt, id, document)

    async def delete(self) -> None:
        id = self.random.choice(self.shared.ids)
        with self.attempt("delete", id) as attempt:
            await self.calls.delete(id)
        await self.check_own(attempt, id, None)

    async def batch(self) -> None:
        left, right = self.random.choice(PAIRS)
        if self.random.random() < 0.2 and await self.calls.get(left) is not None:
            with self.attempt("batch", (left, None), (right, None)):
                async with self.calls.batch() as batch:
                    await batch.delete(left)
                    await batch.delete(right)
            return
        document, text = self.document()
        with self.attempt("batch", (left, text), (right, text)) as attempt:
            async with self.calls.batch() as batch:
                await batch.set(left, document)
                await self.within_batch()
                await batch.set(right, document)
        await self.check_own(attempt, left, document)

    async def within_batch(self) -> None:
        """Something to do between two documents of a batch."""

    async def undo(self) -> None:
        log = replica_of(self.store).log
        is_broken = log is not None and log._broken is not None
        with self.attempt("undo", None) as attempt:
            if not await self.calls.undo():
                attempt.outcome = "nothing"
                ledger_invariants.nothing_is_left_to_undo(is_broken, self.name or self.agent)

    async def refresh(self) -> None:
        self.handout.take(self.name, await self.calls.refresh())
        ledger_invariants.commits_are_handed_out_once(self.handout)
        check_pairs(self.store, self.agent)

    async def flush(self) -> None:
        waiting = self.shared.ledger.buffered(self.store)
        await self.calls.flush()
        self.shared.ledger.flushed(waiting)

    async def compact(self) -> None:
        try:
            await self.calls.compact(full=self.random.random() < 0.3)
        except LockedError:
            return

    async def archive(self) -> None:
        await self.elsewhere(self._archive)

    def _archive(self) -> None:
        # Each period once, so that its name shows what was archived. A name must not be too long.
        period = f"{self.random.choice(self.shared.periods)[:100]}-{self.shared.token()}"
        ids = {id for id in self.shared.ids if self.random.random() < 0.3}
        by_token = {document["n"] for id, document in self.store.items() if id in ids}

        def is_old(document: dict[str, Any]) -> bool:
            if self.random.random() < 0.1:
                self.process.sleep(0.01)  # takes time, like a program that looks up something
            return document.get("n") in by_token

        with self.attempt("archive", period) as attempt:
            if not self.store.archive(is_old, period):
                attempt.outcome = "nothing"

    async def check_own(self, attempt: Attempt, id: str, expected: dict[str, Any] | None) -> None:
        """The session sees what its call has written. (A handler may have undone it or brought something newer. So may
        this read, if the snapshot was collected.)"""
        state = replica_of(self.store).state
        seen = await self.calls.get(id)
        is_same = replica_of(self.store).state is state and self._handled == self._handled_before
        if is_same and not self.may_be_overtaken(attempt, id):
            invariants.own_writes_are_read({id: seen}, {id: expected}, self.name or self.agent)

    def may_be_overtaken(self, attempt: Attempt, id: str) -> bool:
        """Whether somebody else may already have changed what a call has written. Here nobody can."""
        return False

    # -- signals

    @property
    def is_in_batch(self) -> bool:
        """Whether this thread is inside a batch, or inside the block of a transaction."""
        batches = replica_of(self.store).batches
        return batches.current is not None or batches.transaction is not None

    def handle(self) -> None:
        """The handler of a signal that came into a call of this thread. It may use the store, which carries out its
        call or refuses it."""
        # In a batch its writes would become a part of the batch.
        handled = _HANDLED_BY_TRANSACTIONS if TRANSACTIONS in replica_of(self.store).state.cursors else _HANDLED
        doing = "read" if self.is_in_batch else self.random.choice(handled)
        self._handled += 1
        self.crew.was_disturbed = True
        self.process.note(f"its handler: {doing}")
        try:
            over(getattr(self, f"handle_{doing}")())
        except MissingFileError:
            raise
        except OpslogError as error:
            self.process.note("its handler", type(error).__name__)

    async def handle_set(self) -> None:
        id = f"signal-{self.process.name}"
        document, text = self.document()
        with self.attempt("set", (id, text)):
            self.store.set(id, document)

    async def handle_batch(self) -> None:
        left, right = f"signal-{self.process.name}-0", f"signal-{self.process.name}-1"
        document, text = self.document()
        with self.attempt("batch", (left, text), (right, text)), self.store.batch():
            self.store.set(left, document)
            self.store.set(right, document)

    async def handle_create(self) -> None:
        await transactions.create(self)

    async def handle_modify(self) -> None:
        await transactions.modify(self)

    async def handle_undo(self) -> None:
        await Session.undo(self)

    async def handle_refresh(self) -> None:
        self.handout.take("signal", self.store.refresh())
        ledger_invariants.commits_are_handed_out_once(self.handout)

    async def handle_flush(self) -> None:
        await Session.flush(self)

    async def handle_read(self) -> None:
        self.store.get(self.random.choice(self.shared.ids))
        seen = dict(self.store.items())
        for left, right in () if self.is_in_batch else PAIRS:  # in a batch it sees its own write of one
            invariants.batches_are_atomic(seen.get(left), seen.get(right), f"the handler of {self.agent}")


class SharedSession(Session):
    """The calls of one of several threads or tasks that share a store."""

    @property
    def own(self) -> str:
        """The document that nobody else writes."""
        return f"own-{self.process.name}-{self.name}"

    async def set(self) -> None:
        document, text = self.document()
        with self.attempt("set", (self.own, text)) as attempt:
            await self.calls.set(self.own, document)
        await self.check_own(attempt, self.own, document)

    async def delete(self) -> None:
        with self.attempt("delete", self.own) as attempt:
            await self.calls.delete(self.own)
        await self.check_own(attempt, self.own, None)

    async def answer(self) -> None:
        """Read a document that others write, in memory or in its history, and then write or delete it."""
        id = self.random.choice(self.shared.ids)
        read: Record | None
        if self.random.random() < 0.2:
            revisions = await self.elsewhere(lambda: self.store.history(id))
            read = revisions[-1].record if revisions else None
        else:
            read = await self.elsewhere(lambda: replica_of(self.store).record(id))
        if self.random.random() < 0.2:
            with self.attempt("delete", id) as attempt:
                await self.calls.delete(id)
        else:
            document, text = self.document()
            with self.attempt("set", (id, text)) as attempt:
                await self.calls.set(id, document)
        if read is not None:
            ledger_invariants.answers_come_after_what_they_answer(read, attempt)

    async def batch(self) -> None:
        left, right = self.random.choice(PAIRS)
        document, text = self.document()
        with self.attempt("batch", (left, text), (right, text)):
            async with self.calls.batch() as batch:
                await batch.set(left, document)
                await self.within_batch()
                await batch.set(right, document)

    async def within_batch(self) -> None:
        if self.random.random() < 0.3:
            await self.sleep(0.01)

    async def refresh(self) -> None:
        self.handout.take(self.name, await self.calls.refresh())
        ledger_invariants.commits_are_handed_out_once(self.handout)

    async def iterate(self) -> None:
        """Read all documents, slowly. They must be as they were when the read began."""
        seen = {}
        async for id, document in self.calls.items():
            seen[id] = document
            if self.random.random() < 0.2:
                await self.sleep(0.01)
        for left, right in PAIRS:
            invariants.batches_are_atomic(seen.get(left), seen.get(right), self.name)
        check_views_of_transactions(seen, self.name)

    async def close(self) -> None:
        waiting = self.shared.ledger.buffered(self.store)
        self.crew.closed = True
        try:
            await self.calls.close()
        except (RetryError, ReopenError) as error:
            self.crew.error = self.crew.error or error  # no later close says again that the buffer is not written
            raise
        self.crew.buffered = waiting

    def may_be_overtaken(self, attempt: Attempt, id: str) -> bool:
        """Whether an undo of another thread, or of another process under this name, may have cancelled what this call
        wrote. Also whether an earlier call of this user, which was cancelled or interrupted, may have written later."""

        def may_overtake(other: Attempt) -> bool:
            if other.content[0] == "undo":
                return other.store is not self.store or other.clock > attempt.clock or other.may_still_come
            return other.outcome in ("begun", "unknown") and other.clock > attempt.clock and other.writes(id)

        return any(may_overtake(other) for other in self.shared.ledger.attempts if other.agent == self.agent)


def check_pairs(store: Store[Any], who: str) -> None:
    """Documents that are only written together are seen together. All are read at one moment: between two reads, the
    handler of a signal may refresh, and if the snapshot was collected, a read moves the store to a newer state."""

    def moment() -> tuple[State, int]:
        state = replica_of(store).state
        return state, state.commits

    def read(ids: Iterable[str]) -> dict[str, Any]:
        while True:
            before = moment()
            documents = {id: document for id in ids if (document := store.get(id)) is not None}
            if moment() == before:
                return documents

    for left, right in PAIRS:
        seen = read((left, right))
        invariants.batches_are_atomic(seen.get(left), seen.get(right), who)
    if TRANSACTIONS in replica_of(store).state.cursors:
        check_views_of_transactions(read((*ACCOUNTS, *TASKS)), who)
