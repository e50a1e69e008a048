"""Which documents of a snapshot may be guarded, without reading it.

A writer has to know of each document that it sets whether a transaction wrote it last. The manifest, which it has read
anyway, says of each part of the snapshot of which ids the record is from the shared log, by their hashes. All others
cost no lookup. What is found here is then looked up, so a collision of hashes changes no answer; nor does a newer run
in which a plain record stands over the one that is meant.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from opslog.format.hashes import decode_hashes, id_hash
from opslog.format.manifest import Run


class SharedIds:
    """The ids that may have a record from the shared log in one of some runs. Costs the memory of as many numbers.

    :ivar hashes: of all that have one, and of hardly any others, in the parts of which it is known.
    :ivar is_complete: whether these are all parts.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        self.hashes: set[int] = set()
        # Per run the first and the last ids of those of its parts of which it is not known.
        self._unknown: list[tuple[list[str], list[str]]] = []
        for run in runs:
            unknown = [part for part in run.parts if not isinstance(part.shared, bytes)]
            if unknown:
                self._unknown.append(([part.first for part in unknown], [part.last for part in unknown]))
            for part in run.parts:
                if isinstance(part.shared, bytes):
                    self.hashes.update(decode_hashes(part.shared))

    @property
    def is_complete(self) -> bool:
        return not self._unknown

    def may_have(self, id: str) -> bool:
        """Whether an id may have such a record."""
        if id_hash(id) in self.hashes:
            return True
        for firsts, lasts in self._unknown:
            number = bisect_right(firsts, id) - 1
            if number >= 0 and id <= lasts[number]:
                return True
        return False
