"""What agents do by transactions: claims, counters, transfers between accounts, conditions, blocks, and misuse.

Each function records in its attempt what it has read and written. The store may call it more than once, and each call
starts a new record. The records are checked when all is quiet (`tests.simulation.transaction_invariants`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from opslog.errors import UsageError
from opslog.replica.transaction import Transaction
from opslog.testing import invariants
from tests.simulation.ledger import TRANSACTION, Attempt, Refused, Texts
from tests.simulation.transaction_invariants import (
    ACCOUNTS,
    CLAIMS,
    TASKS,
    TASKS_MAX,
    check_views_of_transactions,
)

if TYPE_CHECKING:
    from tests.simulation.sessions import Session

# Nobody writes these except by `modify`. They count from 1.
_COUNTERS = ("counter-0", "counter-1")


class Noting:
    """A transaction that records its reads and writes in an attempt."""

    def __init__(self, transaction: Transaction[Any], attempt: Attempt) -> None:
        self._transaction = transaction
        self._attempt = attempt
        attempt.read, attempt.written, attempt.matched = {}, {}, None

    def get(self, id: str) -> Any:
        record = self._transaction.record(id)
        text = None if record is None else bytes(record.data)
        attempt = self._attempt
        seen = attempt.written if id in attempt.written else attempt.read
        expected = seen.setdefault(id, text)
        invariants.own_writes_are_read({id: text}, {id: expected}, f"a transaction of {attempt.agent}")
        return self._transaction.get(id)

    def set(self, id: str, document: Any, text: bytes) -> None:
        self._transaction.set(id, document)
        self._attempt.written[id] = text

    def delete(self, id: str) -> None:
        self._transaction.delete(id)
        self._attempt.written[id] = None

    def taken(self) -> list[str]:
        """The taken tasks, by a query."""
        found = dict(self._transaction.filter(lambda document: "taker" in document))
        texts: Texts = {record.id: bytes(record.data) for id in found if (record := self._transaction.record(id))}
        self._attempt.matched = texts
        return list(found)


def _amount(session: Session, amount: int) -> tuple[dict[str, Any], bytes]:
    token = session.shared.token()
    return {"n": token, "amount": amount}, b'{"n":%d,"amount":%d}' % (token, amount)


def _task(session: Session) -> tuple[dict[str, Any], bytes]:
    token = session.shared.token()
    return {"n": token, "taker": session.agent}, b'{"n":%d,"taker":"%b"}' % (token, session.agent.encode())


async def create(session: Session) -> None:
    """Claim something, if it is free."""
    id = session.random.choice(CLAIMS)
    document, text = session.document()
    with session.attempt("set", (id, text)) as attempt:
        attempt.read, attempt.written = {id: None}, {id: text}
        await session.calls.create(id, document)


async def release(session: Session) -> None:
    """Delete a claim or a task, if its owner is still the one that was read."""
    id = session.random.choice([*CLAIMS, *TASKS])
    record = await session.calls.record(id)
    if record is None:
        return
    if session.random.random() < 0.3:
        await session.think()
    with session.attempt("delete", id) as attempt:
        attempt.read, attempt.written = {id: bytes(record.data)}, {id: None}
        await session.calls.delete(id, if_stamp=record.stamp if session.random.random() < 0.5 else str(record.stamp))


async def replace(session: Session) -> None:
    """Set a document that others write as well, if it still is what was read."""
    id = session.random.choice(session.shared.ids)
    record = await session.calls.record(id)
    if session.random.random() < 0.3:
        await session.think()
    document, text = session.document()
    with session.attempt("set", (id, text)) as attempt:
        attempt.read, attempt.written = {id: None if record is None else bytes(record.data)}, {id: text}
        await session.calls.set(id, document, if_stamp=None if record is None else record.stamp)


async def modify(session: Session) -> None:
    """Count, or replace a document that others write by plain sets. Now and then delete it."""
    id = session.random.choice([*_COUNTERS, session.random.choice(session.shared.ids)])
    deletes = session.random.random() < 0.1
    with session.attempt(TRANSACTION, f"modify {id!r}") as attempt:

        def function(document: Any) -> Any:
            attempt.read = {id: None if document is None else _text(document)}
            if deletes:
                attempt.written = {} if document is None else {id: None}
                return None
            if id in _COUNTERS:
                new, text = _amount(session, (document or {"amount": 0})["amount"] + 1)
            else:
                new, text = session.document()
            attempt.written = {id: text}
            return new

        await session.calls.modify(id, function)


def _text(document: Mapping[str, Any]) -> bytes:
    """The text of a document of these agents."""
    fields = (f'"{key}":' + (f'"{value}"' if isinstance(value, str) else str(value)) for key, value in document.items())
    return ("{" + ",".join(fields) + "}").encode()


async def transfer(session: Session) -> None:
    """Move an amount from one account to another. Give up if the first one has not enough."""
    giving, taking = session.random.sample(ACCOUNTS, 2)
    amount = session.random.randint(1, 9)

    with suppress(Refused), session.attempt(TRANSACTION, f"transfer {giving} {taking}") as attempt:

        def function(transaction: Transaction[Any]) -> None:
            noting = Noting(transaction, attempt)
            has = (noting.get(giving) or {"amount": 0})["amount"]
            gets = (noting.get(taking) or {"amount": 0})["amount"]
            noting.set(giving, *_amount(session, has - amount))
            if has < -50:
                raise Refused
            noting.set(taking, *_amount(session, gets + amount))

        await session.calls.transact(function, attempts=session.random.choice([1, 3, 100]))


async def take_few(session: Session) -> None:
    """Take a free task, unless too many are taken already."""
    id = session.random.choice(TASKS)

    with session.attempt(TRANSACTION, f"take {id}") as attempt:

        def function(transaction: Transaction[Any]) -> None:
            noting = Noting(transaction, attempt)
            if len(noting.taken()) < TASKS_MAX and noting.get(id) is None:
                noting.set(id, *_task(session))

        await session.calls.transact(function)


async def block(session: Session) -> None:
    """Read and write in a block, with time in between. Conflicts reach its caller."""
    some = session.random.sample([*session.shared.ids, *ACCOUNTS], 2)
    fails = session.random.random() < 0.1
    with suppress(Refused), session.attempt(TRANSACTION, f"block {some}") as attempt:
        async with session.calls.transaction() as transaction:
            noting = Noting(transaction, attempt)
            for id in some:
                noting.get(id)
            if session.random.random() < 0.5:
                await session.sleep(session.random.expovariate(10.0))
            for id in some:
                if id in ACCOUNTS:
                    continue
                if noting.get(id) is not None and session.random.random() < 0.2:
                    noting.delete(id)
                else:
                    noting.set(id, *session.document())
                    noting.get(id)
            if fails:
                attempt.read = {}  # nobody has confirmed these reads
                raise Refused


async def audit(session: Session) -> None:
    """Read everything that transactions have written, and write nothing."""
    some = session.random.sample(session.shared.ids, min(3, len(session.shared.ids)))
    with session.attempt(TRANSACTION, "audit") as attempt:

        def function(transaction: Transaction[Any]) -> dict[str, Any]:
            noting = Noting(transaction, attempt)
            noting.taken()
            for id in some:
                noting.get(id)
            return {id: document for id in (*ACCOUNTS, *TASKS) if (document := noting.get(id)) is not None}

        seen = await session.calls.transact(function)
    check_views_of_transactions(seen, session.agent)


async def misuse(session: Session) -> None:
    """Calls that cannot be part of another one are refused, and change nothing."""
    document, text = session.document()
    with suppress(UsageError), session.attempt("set", (CLAIMS[0], text)):
        kind = session.random.randrange(1 if session.has_loop else 0, 3)  # tasks have no blocks of their own
        if kind == 0:
            async with session.calls.transaction():
                await session.calls.create(CLAIMS[0], document)
        elif kind == 1:
            await session.calls.transact(lambda transaction: session.store.get(CLAIMS[0]))
        else:
            await session.calls.modify(CLAIMS[0], lambda _: session.store.set(CLAIMS[0], document))
        invariants.violated("the_store_is_readable", "a nested call was not refused")


CALLS: Mapping[str, Callable[[Session], Awaitable[None]]] = {
    "create": create,
    "release": release,
    "replace": replace,
    "modify": modify,
    "transfer": transfer,
    "take_few": take_few,
    "block": block,
    "audit": audit,
    "misuse": misuse,
}

WEIGHTS: Mapping[str, float] = {
    "create": 2.0,
    "release": 2.0,
    "replace": 2.0,
    "modify": 3.0,
    "transfer": 3.0,
    "take_few": 1.0,
    "block": 2.0,
    "audit": 0.5,
    "misuse": 0.1,
}
