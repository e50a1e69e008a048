"""Leases: a document is claimed for a time, by one worker of all that share a store.

A lease is a document of its own, ``lease/ID`` beside the document ID, and only transactions write it. It says who
claimed it and for how long, and its stamp changes with each renewal:

    lease/task-1    {"holder": "worker-1", "seconds": 30.0, "claim": "5f0c6a…"}

Guarantees:

1. A document has one holder at most, on all machines: a claim is a transaction that rests on the lease.
2. No wall clock decides. A lease is over when another worker has seen the same stamp for `seconds` on its own monotonic
   clock. The workers need not agree on the time, only on how long a second takes.
3. Clocks only decide when a lease may be taken over, never who may write: each write of a holder through its lease is a
   transaction that rests on it. A holder that was paused, and continues when the lease is another worker's, gets
   `LeaseLostError` and has written nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from opslog.environment import Environment
from opslog.errors import LeaseLostError, UsageError
from opslog.format.commits import Set, Stamp
from opslog.format.documents import Document, check_id
from opslog.format.prepared import prepare
from opslog.replica.transaction import Transaction
from opslog.store import replica_of

R = TypeVar("R")

Documents = Transaction[Document]
Predicate = Callable[[Document | None], object]

# The prefix of the claimed document's id.
PREFIX: Final = "lease/"


class _Terms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a lease's document.

    :ivar holder: the agent that claimed it, for people to read.
    :ivar seconds: for how long, without a renewal.
    :ivar claim: differs for each claim; stays the same when it is renewed.
    """

    holder: str
    seconds: float
    claim: str


prepare(_Terms)


class _Seen(NamedTuple):
    """A lease that another agent holds.

    :ivar at: when this stamp was first seen, by our monotonic clock.
    """

    stamp: Stamp
    author: str
    at: float


class _Refused(NamedTuple):
    """The claim failed.

    :ivar seen: the lease that another agent holds; None: nobody does, but the document cannot be claimed.
    """

    seen: _Seen | None


