"""Claims for those who stand at a door: `opslog.Lease` by the id of its document, or by a condition that says which
documents are to be worked on.

A lease that somebody else has is over when its stamp has been the same for its duration, as seen from here. So what was
seen has to be remembered: one `Leases` serves a session for as long as it lasts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from opslog.doors.operations import Documents, Operations, merge_patched
from opslog.errors import LeaseLostError, UsageError
from opslog.format.commits import Set
from opslog.format.documents import Document
from opslog.lease import PREFIX, Lease
from opslog.query.conditions import Condition, compiled
from opslog.query.question import OrderBy, Where, parse, question
from opslog.replica.deciding import ATTEMPTS
from opslog.store import replica_of

R = TypeVar("R")

# How many leases are remembered.
_REMEMBERED = 100_000


class Claimed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a claim.

    :ivar claimed: whether the document is held now.
    :ivar id: the document; empty where none was free.
    :ivar data: as it is now; None: there is no such document.
    :ivar stamp: of the document.
    :ivar seconds: for how long it is held, without another claim. Where somebody else holds it: how long that lasts at
        the most, unless it is renewed.
    :ivar holder: who holds it.
    :ivar token: grows with each claim over all holders, for systems outside to refuse late workers.
    """

    claimed: bool
    id: str = ""
    data: Document | None = None
    stamp: str | None = None
    seconds: float = 0.0
    holder: str | None = None
    token: int | None = None


class _Named:
    """What a lease needs of a store, in the name of an author; and the transaction that is being decided.

    :ivar deciding: while a function decides.
    """

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self.replica = self._replica = replica_of(operations.store)
        self.deciding: Documents | None = None

    def record(self, id: str) -> Set | None:
        return self._operations.store.record(id)

    def transact(self, function: Callable[[Documents], R], *, attempts: int = ATTEMPTS) -> R:
        def decide(transaction: Documents) -> R:
            self.deciding = transaction
            return function(transaction)

        return self._operations.decide(decide, attempts=attempts)[0]


class Leases:
    """The leases of one session. Safe to use from many threads: claims of one session are made one after the other."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._named = _Named(operations)
        self._leases: dict[str, Lease] = {}
        self._lock = threading.Lock()

    def claim(self, id: str, seconds: float, where: Where | None = None) -> Claimed:
        """Claim a document, or renew what is held.

        :param where: only if the document fulfils this condition when it is claimed.
        :raises UsageError: this is no duration, or no document that can be claimed.
        """
        with self._lock:
            return self._claim(id, seconds, None if where is None else parse(where))

    def claim_one(self, where: Where, seconds: float, order_by: OrderBy | None = None) -> Claimed:
        """Claim the first document that fulfils a condition and that nobody holds.

        :returns: with an empty id, where there is none.
        """
        asked = question(where, order_by, None, 0)
        with self._lock:
            self._operations.store.refresh()
            matches, _ = self._named.replica.questions.matches(asked, self._operations.store.records)
            ids = [record.id for record, _ in matches if not record.id.startswith(PREFIX)]
            for id in ids:
                lease = self._lease(id, seconds)
                if lease.stamp is None and lease.observe():
                    claimed = self._claim(id, seconds, asked.condition)
                    if claimed.claimed:
                        return claimed
        return Claimed(False)

    def _claim(self, id: str, seconds: float, condition: Condition | None) -> Claimed:
        if id.startswith(PREFIX):
            raise UsageError(f"{id!r} is itself a lease: claim {id.removeprefix(PREFIX)!r}")
        lease = self._lease(id, seconds)
        lease.claim(None if condition is None else partial(self._fulfils, id, condition))
        record = self._named.record(id)
        data, stamp = (None, None) if record is None else (record.document, str(record.stamp))
        if lease.stamp is not None:
            return Claimed(True, id, data, stamp, lease.seconds, lease.holder, lease.token)
        theirs = self._named.record(PREFIX + id)
        wait = theirs.document.get("seconds", 0.0) if theirs is not None else 0.0
        return Claimed(False, id, data, stamp, wait, lease.holder)

    def _fulfils(self, id: str, condition: Condition, document: Document | None) -> bool:
        assert self._named.deciding is not None
        record = self._named.deciding.record(id)
        return record is not None and document is not None and compiled(condition)(document, record)

    def _lease(self, id: str, seconds: float) -> Lease:
        lease = self._leases.get(id)
        if lease is None:
            self._leases[id] = lease = Lease(self._named, id, seconds, holder=self._operations.author)
            if len(self._leases) > _REMEMBERED:
                self._forget()
        lease.seconds = seconds
        return lease

    def _forget(self) -> None:
        """Half of what is not held here, the oldest first. If it is still there, its time begins anew."""
        for id in [id for id, lease in self._leases.items() if lease.stamp is None][: _REMEMBERED // 2]:
            del self._leases[id]

    def release(self, id: str, *, data: Document | None = None, changes: Document | None = None) -> str | None:
        """Let others have a document at once; with its last value, or changes of it, in the same transaction.

        :param data: the document's new value.
        :param changes: as of `Operations.modify`.
        :returns: the stamp of the document, as it is now; None: there is none.
        :raises LeaseLostError: it is not held here any more; nothing was written.
        """
        if data is not None and changes is not None:
            raise UsageError("give the document's last value or changes of it, not both")
        with self._lock:
            lease = self._leases.get(id)
            if lease is None or lease.stamp is None:
                record = self._named.record(PREFIX + id)
                who = "nobody holds it" if record is None else f"{record.author} holds it"
                raise LeaseLostError(f"{id!r} is not held by this session: {who}. Nothing was written", id, record)
            if data is None and changes is None:
                lease.release()
            elif data is not None:
                lease.finish(data)
            else:
                lease.transact(partial(_finish, id, changes))
            del self._leases[id]
            now = self._named.record(id)
        return None if now is None else str(now.stamp)


def _finish(id: str, changes: Document | None, transaction: Documents) -> None:
    """Change the document and release its lease."""
    transaction.set(id, merge_patched(transaction.get(id), changes or {}))
    transaction.delete(PREFIX + id)
