"""An object storage with a clock that is set by hand, also for all its users: for processes that are idle or paused for
days."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from contextlib import closing
from typing import Any

import opslog
from opslog.backends import Backend, open_backend
from opslog.backends.holders import Holders
from opslog.compaction.compact import Compaction, compact_unlocked
from opslog.environment import Environment
from opslog.format.commits import Seal, decode_commits
from opslog.format.layout import segment_path
from opslog.log.reader import list_log
from opslog.snapshot.manifests import ManifestStore
from tests.support.bucket import BUCKETS, Bucket, Request

DAY = 86400.0
EPOCH = 1_800_000_000.0
_numbers = itertools.count()

Store = opslog.Store[dict[str, Any]]


class World:
    """A bucket with a clock that is set by hand, also for all its users."""

    def __init__(self) -> None:
        self.url = f"bucket://delayed-seals-{next(_numbers)}"
        self.seconds = 0.0
        self.environment = Environment(time=self.now, monotonic=lambda: self.seconds)
        self.unaware = Environment(time=self.now, monotonic=lambda: 0.0)
        """For processes whose monotonic clock does not count a pause."""
        with self.open("a", settings=opslog.Settings(undo_window=2, grace_seconds=30.0)):
            """Creates the store."""

    def now(self) -> float:
        return EPOCH + self.seconds

    @property
    def bucket(self) -> Bucket:
        return BUCKETS[self.url.removeprefix("bucket://")]

    @property
    def backend(self) -> Backend:
        return open_backend(self.url, now=self.now)

    def open(self, agent: str, **options: Any) -> Store:
        options = {"environment": self.environment, "now": self.now, "compact_after": None, **options}
        return opslog.open(self.url, agent=agent, **options)

    def documents(self) -> dict[str, Any]:
        with opslog.open(self.url, read_only=True, now=self.now) as store:
            return dict(store.items())

    def compact(self, environment: Environment | None = None) -> Compaction:
        with closing(self.backend) as backend:
            return compact_unlocked(backend, environment or self.environment)

    def compact_beyond(self, agent: str) -> None:
        """Others write, seal, compact and collect, until none of this agent's segments is left."""
        with self.open("b") as b:
            for number in range(30):
                b["busy"] = {"n": number}
            for number in range(4):
                b["y"] = {"n": number}
                self.compact()
                self.seconds += 60
        assert list_log(self.backend, agent) == []

    def segments(self, agent: str) -> list[int]:
        return [segment.number for segment in list_log(self.backend, agent)]


class Nobody(Holders):
    """No name is ever held: each handle stands for a process of its own."""

    def take(self, name: Hashable, holder: object) -> bool:
        return True


def delay_seal(world: World, agent: str, meanwhile: Callable[[], None]) -> Compaction:
    """A compaction is about to seal a log, and is paused before its request is carried out."""

    def pause(request: Request) -> None:
        if request.method == "put_new" and request.key.startswith(f"prefix/ops/{agent}/"):
            world.bucket.fault = lambda request: None
            world.seconds += 120  # its leases run out
            meanwhile()

    world.bucket.fault = pause
    return world.compact()


def leave_delayed_seal(world: World, agent: str = "a") -> None:
    """Leaves the delayed seal of a log under a number that others sealed, compacted and collected."""
    assert delay_seal(world, agent, lambda: world.compact_beyond(agent)).number is None
    (number,) = world.segments(agent)
    (seal,) = decode_commits(world.backend.read(segment_path(agent, number)), "", 0)
    assert isinstance(seal, Seal)
    newest = ManifestStore(world.backend).newest()
    assert newest.cut[agent].segment > number
    assert newest.clock > seal.clock