class _Claim:
    """One party's view of a lease: its decisions inside transactions, which have no side effects, and its record of
    their outcomes. The same for threads and for asyncio."""

    def __init__(self, store: Any, id: str, seconds: float, holder: str | None = None, key: str | None = None) -> None:
        replica = replica_of(store)
        if replica.schema.type is not None:
            raise UsageError(
                f"a lease is a document that {replica.schema.type.__name__} cannot hold: open the store without `type`"
            )
        self._id = check_id(id)
        self.seconds = seconds
        self._lease_id = check_id(PREFIX + id)
        self._replica = replica
        self._environment: Environment = replica.environment
        self._holder = holder or replica.author or ""
        # Of our claim; also of one with an unknown outcome.
        self._nonce = key
        self._stamp: Stamp | None = None
        self._until = -math.inf
        self._seen: _Seen | None = None

    def __repr__(self) -> str:
        state = f"held, {self.remaining:.1f} s left" if self._stamp else "not held"
        return f"<{type(self).__name__} of {self._id!r}: {state}>"

    @property
    def id(self) -> str:
        """The id of the claimed document."""
        return self._id

    @property
    def seconds(self) -> float:
        """How long the next claim or renewal holds it."""
        return self._seconds

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        if not 0 < seconds < math.inf:
            raise UsageError(f"a lease lasts for some seconds, more than 0, not {seconds!r}")
        self._seconds = float(seconds)

    @property
    def key(self) -> str | None:
        """Identifies the claim: another `Lease` of this document, in any process, continues it by ``key=``. None if the
        lease is not held, as far as is known here."""
        return self._nonce

    @property
    def stamp(self) -> Stamp | None:
        """The stamp of the last claim or renewal; None if the lease is not held, as far as is known here."""
        return self._stamp

    @property
    def token(self) -> int | None:
        """The clock of `stamp`, as a fencing token for systems outside the store. It only grows, over all holders: a
        system that refuses a smaller token than it has seen refuses delayed workers."""
        return None if self._stamp is None else self._stamp.clock

    @property
    def remaining(self) -> float:
        """How many seconds remain before another agent can take the lease over, by this machine's clock; 0.0: it may
        have been taken over, or it is not held. Does not ask the storage."""
        return max(0.0, self._until - self._environment.monotonic()) if self._stamp else 0.0

    @property
    def holder(self) -> str | None:
        """The agent that had it at the last call; None: nobody."""
        if self._stamp is not None:
            return self._holder
        return None if self._seen is None else self._seen.author

    def observe(self) -> bool:
        """Note the lease in memory, without a refresh, and since when it has been unchanged. Returns whether a claim
        could succeed now."""
        record = self._replica.record(self._lease_id)
        if record is None or self._is_ours(record):
            return True
        self._seen = self._see(record)
        return self._environment.monotonic() - self._seen.at >= self._terms(record).seconds

    # -- inside transactions

    def _decide_claim(self, predicate: Predicate | None, transaction: Documents) -> _Refused | None:
        """Claim, or return why not. A lease that is already held is renewed, whatever has become of its document."""
        record = transaction.record(self._lease_id)
        seen = None
        if record is None or not self._is_ours(record):
            if record is not None:
                seen = self._see(record)
                if self._environment.monotonic() - seen.at < self._terms(record).seconds:
                    return _Refused(seen)
            if predicate is not None and not predicate(transaction.get(self._id)):
                return _Refused(seen)
        self._write(transaction)
        return None

    def _see(self, record: Set) -> _Seen:
        """Another agent's lease, and since when it has been seen unchanged."""
        if self._seen is not None and self._seen.stamp == record.stamp:
            return self._seen
        return _Seen(record.stamp, record.author, self._environment.monotonic())

    def _decide_renewal(self, transaction: Documents) -> None:
        self._check(transaction)
        self._write(transaction)

    def _decide_release(self, transaction: Documents) -> None:
        self._check(transaction)
        transaction.delete(self._lease_id)

    def _decide_finish(self, document: Document | None, transaction: Documents) -> None:
        self._decide_release(transaction)
        if document is not None:
            transaction.set(self._id, document)
        elif self._id in transaction:
            transaction.delete(self._id)

    def _decide_set(self, id: str, document: Document, transaction: Documents) -> None:
        self._check(transaction)
        transaction.set(id, document)

    def _decide(self, function: Callable[[Documents], R], transaction: Documents) -> R:
        self._check(transaction)
        return function(transaction)

    def _check(self, transaction: Documents) -> None:
        """Rest on the lease.

        :raises LeaseLostError: another agent has it, or nobody.
        """
        record = transaction.record(self._lease_id)
        if record is None or not self._is_ours(record):
            now = "nobody has it now" if record is None else f"{record.author} has it now, with stamp {record.stamp}"
            raise LeaseLostError(
                f"the lease of {self._id!r} is not held here: {now}. Nothing was written; leave what was done for it",
                self._lease_id,
                record,
            )

    def _write(self, transaction: Documents) -> None:
        assert self._nonce is not None
        transaction.set(self._lease_id, {"holder": self._holder, "seconds": self._seconds, "claim": self._nonce})

    def _is_ours(self, record: Set) -> bool:
        return self._nonce is not None and self._terms(record).claim == self._nonce

    def _terms(self, record: Set) -> _Terms:
        try:
            return msgspec.convert(record.document, _Terms)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"document {self._lease_id!r}, written by {record.author}, is no lease ({error}): ids that begin with "
                f"{PREFIX} are for leases; delete it, or claim another document"
            ) from error

    # -- around them

    def _begin(self) -> float:
        """Begin a claim or a renewal. Returns the time: the lease lasts at least `seconds` from then on."""
        if self._nonce is None:
            self._nonce = self._environment.nonce()
        return self._environment.monotonic()

    def _written(self, begun: float, record: Set | None) -> bool:
        """Note a claim or a renewal, after which the lease has this record; returns whether it is still ours."""
        if record is None or not self._is_ours(record):  # taken over since, or taken back
            self._ended()
            return False
        self._stamp, self._until, self._seen = record.stamp, begun + self._seconds, None
        return True

    def _claimed(self, begun: float, refused: _Refused | None, record: Set | None) -> bool:
        """Note the result of a claim."""
        if refused is None:
            return self._written(begun, record)
        self._ended()
        self._seen = refused.seen
        return False

    def _ended(self) -> None:
        """Note that it is no longer held."""
        self._nonce = self._stamp = None
        self._until = -math.inf


class LeasedStore(Protocol):
    """The part of a `Store` that a lease needs."""

    def record(self, id: str) -> Set | None: ...

    def transact(self, function: Callable[[Documents], R], *, attempts: int = ...) -> R: ...


