"""One limit for the memory that unanswered requests take, over all connections."""

from __future__ import annotations

from types import TracebackType

from opslog.server.protocol.refusals import Refused

_SMALL_SHARE = 8
_RETRY_SECONDS = 1


class Budget:
    """Counts the bytes of unanswered requests that are in memory.

    A request that does not fit is refused, and its client tries again. Waiting for room could be a deadlock: every
    waiting request would hold the part of its body that has already arrived.

    :param bytes_max: the limit. Requests that arrive in one read may exceed it by an eighth, so that short appends get
        through while long bodies fill the budget.
    :ivar held: bytes held now.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0

    def holding(self) -> Holding:
        return Holding(self)


class Holding:
    """The share of one request or connection. As a context manager it releases the share at the end.

    :ivar count: bytes.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.count = 0

    def hold(self, count: int, *, small: bool = False) -> None:
        """Change the share to `count` bytes.

        :param small: the request arrived in one read.
        :raises Refused: 503, there is no room; the share is unchanged.
        """
        budget, more = self._budget, count - self.count
        room = budget.bytes_max + (budget.bytes_max // _SMALL_SHARE if small else 0)
        if more > 0 and budget.held + more > room:
            retry = [(b"retry-after", b"%d" % _RETRY_SECONDS)]
            raise Refused(503, "too many requests are under way: try again", retry)
        budget.held += more
        self.count = count

    def release(self) -> None:
        self.hold(0)

    def __enter__(self) -> Holding:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
