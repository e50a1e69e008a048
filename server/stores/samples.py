"""Figures of a served store over time, in bounded memory. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from opslog.environment import format_ts

# How many samples are kept, and how far apart they are at first.
_MOST = 720
_SECONDS = 1.0


class Sample(msgspec.Struct, frozen=True):
    """Figures at one time.

    :ivar at: by this server's clock.
    :ivar commits: how many were ever written, as far as seen.
    :ivar tail: how many of them are not compacted.
    :ivar manifest: number of the newest manifest; a compaction makes a greater one.
    """

    at: str
    commits: int
    tail: int
    documents: int
    manifest: int


class Samples:
    """Keeps samples from its beginning on. Where there are too many, every second one goes, and they are twice as far
    apart from then on. The newest one is always there.

    :param most: how many are kept.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._seconds = _SECONDS
        self._kept: list[tuple[float, Sample]] = []
        self._newest: Sample | None = None

    def note(self, now: float, *, commits: int, tail: int, documents: int, manifest: int) -> None:
        """Take in figures.

        :param now: in seconds, as of `Environment.time`.
        """
        self._newest = Sample(format_ts(now), commits, tail, documents, manifest)
        if self._kept and now - self._kept[-1][0] < self._seconds:
            return
        if len(self._kept) >= self._most:
            self._kept = self._kept[::2]
            self._seconds *= 2
        self._kept.append((now, self._newest))

    def all(self) -> Sequence[Sample]:
        """Oldest first."""
        found = [sample for _, sample in self._kept]
        return found if self._newest is None or found[-1] is self._newest else [*found, self._newest]
