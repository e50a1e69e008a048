"""Breakages of what threads and tasks of one process rely on, like those in `tests.simulation.breakages`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from opslog.aio import AsyncStore
from opslog.archive import Chosen
from opslog.errors import ClosedError, MissingFileError
from opslog.format.commits import Commit, Set
from opslog.log.freshness import Freshness
from opslog.log.reader import Cursor
from opslog.replica.following import Following
from opslog.replica.memory import Memory
from opslog.replica.state import State
from opslog.store import Store, replica_of
from tests.simulation.breakages import Breakage, likely

BUSY: dict[str, Any] = {
    "threaded": 3,
    "threads": 5,
    "think_seconds": 0.01,
    "documents": 1,
    "calls": 80,
    "compactors": 0,
    "readers": 0,
    "switching": 0.5,
}


def _nothing(self: Freshness) -> None:
    """Does nothing."""


def _take_unobserved(self: Following, commits: list[Commit], cursor: Cursor, news: list[Commit]) -> None:
    """The clock observes commits only after they can be read."""

    def note_end(state: State) -> None:
        if self.news.cursors is state.cursors:
            self.news.add(news, cursor)
        else:
            state.cursors[cursor.agent] = cursor

    self.change(lambda state: state.apply(commits, partial(note_end, state)))
    if commits:
        self.clock.observe(commits[-1].clock)


def _watch_all_at_once(self: Store[Any], poll_seconds: float = 0.2) -> Iterator[Commit]:
    """The result of a refresh belongs to the watch that made it, even if the program leaves that watch."""
    replica = replica_of(self)
    while not replica.is_closed:
        try:
            commits = self.refresh()
        except ClosedError:
            return
        yield from commits
        if not commits:
            replica.environment.sleep(poll_seconds)


async def _refresh_in_thread(self: AsyncStore[Any]) -> list[Commit]:
    """The thread takes the commits, whether or not anybody still waits for them."""
    return await asyncio.to_thread(self._store.refresh)


def _all_chosen(self: Chosen) -> list[Set]:
    """It does not check whether somebody wrote to them meanwhile."""
    return list(self.records)


def _is_always_of(self: Chosen, state: State) -> bool:
    return True


def _read_unlocked(self: Memory, query: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A read may come while a commit is only half applied."""
    try:
        return query(self.state, *args, **kwargs)
    except MissingFileError:
        return _read(self, query, *args, **kwargs)


_read = Memory.read


CONCURRENT = [
    Breakage(
        "observe a clock after its commits can be read",
        Following,
        "_take",
        _take_unobserved,
        likely("posix", {}, **BUSY, weights={"set": 1, "refresh": 4}),
    ),
    Breakage(
        "write without reading what a history has shown",
        Freshness,
        "note_shown",
        _nothing,
        likely("posix", {}, **BUSY, weights={"answer": 6, "set": 1}),
    ),
    Breakage(
        "lose the commits that a watch has not returned when it ends",
        Store,
        "watch",
        _watch_all_at_once,
        likely("s3", {}, threaded=3, leaving=0.5, think_seconds=0.1, calls=40),
    ),
    Breakage(
        "lose the commits that a cancelled refresh has read",
        AsyncStore,
        "refresh",
        _refresh_in_thread,
        likely("s3", {}, threaded=3, asynchronous=2, leaving=0.3, think_seconds=0.01),
    ),
    Breakage(
        "archive documents that were written meanwhile",
        Chosen,
        "unchanged",
        _all_chosen,
        likely("posix", {}, **BUSY, weights={"set": 1, "archive": 4}),
    ),
    Breakage(
        "read while commits are applied",
        Memory,
        "read",
        _read_unlocked,
        likely("posix", {}, **BUSY | {"calls": 240}, statements=5, weights={"batch": 4, "refresh": 2}),
    ),
]
