"""Breakages of leases, like those in `tests.simulation.breakages`."""

from __future__ import annotations

from typing import Any

from opslog.environment import parse_ts
from opslog.format.commits import Set
from opslog.lease import _Claim, _Seen
from tests.simulation.breakages import CRASHES, Breakage, likely

# Hardly anything but workers that make short pauses.
_WORKERS: dict[str, Any] = {"agents": 1, "workers": 3, "readers": 0, "compactors": 1, "think_seconds": 0.3}


def _nothing(*arguments: object) -> None:
    """Does nothing."""


def _free(self: _Claim, transaction: Any) -> None:
    if self._lease_id in transaction:
        transaction.delete(self._lease_id)


def _since_written(self: _Claim, record: Set) -> _Seen:
    """The age of a lease comes from its `ts`."""
    now, environment = self._environment.monotonic(), self._environment
    return _Seen(record.stamp, record.author, now - (environment.time() - parse_ts(record.ts)))


def _since_claimed(self: _Claim, record: Set) -> _Seen:
    """The age counts from when the lease was first seen, whether or not it was renewed."""
    return self._seen or _Seen(record.stamp, record.author, self._environment.monotonic())


def _of_its_own(self: _Claim) -> int | None:
    """The token is the number of seconds left, which is not unique."""
    return None if self._stamp is None else int(self.remaining)


def _since_now(self: _Claim, record: Set) -> _Seen:
    """It remembers nothing of what was there before."""
    return _Seen(record.stamp, record.author, self._environment.monotonic())


LEASES = [
    Breakage(
        "finish a job without checking who has the lease",
        _Claim,
        "_check",
        _nothing,
        likely("posix", {}, **_WORKERS),
        more=((_Claim, "_decide_release", _free),),
    ),
    Breakage(
        "judge by the wall clock whether a lease is over",
        _Claim,
        "_see",
        _since_written,
        likely("s3", CRASHES, 3, skew_seconds=1e6, **_WORKERS),
    ),
    Breakage(
        "count a renewed lease from its claim",
        _Claim,
        "_see",
        _since_claimed,
        likely("posix", {}, **_WORKERS),
    ),
    Breakage(
        "give a lease a token that does not grow",
        _Claim,
        "token",
        property(_of_its_own),
        likely("s3", {}, **_WORKERS),
    ),
    Breakage(
        "keep the leases of dead workers",
        _Claim,
        "_see",
        _since_now,
        likely("s3", CRASHES, 3, **_WORKERS),
    ),
]
