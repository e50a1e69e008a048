"""Open batches: until they are committed, their ops are visible to their own thread only."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, TypeVar, overload

from opslog.errors import UsageError
from opslog.format.commits import Batch, DeleteOp, Record, Set, SetOp

R = TypeVar("R")
S = TypeVar("S")


class OpenBatch:
    """The ops of one ``with store.batch()`` block of one thread, and the records that the thread reads with them.

    :param outer: the batch of the block around this one.
    :param held: a weak reference to an object that exists as long as the block has not been left; None: the batch does
        not depend on a block.
    :ivar ops: None once `end` has taken them: what another thread adds after that would be in no commit.
    :ivar written: the newest record of each document that this batch writes.
    :ivar has_ended: whether its block has ended, in whichever thread. A block may end in another thread than it began
        (Python's garbage collector closes a generator in any), and before blocks that began in it.
    """

    def __init__(self, outer: OpenBatch | None, held: weakref.ref[object] | None = None) -> None:
        self.outer = outer
        self.ops: list[SetOp | DeleteOp] | None = []
        self.written: dict[str, Record] = {}
        self.has_ended = False
        self._held = held

    @property
    def is_over(self) -> bool:
        """Whether the block has ended, even if its ``__exit__`` did not run."""
        return self.has_ended or (self._held is not None and self._held() is None)

    def find(self, id: str) -> Record | None:
        """The newest record of a document in this batch and in those around it; None if they do not write it."""
        batch: OpenBatch | None = self
        while batch is not None:
            if (record := batch.written.get(id)) is not None and (batch is self or not batch.is_over):
                return record
            batch = batch.outer
        return None

    def overlay(self) -> dict[str, Record]:
        """The newest record of each document that this batch and those around it write."""
        outer = self.outer
        while outer is not None and outer.is_over:  # its records were committed, or dropped
            outer = outer.outer
        return (outer.overlay() if outer else {}) | self.written

    def add(self, record: Record) -> bool:
        """Add a set or a delete that has no stamp yet. Returns False if another thread has just ended the batch."""
        id = record.id
        op = SetOp(id, record.data, record.v) if isinstance(record, Set) else DeleteOp(id, record.archived)
        self.written[id] = record  # no exception comes between the two
        ops = self.ops
        if ops is None:
            return False
        ops.append(op)  # no thread comes between this and the check
        return True

    def end(self) -> Batch | None:
        """The commit of this batch. None if there is nothing to commit: the batch is empty, or it becomes part of the
        batch around it that is still open. (If an inner block fails, only its own ops are dropped.)"""
        self.has_ended = True
        ops, self.ops = self.ops or [], None
        outer = self.outer
        while outer is not None:
            if outer.is_over:
                outer = outer.outer
                continue
            outer.written |= self.written
            if (of_outer := outer.ops) is not None:  # otherwise another thread ends it at this moment
                of_outer += ops
                return None
        return Batch("", 0, "", ops) if ops else None


class _Local(threading.local):
    """The innermost batch of each thread, and the block of its transaction."""

    batch: OpenBatch | None = None
    transaction: Callable[[], OpenTransaction | None] | None = None


class OpenTransaction(Protocol):
    """The block of a transaction.

    :ivar has_ended: whether it was left, in whichever thread.
    """

    has_ended: bool

    def record(self, id: str) -> Set | None:
        """The record of a document as the transaction sees it."""

    def write(self, record: Record) -> None:
        """Write a record, still without a stamp."""


class Batches:
    """The open batches of all threads. Each thread sees its own.

    :ivar local: the batches; `Block` begins and ends them here.
    :ivar has_transactions: whether a thread was ever in the block of a transaction.
    """

    def __init__(self) -> None:
        self.local = _Local()
        self.has_transactions = False

    @property
    def current(self) -> OpenBatch | None:
        """The innermost batch of this thread."""
        batch = self.local.batch
        while batch is not None and batch.is_over:
            batch = self.local.batch = batch.outer
        return batch

    @property
    def transaction(self) -> OpenTransaction | None:
        """The transaction block that this thread is in."""
        reference = self.local.transaction
        if reference is None:
            return None
        block = reference()
        if block is None or block.has_ended:
            self.local.transaction = None
            return None
        return block

    def listed(self) -> dict[str, Record]:
        """The records of this thread's batch, for a call that lists, counts or searches documents.

        :raises UsageError: the batch is in a transaction block. The answer would come without what the transaction has
            written, and the transaction would not depend on it.
        """
        batch = self.current
        if batch is None:
            return {}
        if self.transaction is not None:
            raise UsageError(
                "a batch inside a transaction can read, set and delete single documents: list, count, search and clear "
                "them through the transaction"
            )
        return batch.overlay()

    def check_no_transaction(self) -> None:
        """Check before a plain write that this thread is in no transaction block.

        :raises UsageError: it is in one.
        """
        if self.transaction is not None:
            raise UsageError("inside a transaction write through it, or in a batch, which becomes a part of it")

    def inside(self, batch: OpenBatch, call: Callable[[], R]) -> R:
        """Make a call as if it stood in the block of this batch, and return its result."""
        outer = self.current
        try:
            self.local.batch = batch
            return call()
        finally:
            self.local.batch = outer

    def check_none(self, call: str) -> None:
        """Check that this thread is in no batch.

        :raises UsageError: it is in one, and this call cannot be part of a batch.
        """
        if self.current is not None:
            raise UsageError(f"{call} cannot be part of a batch: end the batch first")


Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]


class _ExitMethod:
    """The descriptor of `Block.__exit__`. By it, a block knows whether its bound method still exists."""

    @overload
    def __get__(self, block: None, owner: type[Block[S]]) -> Callable[..., None]: ...

    @overload
    def __get__(self, block: Block[S], owner: type[Block[S]]) -> Exit: ...

    def __get__(self, block: Block[S] | None, owner: type[Block[S]]) -> Callable[..., None] | Exit:
        if block is None:
            return Block.leave
        method = block.leave
        if not block.is_entered:
            block.exit_method = weakref.ref(method)
        return method


class Block(Generic[S]):
    """The return value of `Store.batch`. The ops of its ``with`` block go into a batch, which is committed at the end.

    A signal handler can raise an exception at the beginning of ``__exit__``, before it has done anything, and Python
    does not call it again. The block is over then, but the traceback of the exception still refers to this object. Only
    the bound method ``__exit__`` shows that the block is over: the ``with`` statement alone has it, from its beginning
    to its end. So the batch is open as long as that method exists. Elsewhere no exception can come in between: no call
    follows the assignment that begins a batch, and none precedes the assignment that ends it.

    :param check: called first; raises if nothing can be written.
    :param commit: called if the block ends without an exception: with the batch's commit, and with the block of the
        transaction that it began in.
    """

    __exit__ = _ExitMethod()

    def __init__(
        self,
        store: S,
        batches: Batches,
        check: Callable[[], object],
        commit: Callable[[Batch | None, OpenTransaction | None], None],
    ) -> None:
        self._store, self._batches, self._check, self._commit = store, batches, check, commit
        self._batch: OpenBatch | None = None
        self._transaction: OpenTransaction | None = None
        self.exit_method: weakref.ref[object] | None = None

    @property
    def is_entered(self) -> bool:
        return self._batch is not None

    def __enter__(self) -> S:
        if self._batch is not None:
            raise UsageError("this batch has begun already: nest blocks by calling store.batch() for each")
        self._check()
        outer, self._transaction = self._batches.current, self._batches.transaction
        held = self.exit_method
        if held is None or held() is None:
            held = weakref.ref(self)  # an ExitStack, for example, looks up the method later
        self._batch = self._batches.local.batch = OpenBatch(outer, held)
        return self._store

    def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        batch = self._batch
        if batch is None:
            raise UsageError("this batch has ended, or has not begun")
        batch.has_ended, self._batch = True, None
        if self._batches.local.batch is batch:  # otherwise `current` passes over it when the blocks inside have ended
            self._batches.local.batch = batch.outer
        if kind is None:
            self._commit(batch.end(), self._transaction)
