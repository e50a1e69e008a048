"""The ``with store.transaction()`` block."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import Generic, TypeVar

from opslog.errors import UsageError
from opslog.format.commits import Record, Set
from opslog.replica.deciding import Deciding
from opslog.replica.replica import Replica
from opslog.replica.transaction import Transaction

T = TypeVar("T")


class InTransaction(Generic[T]):
    """The return value of `Store.transaction`.

    :ivar has_ended: whether the block was left, in whichever thread.
    """

    def __init__(self, replica: Replica[T]) -> None:
        self._replica = replica
        self._deciding: Deciding[T] | None = None
        self._made: Transaction[T] | None = None
        self.has_ended = False

    def record(self, id: str) -> Set | None:
        assert self._made is not None
        return self._made.record(id)

    def write(self, record: Record) -> None:
        assert self._made is not None
        self._made.write(record)

    def __enter__(self) -> Transaction[T]:
        if self._made is not None:
            raise UsageError("this transaction has begun already: call store.transaction() for each")
        self._deciding = self._replica.deciding_of("transaction")
        made = self._made = self._deciding.begin()
        if not self._replica.batches.has_transactions:
            # In this order: who finds the flag finds the count, by which plain writes know that there are blocks.
            self._replica.guards += 1
            self._replica.batches.has_transactions = True
        # A weak reference: if a signal handler prevents ``__exit__``, the block is over when nothing refers to it.
        self._replica.batches.local.transaction = weakref.ref(self)
        return made

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        deciding, made = self._deciding, self._made
        if deciding is None or made is None:
            raise UsageError("this transaction has not begun")
        if self.has_ended:
            raise UsageError("this transaction has ended: call store.transaction() for each")
        self.has_ended = True
        try:
            if kind is None:
                deciding.commit(made)
        finally:
            deciding.leave(made)
