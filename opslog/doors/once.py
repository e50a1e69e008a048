"""Requests that may come again, because their response was lost, and are still carried out only once."""

from __future__ import annotations

import hashlib
import uuid

from opslog.environment import parse_ts
from opslog.errors import ExpiredKeyError, UsageError
from opslog.replica.keys import Done, Keys, key_text
from opslog.replica.transaction import Transaction

# How far the clocks of clients may be off, in seconds, where the grace period is long enough for that.
_SKEW_SECONDS = 60.0


class Once:
    """A request with a key, by which a repetition is recognised. See `opslog.replica.keys`.

    :param key: a UUID of version 7, made when the request was first sent.
    :param content: everything that the request says. A request with other content must not have the same key.
    :param now: the time, in seconds since 1970.
    :param grace_seconds: how long keys must be known.
    :ivar done: what the request wrote when it came before, once `begin` has checked; None: nothing.
    :raises UsageError: the key is not such a UUID, or was made in the future.
    """

    def __init__(self, key: str, content: bytes, now: float, grace_seconds: float) -> None:
        try:
            parsed = uuid.UUID(key)
        except ValueError:
            parsed = uuid.UUID(int=0)
        if parsed.version != 7 or len(key) != 36:
            raise UsageError(f"a key is a UUID of version 7, which says when it was made, not {key!r}")
        self.key = str(parsed)
        self.request = hashlib.sha256(content).hexdigest()[:16]
        self.done: Done | None = None
        self._now, self._grace = now, grace_seconds
        self._made = (parsed.int >> 80) / 1000
        # What was collected is older than the grace period. A new key may say that it is older than it is (by a clock
        # that is behind), and may have been used earlier than it says (by one that is ahead): both within the period.
        self._skew = min(_SKEW_SECONDS, grace_seconds / 2)
        if self._made > now + self._skew:
            raise UsageError(
                f"the key {key} was made more than {self._skew:g} s in the future: set the clock of the machine that "
                "made it"
            )

    @property
    def until(self) -> float:
        """The earliest time at which the key may be forgotten, in seconds since 1970."""
        return self._grace + (self._now if self.done is None else parse_ts(self.done.ts))

    def begin(self, transaction: Transaction[dict[str, object]], keys: Keys, author: str) -> Done | None:
        """What this request wrote when it came before. None: nothing, and the transaction now writes it.

        :raises UsageError: another request had this key.
        :raises ExpiredKeyError: the key is too old to tell.
        """
        keys.forget_before(self._now - self._grace)
        done = self.done = keys.find(author, self.key, transaction.search_log())
        if done is None:
            if not keys.covers(self._made - self._skew):
                raise ExpiredKeyError(
                    f"the key {self.key} is so old that the log of its time was collected: nobody can say whether this "
                    "request was carried out. Nothing was written now"
                )
            transaction.key = key_text(self.key, self.request)
        elif done.request != self.request:
            raise UsageError(f"another request had the key {self.key}: make a new key for each request")
        return done
