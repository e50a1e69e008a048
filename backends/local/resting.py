"""Appenders that rest between two appends to a log with many writers: their files stay open, but are not locked.

Opening and closing the lock file and the segment, and listing the log's directory, took half of the time of an append,
the fdatasync not counted. An appender that resumes checks what may have changed: see `FsAppender.resume`.
"""

from __future__ import annotations

from contextlib import suppress

from opslog.backends.local.fs_log import FsAppender
from opslog.errors import LockedError


class Resting:
    """Keeps at most one resting appender for each log. Safe to use from many threads: an appender that was taken out
    belongs to one thread alone."""

    def __init__(self) -> None:
        self._appenders: dict[str, FsAppender] = {}
        self._is_closed = False

    def resumed(self, agent: str, newest: int) -> FsAppender | None:
        """Take out the appender of this log, with its locks taken again. None if a new appender is needed.

        :param newest: as in `FsAppender.settle`.
        :raises LockedError: another process has the name.
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
        """Release an appender's locks, so that others can append, and keep it. Idempotent.

        :param mine: a list of the appender. The list is emptied, since another thread may use the appender from now on.
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
        """Close all appenders, and those that come to rest later. Idempotent."""
        self._is_closed = True
        while self._appenders:
            with suppress(KeyError):  # another thread took the last one
                self._appenders.popitem()[1].close()
