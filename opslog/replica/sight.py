"""What one transaction sees: the documents of a moment, and what the transactions before it in its group write.

It notes what the decision depends on, since that has to be durable before the decision takes effect.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

from opslog.errors import MissingFileError, RetryError
from opslog.format.commits import Commit, Record, Set
from opslog.format.layout import TRANSACTIONS
from opslog.log.reader import Cursor
from opslog.replica.questions import Frozen, Questions
from opslog.replica.state import View

T = TypeVar("T")
R = TypeVar("R")


class Readable(Protocol[T]):
    """What reading in a transaction needs of an open store."""

    agent: str | None

    @property
    def questions(self) -> Questions[T]: ...
    def read_frozen(self, read: Callable[[], R]) -> R: ...


class Overlay:
    """What the transactions of one group write, in their order, as each of them sees it.

    They share one of these: with a copy for each, a group of 10,000 would take gigabytes.
    """

    def __init__(self) -> None:
        # Per document its records, oldest first, and which transaction of the group wrote each.
        self._written: dict[str, list[tuple[int, Record]]] = {}

    def add(self, place: int, written: dict[str, Record]) -> None:
        """Note what a transaction writes. They come in the order of their places."""
        for id, record in written.items():
            self._written.setdefault(id, []).append((place, record))

    def get(self, id: str, place: int) -> Record | None:
        """The newest record of a document, of those written before the transaction at this place."""
        written = self._written.get(id, ())
        number = bisect_left(written, place, key=itemgetter(0))
        return written[number - 1][1] if number else None

    def before(self, place: int) -> dict[str, Record]:
        """The newest record of each document that was written before the transaction at this place."""
        # A list, since a function may have given its transaction to another thread.
        return {id: record for id in list(self._written) if (record := self.get(id, place)) is not None}


class Sight(Generic[T]):
    """The documents that one transaction reads: a view, overlaid with the writes of those before it in its group.

    :ivar place: its place in the group, from 0.
    :ivar agents: the agents whose commits were read.
    :ivar undos: per agent the clock of the newest undo in its log that affected what was read.
    :ivar missing: the part of the snapshot that was replaced and collected before it was read.
    :ivar is_early: whether it needs a stamp that a transaction before it in its group gets only by the append.
    :ivar is_late: whether it has read something that came into the state after the view was made.
    """

    def __init__(self, replica: Readable[T], view: View, overlay: Overlay, place: int) -> None:
        self.view = view
        self._overlay = overlay
        self.place = place
        self._replica = replica
        self.agents: set[str] = set()
        self.undos: dict[str, int] = {}
        self.missing: MissingFileError | None = None
        self.is_early = self.is_late = False

    @property
    def before(self) -> dict[str, Record]:
        """What those before it in its group write. Takes time with the size of the group."""
        return self._overlay.before(self.place)

    def record(self, id: str) -> Record | None:
        record = self._overlay.get(id, self.place)
        if record is None:
            try:
                record, undos = self._replica.read_frozen(lambda: (self.view.record(id), self.view.undone(id)))
            except MissingFileError as error:
                raise self._gone(error) from error
            if record is not None:
                self.agents.add(record.agent)
            self._note_undos(undos)
        return record

    def records(self, overlay: dict[str, Record]) -> Iterator[Set]:
        self._note_undos(self._replica.read_frozen(self.view.undone))
        try:
            for record in self._replica.read_frozen(partial(self.view.records, self.before | overlay, self.agents)):
                self.agents.add(record.agent)
                yield record
        except MissingFileError as error:
            raise self._gone(error) from error

    def asking(self, overlay: dict[str, Record]) -> tuple[Questions[T], Frozen]:
        # A document may not match because of a commit in any log, and an index does not say in which. So this depends
        # on all logs.
        self._note_undos(self._replica.read_frozen(self.view.undone))
        self.agents |= self._replica.read_frozen(lambda: set(self.view.state.cursors))
        if self._replica.agent is not None:
            self.agents.add(self._replica.agent)
        return self._replica.questions, self._replica.questions.at(self.view, self.before | overlay)

    def rest_on(self, other: Sight[T]) -> None:
        """Note that a decision made on another view also holds on this one, so it depends on the same commits."""
        self.agents |= other.agents
        self._note_undos(other.undos.items())

    def _note_undos(self, undos: Iterable[tuple[str, int]]) -> None:
        for agent, clock in undos:
            self.undos[agent] = max(clock, self.undos.get(agent, 0))

    def undoable(self, author: str) -> Commit | None:
        self.is_early = self.is_early or bool(self.before)
        return self._replica.read_frozen(partial(self._undoable, author))

    def _undoable(self, author: str) -> Commit | None:
        # What an undo takes back is not part of the view: the state knows it.
        state = self.view.state
        end = state.cursors.get(TRANSACTIONS)
        self.is_late = self.is_late or state.is_torn or (end is not None and end.commits != self.view.end.commits)
        return state.merge.undoable(author)

    def shared_end(self) -> Cursor:
        self.agents.add(TRANSACTIONS)
        return self.view.end

    def note_stamp(self, id: str) -> None:
        self.is_early = self.is_early or isinstance(self._overlay.get(id, self.place), Set)

    def _gone(self, error: MissingFileError) -> RetryError:
        """Note that this file is missing, and return the error to raise."""
        self.missing = error
        return RetryError(f"{error.path} was replaced and collected before it was read: begin again")
