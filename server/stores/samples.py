"""Figures of a served store over time, in bounded memory. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opslog.environment import format_ts

# How many samples are kept, and the interval between them at first.
_MOST = 720
_SECONDS = 1.0


class Sample(msgspec.Struct, frozen=True):
    """Figures at one moment.

    :ivar at: the time, by this server's clock.
    :ivar commits: how many commits were ever written, as far as this store has read.
    :ivar tail: how many of them are not compacted yet.
    :ivar manifest: the number of the newest manifest. Each compaction raises it.
    """

    at: str
    commits: int
    tail: int
    documents: int
    manifest: int


class Samples:
    """Keeps samples from the start on. When there are too many, it drops every second one and doubles the interval. The
    newest sample is always there.

    :param most: how many samples to keep.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._seconds = _SECONDS
        self._kept: list[tuple[float, Sample]] = []
        self._newest: Sample | None = None

    def note(self, now: float, elapsed: float, *, commits: int, tail: int, documents: int, manifest: int) -> None:
        """Add figures.

        :param now: the time, as of `Environment.time`. It may be set back.
        :param elapsed: seconds, as of `Environment.monotonic`.
        """
        self._newest = Sample(format_ts(now), commits, tail, documents, manifest)
        if self._kept and elapsed - self._kept[-1][0] < self._seconds:
            return
        if len(self._kept) >= self._most:
            self._kept = self._kept[::2]
            self._seconds *= 2
        self._kept.append((elapsed, self._newest))

    def all(self) -> Sequence[Sample]:
        """Oldest first."""
        found = [sample for _, sample in self._kept]
        return found if self._newest is None or found[-1] is self._newest else [*found, self._newest]
