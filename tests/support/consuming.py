"""A consumer of changes that checks them against what it knows."""

from __future__ import annotations

from typing import Any

import opslog
from opslog.format.commits import Stamp


class Consumer:
    """The state of a program that follows a store by `changes`.

    :ivar documents: the documents of the store as of `token`.
    :ivar stamps: the stamps of all commits since the last reset.
    """

    def __init__(self) -> None:
        self.documents: dict[str, Any] = {}
        self.stamps: list[Stamp] = []
        self.token: str | None = None
        self.resets = 0

    def take(self, changes: opslog.Changes[Any]) -> None:
        """Apply changes, the last one first, because their order must not matter. Then keep their token."""
        found = list(changes)
        assert [change.id for change in found] == sorted({change.id for change in found}), "each once, in order of id"
        if changes.reset:
            assert changes.commits == ()
            self.resets += 1
            self.documents, self.stamps = {}, []
        for change in reversed(found):
            if changes.reset:
                assert not change.existed
                assert change.document is not None
            else:
                assert change.existed is (change.id in self.documents), change
            if change.document is None:
                self.documents.pop(change.id, None)  # it may have come and gone in between
            else:
                assert isinstance(change.record, opslog.Set)
                self.documents[change.id] = change.document
        assert list(changes) == found, "they may be iterated again"
        stamps = [effect.stamp for effect in changes.commits]
        assert stamps == sorted(stamps)
        self.stamps += stamps
        assert len(set(self.stamps)) == len(self.stamps), "each commit once"
        self.token = changes.token
