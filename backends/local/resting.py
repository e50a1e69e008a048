"""Appenders that rest between two appends to a log with many writers: their files are open, and not locked.

To open and close the lock file and the segment, and to list the log's directory, took half of the time of an append,
less the fdatasync. What may have changed while an appender rested is checked when it resumes: see `FsAppender.resume`.
"""

from __future__ import annotations

from contextlib import suppress

from opslog.backends.local.fs_log import FsAppender
from opslog.errors import LockedError


class Resting:
    """One appender at most for each log. Safe to use from many threads: whoever takes one out has it alone."""

    def __init__(self) -> None:
        self._appenders: dict[str, FsAppender] = {}
        self._is_closed = False

    def resumed(self, agent: str, newest: int) -> FsAppender | None:
        """The appender of this log, with its locks again; None: a new one is needed.

        :param newest: as of `FsAppender.settle`.
        :raises LockedError: somebody else has the name.
        """
        appender = self._appenders.pop(agent, None)
        if appender is None:
            return None
        try:
            if appender.resume(newest):
                return appender
        except LockedError:
            self._appenders[agent] = appender
            raise
        except BaseException:
            appender.close()
            raise
        appender.close()
        return None

    def rest(self, agent: str, mine: list[FsAppender]) -> None:
        """Let others append. Idempotent.

        :param mine: the appender. Once it rests, another thread may have it, and it is taken out.
        """
        if not mine or not mine[0].rest():
            return
        appender, former = mine.pop(), self._appenders.pop(agent, None)
        self._appenders[agent] = appender
        if former is not None:
            former.close()
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Close all files, and those of whoever comes to rest later. Idempotent."""
        self._is_closed = True
        while self._appenders:
            with suppress(KeyError):  # somebody else is at it
                self._appenders.popitem()[1].close()