class Lease(_Claim):
    """A claim on a document for a time, and the writes of its holder.

        lease = opslog.Lease(store, "task-1", seconds=30)
        if lease.claim(lambda task: task["status"] == "open"):
            ...  # lease.renew() now and then
            lease.finish({"status": "done"})

    If another agent has the lease, keep this object and claim again later: it remembers since when it has seen the
    same stamp, and so finds out that the holder is gone. Use it from one thread at a time, except that one thread may
    `renew` while another works. All calls are transactions, in a store of plain documents (without `type`): each costs
    a refresh, and if it writes an append.

    :param id: of the document to claim, which may but need not exist. The lease itself is the document
        ``lease/ID``; deleting that frees it by force.
    :param seconds: how long it is claimed, without a renewal: longer than any pause of the holder, and short enough for
        others to wait after the holder was killed. Each lease lasts as long as its holder said.
    :param holder: the holder's name in it, for people to read; None: the agent of the store.
    :param key: of an earlier claim to continue, perhaps by another process: `renew` it, or use it directly. None: there
        is none yet.
    :raises UsageError: the store has a `type`; or this is not a valid duration.
    """

    def __init__(
        self,
        store: LeasedStore,
        id: str,
        seconds: float = 30.0,
        *,
        holder: str | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(store, id, seconds, holder, key)
        self._store = store

    def claim(self, predicate: Predicate | None = None) -> bool:
        """Claim it, if nobody holds it, or if its holder was seen not to renew it in time. Renews a lease that is held.

        :param predicate: claim it only if this is true of the document (None if there is no document): the same
            transaction then decides whether there is still something to do. As the function of `Store.transact`.
        :returns: whether it is held now. If False, `holder` names who has it, or is None if the predicate refused.
        """
        begun = self._begin()
        refused = self._store.transact(partial(self._decide_claim, predicate))
        return self._claimed(begun, refused, self._store.record(self._lease_id))

    def renew(self) -> None:
        """Hold it for another `seconds` from now on; also if it is overdue, as long as nobody has taken it over.

        :raises LeaseLostError: it is no longer held. From then on all calls except `claim` raise this.
        """
        begun = self._begin()
        self._transact(self._decide_renewal)
        if not self._written(begun, self._store.record(self._lease_id)):
            self._transact(self._check)  # raises, and names the holder

    def set(self, id: str, document: Document) -> None:
        """Give a document a new value, if the lease is still held. Errors as in `renew` and `Store.set`."""
        self._transact(partial(self._decide_set, id, document))

    def transact(self, function: Callable[[Documents], R]) -> R:
        """As `Store.transact`, if the lease is still held: the function's writes rest on that.

        :raises LeaseLostError: it is no longer held; nothing was written.
        """
        return self._transact(partial(self._decide, function))

    def finish(self, document: Document | None) -> None:
        """Set the document's final value (None: delete it) and release the lease, in one transaction. If this fails,
        that may have happened all the same, so `remaining` is 0.0 until the lease is renewed.

        :raises LeaseLostError: it is no longer held; nothing was written.
        """
        self._until = -math.inf
        self._transact(partial(self._decide_finish, document))
        self._ended()

    def release(self) -> None:
        """Let others claim it at once. If this fails, others may all the same, as after `finish`.

        :raises LeaseLostError: it is no longer held.
        """
        self._until = -math.inf
        self._transact(self._decide_release)
        self._ended()

    def _transact(self, function: Callable[[Documents], R]) -> R:
        try:
            return self._store.transact(function)
        except LeaseLostError:
            self._ended()
            raise


class AsyncDocuments(Protocol):
    """The part of an `opslog.aio.AsyncStore` that a lease needs."""

    async def record(self, id: str) -> Set | None: ...

    async def transact(self, function: Callable[[Documents], R], *, attempts: int = ...) -> R: ...


class AsyncLease(_Claim):
    """As `Lease`, over an `opslog.aio.AsyncStore`, with calls that are awaited."""

    def __init__(
        self,
        store: AsyncDocuments,
        id: str,
        seconds: float = 30.0,
        *,
        holder: str | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(store, id, seconds, holder, key)
        self._store = store

    async def claim(self, predicate: Predicate | None = None) -> bool:
        """As `Lease.claim`."""
        begun = self._begin()
        refused = await self._store.transact(partial(self._decide_claim, predicate))
        return self._claimed(begun, refused, await self._store.record(self._lease_id))

    async def renew(self) -> None:
        """As `Lease.renew`."""
        begun = self._begin()
        await self._transact(self._decide_renewal)
        if not self._written(begun, await self._store.record(self._lease_id)):
            await self._transact(self._check)

    async def set(self, id: str, document: Document) -> None:
        """As `Lease.set`."""
        await self._transact(partial(self._decide_set, id, document))

    async def transact(self, function: Callable[[Documents], R]) -> R:
        """As `Lease.transact`."""
        return await self._transact(partial(self._decide, function))

    async def finish(self, document: Document | None) -> None:
        """As `Lease.finish`."""
        self._until = -math.inf
        await self._transact(partial(self._decide_finish, document))
        self._ended()

    async def release(self) -> None:
        """As `Lease.release`."""
        self._until = -math.inf
        await self._transact(self._decide_release)
        self._ended()

    async def _transact(self, function: Callable[[Documents], R]) -> R:
        try:
            return await self._store.transact(function)
        except LeaseLostError:
            self._ended()
            raise
