"""Claims for clients of a door: an `opslog.Lease` of a document, named by its id or found by a condition.

A claim returns a key, which renews and releases it, also from another session or through another server. So a claim
needs no connection that stays open. Another holder's lease is over when this process has seen the same stamp for the
lease's duration. `Leases` remembers what it has seen, so keep one as long as its store is open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from opslog.doors.operations import Documents, Operations, merge_patched
from opslog.errors import UsageError
from opslog.format.commits import Set
from opslog.format.documents import Document
from opslog.lease import PREFIX, Lease
from opslog.logs import logger
from opslog.query.conditions import Condition, compiled
from opslog.query.question import OrderBy, Where, parse, question
from opslog.replica.terms import ATTEMPTS
from opslog.store import replica_of

R = TypeVar("R")
_log = logger("doors")

# How many leases of other holders are remembered.
_REMEMBERED = 100_000


class Claimed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a claim.

    :ivar claimed: whether you hold the document now.
    :ivar id: of the document; empty if none was free.
    :ivar data: the document as it is now; None: there is no such document, or `note` says why it is left out.
    :ivar stamp: of the document.
    :ivar key: renews and releases the claim.
    :ivar seconds: how long the claim lasts unless it is renewed; also if somebody else holds the document.
    :ivar holder: who holds it.
    :ivar token: grows with each claim, over all holders, so that other systems can refuse late workers.
    :ivar note: why `data` is left out, if it is.
    """

    claimed: bool
    id: str = ""
    data: Document | None = None
    stamp: str | None = None
    key: str | None = None
    seconds: float = 0.0
    holder: str | None = None
    token: int | None = None
    note: str | None = None


class _Named:
    """The part of a store that a lease needs, in the name of an author.

    :ivar deciding: the transaction that is being decided.
    :ivar stamp: the stamp that the last one gave.
    """

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self.replica = self._replica = replica_of(operations.store)
        self.deciding: Documents | None = None
        self.stamp: str | None = None

    def record(self, id: str) -> Set | None:
        return self._operations.store.record(id)

    def transact(self, function: Callable[[Documents], R], *, attempts: int = ATTEMPTS) -> R:
        def decide(transaction: Documents) -> R:
            self.deciding = transaction
            return function(transaction)

        result, self.stamp = self._operations.decide(decide, attempts=attempts)
        return result


class Leases:
    """Claims in the name of one author. Safe to use from many threads: they are made one after the other."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._named = _Named(operations)
        # The leases of other holders, by document. Each remembers since when it has seen the same stamp.
        self._seen: dict[str, Lease] = {}
        self._lock = threading.Lock()

    def claim(self, id: str, seconds: float, where: Where | None = None) -> Claimed:
        """Claim a document, unless somebody holds it.

        :param where: claim it only if it fulfils this condition at that moment.
        :raises UsageError: the duration is invalid, or the document cannot be claimed.
        """
        _check(id)
        with self._lock:
            return self._claim(id, seconds, None if where is None else parse(where))

    def claim_one(self, where: Where, seconds: float, order_by: OrderBy | None = None) -> Claimed:
        """Claim the first document that fulfils a condition and that nobody holds. Skips documents whose lease cannot
        be read.

        :returns: a result with an empty id if there is none.
        """
        asked = question(where, order_by, None, 0)
        with self._lock:
            self._operations.refresh()
            matches, _ = self._named.replica.questions.matches(asked)
            for id in [record.id for record, _ in matches if not record.id.startswith(PREFIX)]:
                if self._may_claim(id, seconds):
                    claimed = self._claim(id, seconds, asked.condition)
                    if claimed.claimed:
                        return claimed
        return Claimed(False)

    def renew(self, id: str, key: str, seconds: float) -> Claimed:
        """Hold a document for another `seconds` from now on.

        :raises LeaseLostError: this key does not hold it any more.
        """
        _check(id)
        with self._lock:
            lease = self._held(id, key, seconds)
            lease.renew()
            return self._claimed(id, lease)

    def release(
        self, id: str, key: str, *, data: Document | None = None, changes: Document | None = None
    ) -> str | None:
        """End a claim, so that others can claim the document at once. The same transaction may change the document.

        :param data: the document's last value.
        :param changes: or changes of it, as of `Operations.modify`.
        :returns: the stamp of the document; None: there is no document.
        :raises LeaseLostError: this key does not hold it any more; nothing was written.
        """
        if data is not None and changes is not None:
            raise UsageError("give either the document's last value (data) or changes of it, not both")
        _check(id)
        with self._lock:
            lease = self._held(id, key)
            if data is not None:
                lease.finish(data)
            elif changes is not None:
                lease.transact(partial(_finish, id, changes))
            else:
                lease.release()
                now = self._named.record(id)
                return None if now is None else str(now.stamp)
            return self._named.stamp

    def _may_claim(self, id: str, seconds: float) -> bool:
        """Whether a claim could succeed now. It cannot if the document in the place of the lease is not a lease."""
        lease = self._lease(id, seconds)
        try:
            return lease.observe()
        except UsageError:
            _log.warning("%s is no lease, so that %s cannot be claimed: delete it", PREFIX + id, id)
            return False

    def _claim(self, id: str, seconds: float, condition: Condition | None) -> Claimed:
        lease = self._lease(id, seconds)
        if lease.claim(None if condition is None else partial(self._fulfils, id, condition)):
            del self._seen[id]
            return self._claimed(id, lease)
        record, theirs = self._named.record(id), self._named.record(PREFIX + id)
        return Claimed(
            False,
            id,
            None if record is None else record.document,
            None if record is None else str(record.stamp),
            seconds=0.0 if theirs is None else theirs.document.get("seconds", 0.0),
            holder=lease.holder,
        )

    def _claimed(self, id: str, lease: Lease) -> Claimed:
        record = self._named.record(id)
        data, stamp = (None, None) if record is None else (record.document, str(record.stamp))
        return Claimed(True, id, data, stamp, lease.key, lease.seconds, lease.holder, lease.token)

    def _fulfils(self, id: str, condition: Condition, document: Document | None) -> bool:
        assert self._named.deciding is not None
        record = self._named.deciding.record(id)
        return record is not None and document is not None and compiled(condition)(document, record)

    def _held(self, id: str, key: str, seconds: float = 1.0) -> Lease:
        return Lease(self._named, id, seconds, holder=self._operations.author, key=key)

    def _lease(self, id: str, seconds: float) -> Lease:
        lease = self._seen.get(id)
        if lease is None:
            self._seen[id] = lease = Lease(self._named, id, seconds, holder=self._operations.author)
            if len(self._seen) > _REMEMBERED:
                del self._seen[next(iter(self._seen))]  # if it is still held, its time begins anew
        lease.seconds = seconds
        return lease


def _check(id: str) -> None:
    if id.startswith(PREFIX):
        raise UsageError(f"{id!r} is itself a lease: name the document, {id.removeprefix(PREFIX)!r}")


def _finish(id: str, changes: Document, transaction: Documents) -> None:
    """Change the document and release its lease."""
    transaction.set(id, merge_patched(transaction.get(id), changes))
    transaction.delete(PREFIX + id)
