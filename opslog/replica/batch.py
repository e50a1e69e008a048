"""Batches under construction: ops that are visible to their own thread and to nobody else, until they are committed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, TypeVar, overload

import msgspec

from opslog.errors import UsageError
from opslog.format.commits import Batch, Delete, DeleteOp, Record, Set, SetOp

R = TypeVar("R")
S = TypeVar("S")


class OpenBatch:
    """The ops of one ``with store.batch()`` block, of one thread, with what they make of each document.

    :param outer: the block that this one is in.
    :param held: a weak reference to what is there as long as the block can still be left; None: it can.
    :ivar has_ended: whether `end` was called.
    """

    def __init__(self, outer: OpenBatch | None, held: weakref.ref[object] | None = None) -> None:
        self.outer = outer
        self.ops: list[SetOp | DeleteOp] = []
        self.overlay: dict[str, Record] = dict(outer.overlay) if outer else {}
        self.has_ended = False
        self._held = held

    @property
    def is_over(self) -> bool:
        """Whether the block has ended without having been left."""
        return self._held is not None and self._held() is None

    def set(self, id: str, data: msgspec.Raw, v: int) -> None:
        self._add(SetOp(id, data, v), Set("", 0, "", id, data, v))

    def delete(self, id: str, archived: str | None) -> None:
        self._add(DeleteOp(id, archived), Delete("", 0, "", id, archived))

    def _add(self, op: SetOp | DeleteOp, record: Record) -> None:
        self.overlay[record.id] = record  # no exception comes between the two
        self.ops.append(op)

    def end(self) -> Batch | None:
        """What it commits, None if nothing: it is empty, or becomes part of the one that it is in. (An inner block that
        fails is forgotten alone.)"""
        self.has_ended = True
        if self.outer is None:
            return Batch("", 0, "", self.ops) if self.ops else None
        self.outer.ops += self.ops
        self.outer.overlay = self.overlay
        return None


class _Local(threading.local):
    """What each thread has of its own: its innermost batch, and the block of its transaction."""

    batch: OpenBatch | None = None
    transaction: Callable[[], OpenTransaction | None] | None = None


class OpenTransaction(Protocol):
    """The block of a transaction, for as long as it can still be left."""

    def record(self, id: str) -> Set | None:
        """What the transaction sees of a document."""

    def write(self, record: Record) -> None:
        """Write a record, still without a stamp."""


class Batches:
    """The open batches of all threads. Each thread sees its own.

    :ivar local: where `Block` begins and ends them.
    """

    def __init__(self) -> None:
        self.local = _Local()

    @property
    def current(self) -> OpenBatch | None:
        """The innermost batch of this thread."""
        batch = self.local.batch
        while batch is not None and batch.is_over:
            batch = self.local.batch = batch.outer
        return batch

    @property
    def transaction(self) -> OpenTransaction | None:
        """The block of a transaction that this thread is in."""
        block = self.local.transaction
        return None if block is None else block()

    def inside(self, batch: OpenBatch, call: Callable[[], R]) -> R:
        """What a call returns, made as if it stood in the block of this batch."""
        outer = self.current
        try:
            self.local.batch = batch
            return call()
        finally:
            self.local.batch = outer

    def check_none(self, call: str) -> None:
        """:raises UsageError: this thread is in a batch, of which this call cannot be a part."""
        if self.current is not None:
            raise UsageError(f"{call} cannot be part of a batch: end the batch first")


Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], None]


class _ExitMethod:
    """`Block.__exit__`, of which a block knows whether somebody still has it."""

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
    """What `Store.batch` gives: the ops of a ``with`` block come into a batch, which is committed at the end.

    The handler of a signal can raise an exception where ``__exit__`` begins, before anything in it is done, and Python
    does not call it again. The block is over then, but the exception's traceback holds on to this object. What nobody
    has but the ``with`` statement, which lets go of it however it ends, is the bound method ``__exit__`` that it looks
    up when it begins. So the batch is open for as long as that exists. Nothing comes in between elsewhere: no call
    follows the assignment by which a batch begins, and none precedes the one by which it ends.

    :param check: called first; raises where nothing can be written.
    :param commit: called with what the batch commits, where the block ends without an exception.
    """

    __exit__ = _ExitMethod()

    def __init__(
        self,
        store: S,
        batches: Batches,
        check: Callable[[], object],
        commit: Callable[[Batch | None], None],
    ) -> None:
        self._store, self._batches, self._check, self._commit = store, batches, check, commit
        self._batch: OpenBatch | None = None
        self.exit_method: weakref.ref[object] | None = None

    @property
    def is_entered(self) -> bool:
        return self._batch is not None

    def __enter__(self) -> S:
        if self._batch is not None:
            raise UsageError("this batch has begun already: nest blocks by calling store.batch() for each")
        self._check()
        outer = self._batches.current
        held = self.exit_method
        if held is None or held() is None:
            held = weakref.ref(self)  # entered by something else, as an ExitStack, that looks up the method later
        self._batch = self._batches.local.batch = OpenBatch(outer, held)
        return self._store

    def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        batch = self._batch
        if batch is None:
            raise UsageError("this batch has ended, or has not begun")
        self._batches.local.batch, self._batch = batch.outer, None
        if kind is None:
            self._commit(batch.end())
