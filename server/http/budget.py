"""One limit for the memory that unanswered requests take, over all connections."""

from __future__ import annotations

from threading import Lock
from types import TracebackType

from opslog.server.protocol.refusals import Refused

_SMALL_SHARE = 8
_RETRY_SECONDS = 1
# Answers up to this length get through while long ones fill the budget.
_SMALL_ANSWER = 64 * 1024


class Budget:
    """Counts the bytes of unanswered requests that are in memory, and of long answers. Safe to use from many threads.

    A request that does not fit is refused, and its client tries again. Waiting for room could be a deadlock: every
    waiting request would hold the part of its body that has already arrived.

    :param bytes_max: the limit. Requests that arrive in one read may exceed it by an eighth, so that short appends get
        through while long bodies fill the budget.
    :ivar held: bytes held now.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        self.lock = Lock()

    def holding(self) -> Holding:
        return Holding(self)


class Holding:
    """The share of one request or connection. As a context manager it releases the share at the end.

    :ivar count: bytes.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._is_over = False
        self.count = 0

    def hold(self, count: int, *, small: bool = False) -> None:
        """Change the share to `count` bytes.

        :param small: the request arrived in one read.
        :raises Refused: 503, there is no room; the share is unchanged.
        """
        budget = self._budget
        with budget.lock:
            more = count - self.count
            room = budget.bytes_max + (budget.bytes_max // _SMALL_SHARE if small else 0)
            # A thread may still work for a request that has ended: nobody would release what it holds from then on.
            if more > 0 and (self._is_over or budget.held + more > room):
                retry = [(b"retry-after", b"%d" % _RETRY_SECONDS)]
                raise Refused(503, "too many requests are under way: try again", retry)
            budget.held += more
            self.count = count

    def hold_answer(self, count: int) -> None:
        """Change the share to an answer of `count` bytes, in place of the request's body. One that is longer than the
        whole budget needs all of it.

        :raises Refused: as of `hold`.
        """
        self.hold(min(count, self._budget.bytes_max), small=count <= _SMALL_ANSWER)

    def release(self) -> None:
        self.hold(0)

    def __enter__(self) -> Holding:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over = True
        self.release()
