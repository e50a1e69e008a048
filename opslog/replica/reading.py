"""A store as a mapping to read from: what `opslog.store.Store` shows of its state and of the batch that is open."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, ItemsView, Iterator, MutableMapping, ValuesView
from typing import Concatenate, Generic, ParamSpec, TypeVar, overload

from opslog.backends import Backend
from opslog.errors import MissingFileError, NotFoundError, UsageError
from opslog.format.commits import Record, Set
from opslog.format.documents import Schema
from opslog.replica.batch import OpenBatch
from opslog.replica.state import State
from opslog.replica.views import Items, Values

T = TypeVar("T")
D = TypeVar("D")
R = TypeVar("R")
P = ParamSpec("P")


class _Local(threading.local):
    batch: OpenBatch | None = None


def _count(state: State, overlay: dict[str, Record]) -> int:
    return state.documents + sum(isinstance(record, Set) - state.contains(id) for id, record in overlay.items())


class Documents(MutableMapping[str, T], Generic[T]):
    """The reading half of a store. Safe to use from many threads."""

    def __init__(self, backend: Backend, state: State, schema: Schema[T]) -> None:
        self._backend = backend
        self._schema = schema
        self._state = state
        self._state_lock = threading.RLock()
        # Whether somebody is in a block under `_state_lock`. Who has that lock and finds this set is the handler of a
        # signal that came while its own thread was in there.
        self._in_state = False
        self._local = _Local()

    @abstractmethod
    def _check_open(self) -> None:
        """:raises ClosedError: the store is closed, or belongs to the parent of this process."""

    @abstractmethod
    def _replace(self, state: State, missing: MissingFileError | None) -> None:
        """Load another state in place of this one. Does nothing where that was done meanwhile.

        :param missing: what of it was collected; None: it is torn.
        :raises OpslogError: there is no other one.
        """

    def __getitem__(self, id: str) -> T:
        record = self._record(id)
        if record is None:
            raise NotFoundError(f"there is no document {id!r} in {self._backend.url}")
        return self._schema.decode(record)

    @overload
    def get(self, id: str, /) -> T | None: ...

    @overload
    def get(self, id: str, /, default: T | D) -> T | D: ...

    def get(self, id: str, /, default: object = None) -> object:
        """The document, or the default where there is none."""
        record = self._record(id)
        return default if record is None else self._schema.decode(record)

    def __contains__(self, id: object) -> bool:
        self._check_open()
        batch = self._open_batch
        if batch is not None and id in batch.overlay:
            return isinstance(batch.overlay[id], Set)
        return isinstance(id, str) and self._look(State.contains, id)

    def __len__(self) -> int:
        self._check_open()
        overlay = self._open_batch.overlay if self._open_batch is not None else {}
        return self._look(_count, overlay)

    def __iter__(self) -> Iterator[str]:
        return (record.id for record in self.records())

    def items(self) -> ItemsView[str, T]:
        """(id, document) pairs in order of id, all of them as they were when the iteration began."""
        return Items(self, self._documents)

    def values(self) -> ValuesView[T]:
        """Documents in order of id, all of them as they were when the iteration began."""
        return Values(self, self._documents)

    def filter(self, predicate: Callable[[T], object]) -> list[tuple[str, T]]:
        """The (id, document) pairs whose document fulfils the predicate, in order of id. Decodes every document."""
        return [(id, document) for id, document in self._documents() if predicate(document)]

    def count(self, predicate: Callable[[T], object] | None = None) -> int:
        """How many documents fulfil the predicate; without one, how many there are."""
        if predicate is None:
            return len(self)
        return sum(1 for _, document in self._documents() if predicate(document))

    def records(self) -> Iterator[Set]:
        """What was last written of each document, in order of id, all of it as it was at the call: agent, clock, ts and
        schema version, with the document as JSON text.

        In a batch its own sets are there, still without agent, clock and ts.
        """
        self._check_open()
        batch = self._open_batch
        return self._look(State.records, batch.overlay if batch is not None else None)

    def _record(self, id: str) -> Set | None:
        self._check_open()
        batch = self._open_batch
        if batch is not None and id in batch.overlay:
            record = batch.overlay[id]
            return record if isinstance(record, Set) else None
        return self._look(State.get, id)

    def _look(self, read: Callable[Concatenate[State, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What the state says; another one, if what this one wants to look up was collected meanwhile, or if it is
        torn.

        :raises UsageError: called by the handler of a signal that came while its thread was changing the state.
        """
        while True:
            missing = None
            with self._state_lock:
                state = self._state
                if not state.is_torn:
                    outer = self._in_state
                    if outer:
                        state.check_idle()
                    self._in_state = True
                    try:
                        return read(state, *args, **kwargs)
                    except MissingFileError as error:
                        missing = error
                    finally:
                        self._in_state = outer
            self._replace(state, missing)

    def _with_state(self, call: Callable[[State], R]) -> R:
        """What a call makes of the state, while no other thread reads or changes it. The state may be torn."""
        with self._state_lock:
            outer, self._in_state = self._in_state, True
            try:
                return call(self._state)
            finally:
                self._in_state = outer

    def _check_not_in_state(self) -> None:
        """To be called before anything that waits for other threads, which may wait for the state in turn.

        :raises UsageError: called by the handler of a signal that came while its own thread was in the state.
        """
        with self._state_lock:
            if self._in_state:
                raise UsageError(
                    "this call came while the same thread was in another call of this store, as the handler of a "
                    "signal does: let the handler set a flag, and make the call after it has returned"
                )

    def _documents(self) -> Iterator[tuple[str, T]]:
        return ((record.id, self._schema.decode(record)) for record in self.records())

    @property
    def _open_batch(self) -> OpenBatch | None:
        """The innermost batch of this thread."""
        batch = self._local.batch
        while batch is not None and batch.is_over:
            batch = self._local.batch = batch.outer
        return batch

    def _in_batch(self, batch: OpenBatch, call: Callable[[], R]) -> R:
        """What a call returns, made as if it stood in the block of this batch."""
        outer = self._open_batch
        try:
            self._local.batch = batch
            return call()
        finally:
            self._local.batch = outer

    def _not_in_batch(self, call: str) -> None:
        if self._open_batch is not None:
            raise UsageError(f"{call} cannot be part of a batch: end the batch first")
