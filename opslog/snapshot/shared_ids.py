"""Which documents may be guarded, without reading the snapshot.

Before it sets a document, a writer must know whether a transaction wrote it last. The manifest, which the writer has
read anyway, lists for each part of the snapshot the hashes of the ids whose record is from the shared log. The hashes
of the ids that transactions have written since the snapshot are added to them. An id with no such hash needs no lookup.
An id with such a hash is looked up, so neither a collision of hashes nor a plain record in a newer run makes the answer
wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from opslog.format.hashes import HashedIds
from opslog.format.manifest import Run


class SharedIds:
    """The ids that may have a record from the shared log. Takes the memory of a number per id.

    :param runs: the runs of the snapshot.
    :param ids: the ids that transactions have written since.
    :ivar hashed: the ids that the parts list, and `ids`.
    :ivar is_complete: whether all parts list their hashes.
    """

    def __init__(self, runs: Iterable[Run], ids: Iterable[str] = ()) -> None:
        self.hashed = HashedIds()
        # For each run, the first and last ids of its parts without such a list.
        self._unknown: list[tuple[list[str], list[str]]] = []
        for run in runs:
            unknown = [part for part in run.parts if not isinstance(part.shared, bytes)]
            if unknown:
                self._unknown.append(([part.first for part in unknown], [part.last for part in unknown]))
            for part in run.parts:
                if isinstance(part.shared, bytes):
                    self.hashed.update(part.shared)
        self.is_complete = not self._unknown
        self.add(ids)

    def add(self, ids: Iterable[str]) -> None:
        """Add the ids of records from the shared log."""
        for id in ids:
            self.hashed.add(id)

    def may_have(self, id: str) -> bool:
        """Whether an id may have a record from the shared log."""
        if id in self.hashed:
            return True
        for firsts, lasts in self._unknown:
            number = bisect_right(firsts, id) - 1
            if number >= 0 and id <= lasts[number]:
                return True
        return False
