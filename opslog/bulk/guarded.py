"""Writing guarded documents without an open store, in the name of other agents: for imports and Spark's jobs.

A replica that only reads finds out which documents are guarded. Their commits are written in the same way as all
transactions (`opslog.replica.deciding`), each under the name of its author. In a store without transactions this costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from opslog.backends import Backend
from opslog.chunks import batched
from opslog.environment import Environment
from opslog.format.commits import Commit
from opslog.format.documents import Schema
from opslog.log.shared import SharedLog
from opslog.replica.deciding import Deciding
from opslog.replica.loading import Loader
from opslog.replica.replica import Replica
from opslog.replica.transaction import Transaction, write

R = TypeVar("R")

# How many commits are decided together: each of them begins by copying the writes of those before it.
_TOGETHER = 1000


class GuardedWriter:
    """Finds the commits that go to the shared log, and writes them there. Used by one thread at a time.

    :param agent: the author of commits that name none.
    :ivar clock: the greatest clock that was read or written here.
    """

    def __init__(self, backend: Backend, agent: str, environment: Environment) -> None:
        loader = Loader(backend)
        read_at = environment.monotonic()
        self._replica = replica = Replica[Any](
            loader,
            loader.load(),
            read_at=read_at,
            agent=None,
            author=None,
            appender=None,
            schema=Schema(),
            buffer=None,
            compact_after=None,
            cache_bytes=0,
            environment=environment,
            included=None,
        )
        self._deciding = Deciding(replica, SharedLog(backend, replica.freshness, replica.clock, agent))

    @property
    def clock(self) -> int:
        return self._replica.clock.value

    def refresh(self) -> None:
        """Take in the writes of others; call it before `split`."""
        self._replica.refresh()

    def split(self, commits: Iterable[Commit]) -> tuple[list[Commit], list[Commit]]:
        """The commits that go to their agents' logs, and those that go to the shared log. A commit goes to the shared
        log if it writes a document that is guarded, or that an earlier one of these commits writes there. So all
        commits for the agents' logs may be written first, and the commits of every document stay in order.
        """
        plain: list[Commit] = []
        shared: list[Commit] = []
        taken: set[str] = set()
        for commit in commits:
            ids = [record.id for record in commit.records]
            if not taken.isdisjoint(ids) or self._replica.unguarded(commit) is None:
                taken.update(ids)
                shared.append(commit)
            else:
                plain.append(commit)
        return plain, shared

    def write(self, commits: Sequence[Commit], above: int = 0) -> None:
        """Write commits to the shared log unconditionally, each in the name of its agent, with the current time.

        :param above: their clocks are greater than this one.
        :raises WriteFailedError: the commits before the one that failed may be in the log.
        :raises LockedError: likewise.
        :raises CommitUnknownError: likewise.
        """
        self._replica.clock.observe(above)
        for some in batched(iter(commits), _TOGETHER):
            waiting = [self._deciding.submit(partial(write, commit)) for commit in some]
            self._deciding.decide_all()
            for each in waiting:
                each.outcome()

    def run(self, decide: Callable[[Transaction[Any]], R]) -> R:
        """The result of one transaction; as of `Deciding.run`."""
        return self._deciding.run(decide)
