"""The stage for an interrupted call: a store of each kind, to which another agent writes, too."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import opslog
from opslog.backends import memory
from opslog.format.commits import Commit
from tests.support import bucket

Store = opslog.Store[dict[str, Any]]
Documents = dict[str, Any]
Storage = Literal["memory", "directory", "bucket"]
Durability = Literal["fsync", "buffered"]

SETTINGS = opslog.Settings(undo_window=2, grace_seconds=0.0)
"""So a compaction compacts the few commits there are, and has something to collect."""

_HOUR = 3600.0
"""Buffers wait for longer than any test takes, so only the calls decide what is written, and when."""

_numbers = itertools.count(1)


class Setting(NamedTuple):
    storage: Storage
    durability: Durability

    def __str__(self) -> str:
        return f"{self.storage}-{self.durability}"


STORAGES: tuple[Storage, ...] = ("memory", "directory", "bucket")
DURABILITIES: tuple[Durability, ...] = ("fsync", "buffered")
SETTINGS_OF_ALL = [Setting(storage, durability) for storage in STORAGES for durability in DURABILITIES]


class Stage:
    """Agent "a" has `store` open, and `other` is agent "b", who wrote something that "a" has not read yet.

    :param options: the options of the store.
    :ivar handed: (agent, clock) of each commit that was handed out to "a", in order.
    :ivar of_others: (agent, clock) of each commit that "b" has written, in order.
    :ivar opened: further stores that calls have opened.
    :ivar tasks: the tasks that calls have started.
    """

    def __init__(self, setting: Setting, **options: Any) -> None:
        self.setting = setting
        self._number = next(_numbers)
        self._folder: Path | None = None
        if setting.storage == "directory":
            self._folder = Path(tempfile.mkdtemp(prefix="opslog-interrupts-"))
            self.url = str(self._folder / "store")
        else:
            self.url = f"{setting.storage}://interrupts-{self._number}"
        self.handed: list[tuple[str, int]] = []
        self.of_others: list[tuple[str, int]] = []
        self.opened: list[Store] = []
        self.tasks: list[asyncio.Future[None]] = []
        self.store = self.open("a", durability=setting.durability, buffer_seconds=_HOUR, settings=SETTINGS, **options)
        self.store["x"] = {"v": 1}
        self.store["y"] = {"v": 1}
        self.other = self.open("b")
        self.write_other("b-1")
        self.hand_out(self.store.refresh())
        self.store["x"] = {"v": 2}
        self.store["y"] = {"v": 2}
        self.store.flush()
        self.write_other("b-2")
        self.write_other("b-3")

    def open(self, agent: str, **options: Any) -> Store:
        return opslog.open(self.url, agent=agent, **({"compact_after": None} | options))

    def write_other(self, id: str, v: int = 1) -> None:
        self.other[id] = {"v": v}
        self.of_others.append(("b", self.other.stats().clock))

    def url_of(self, name: str) -> str:
        """The URL of another store."""
        return f"{self.url}-{name}"

    def hand_out(self, commits: Iterable[Commit]) -> None:
        self.handed.extend((commit.agent, commit.clock) for commit in commits)

    def documents(self) -> Documents:
        """The documents that a fresh reader finds."""
        with opslog.open(self.url, read_only=True) as fresh:
            return dict(fresh.items())

    def remove(self) -> None:
        """Remove what was written, from disk or from memory."""
        if self._folder is not None:
            shutil.rmtree(self._folder)
        for shared in (memory._shared, bucket.BUCKETS):
            for name in [name for name in shared if name.split("-")[:2] == ["interrupts", str(self._number)]]:
                del shared[name]
