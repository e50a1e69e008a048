"""The indexes of an open store: made at the first question that needs them, corrected when documents change, and
dropped when all of them take too much memory.

Nothing of them is stored. A store that is asked no question has none, and pays for none.

Indexes belong to a state. Before a document changes, its id is noted (`note`); the next question reads the noted
documents, as they are then, and corrects the indexes. So a commit costs a note, and no commit is ever half applied. A
state that was loaded anew takes the indexes over, with a note for every document that can differ
(`State.take_indexes`).

Other threads read and write while an index is made. `begin` returns a `Building`, in which changes are noted from then
on; `add` takes over the index with those notes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol
from weakref import WeakSet

from opslog.format.commits import Set
from opslog.format.documents import Document
from opslog.query.index import Index
from opslog.query.paths import Path
from opslog.query.question import keys_at

# How much memory the indexes of a store may take, by their own estimate. The least recently used are dropped first.
INDEX_BYTES_MAX = 256 * 1024 * 1024
# So many questions that an index would help are answered without it after it was dropped for lack of memory. To make an
# index takes as long as three of them, so indexes that do not fit together are not made in turns.
_UNHELPED = 3

# With more changes than this many and this share of the documents, it costs about as much to read everything.
_CHANGES_MAX, _CHANGED_SHARE = 1000, 10
# With more changes while an index is made, it is not made.
_BUILDING_CHANGES_MAX = 100_000


class Lookup(Protocol):
    """The part of a state that corrections need."""

    def get(self, id: str) -> Set | None: ...


class Building:
    """An index that is being made.

    :ivar changed: the documents that have changed since.
    """

    def __init__(self) -> None:
        self.changed: set[str] = set()


class Indexes:
    """The indexes of a state. Does no locking of its own.

    :param read: returns the document of a record.
    :ivar by_path: the indexes, the most recently used one last.
    :ivar scanned: per path, how many documents were read by questions with a limit, in place of an index.
    """

    def __init__(self, read: Callable[[Set], Document]) -> None:
        self._read = read
        self.by_path: dict[Path, Index] = {}
        self.scanned: Counter[Path] = Counter()
        # Paths whose index did not fit, and for how many questions it is not made again; None: it never fits.
        self._dropped: dict[Path, int | None] = {}
        self._changed: set[str] = set()
        # More of them, and the indexes are dropped.
        self._changes_max = _CHANGES_MAX
        self._building: WeakSet[Building] = WeakSet()
        # Whether an exception ended a correction half-way.
        self._is_torn = False

    def note(self, id: str) -> None:
        """A document is about to change."""
        if self.by_path:
            self._changed.add(id)
            if len(self._changed) > self._changes_max:
                self.drop()
        if self._building:
            for building in list(self._building):
                building.changed.add(id)
                if len(building.changed) > _BUILDING_CHANGES_MAX:
                    self._building.discard(building)

    def note_all(self, ids: Iterable[str]) -> None:
        """Likewise for many."""
        for id in ids:
            self.note(id)

    def drop(self) -> None:
        """Drop all indexes, also those that are being made."""
        self.by_path.clear()
        self.scanned.clear()
        self._dropped.clear()
        self._changed.clear()
        self._building.clear()
        self._is_torn = False

    def update(self, state: Lookup) -> None:
        """Correct the indexes by what has changed.

        :raises OpslogError: a document cannot be read; it counts as changed still.
        """
        if self._is_torn:
            self.drop()
        if not self._changed or not self.by_path:
            self._changed.clear()
            return
        # First everything that can fail.
        documents = {}
        for id in self._changed:
            record = state.get(id)
            documents[id] = None if record is None else (self._read(record), record)
        corrections = []
        for path, index in self.by_path.items():
            keys = keys_at(path)
            corrections.append((index, {id: found and tuple(keys(*found)) for id, found in documents.items()}))
        self._is_torn = True
        for index, changes in corrections:
            index.change(changes)
        self._changed.clear()
        self._is_torn = False
        self._limit()

    def begin(self) -> Building:
        """An index is being made of what the state has now."""
        building = Building()
        self._building.add(building)
        return building

    def add(self, index: Index, building: Building) -> None:
        """Take over an index, unless everything was dropped since it was begun."""
        if building not in self._building:
            return
        self._building.discard(building)
        self._changed |= building.changed
        self.by_path[index.path] = index
        self._dropped.pop(index.path, None)
        self._limit()

    def use(self, path: Path) -> Index | None:
        """The index of a path, which counts as used now."""
        index = self.by_path.pop(path, None)
        if index is not None:
            self.by_path[path] = index
        return index

    def wants(self, path: Path) -> bool:
        """Whether a question is to make the index of a path, which would help it. Counts the question."""
        if path in self.by_path:
            return False
        unhelped = self._dropped.get(path, 0)
        if unhelped:
            self._dropped[path] = unhelped - 1
        return unhelped == 0

    def is_dropped(self, path: Path) -> bool:
        """Whether there is no index of a path because all of them take too much memory."""
        return path in self._dropped

    def _limit(self) -> None:
        """Drop the least recently used ones, while all of them take too much memory."""
        while self.by_path and sum(index.bytes for index in self.by_path.values()) > INDEX_BYTES_MAX:
            path = next(iter(self.by_path))
            del self.by_path[path]
            self._dropped[path] = _UNHELPED if self.by_path else None
        documents = max(map(len, self.by_path.values()), default=0)
        self._changes_max = _CHANGES_MAX + documents // _CHANGED_SHARE
