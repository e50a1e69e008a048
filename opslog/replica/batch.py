"""Batches under construction: ops that are visible to their own thread and to nobody else, until they are committed."""

from __future__ import annotations

import msgspec

from opslog.format.commits import Delete, DeleteOp, Record, Set, SetOp


class OpenBatch:
    """The ops of one ``with store.batch()`` block, of one thread, with what they make of each document."""

    def __init__(self, outer: OpenBatch | None) -> None:
        self.outer = outer
        self.ops: list[SetOp | DeleteOp] = []
        self.overlay: dict[str, Record] = dict(outer.overlay) if outer else {}

    def set(self, id: str, data: msgspec.Raw, v: int) -> None:
        self.ops.append(SetOp(id, data, v))
        self.overlay[id] = Set("", 0, "", id, data, v)

    def delete(self, id: str, archived: str | None) -> None:
        self.ops.append(DeleteOp(id, archived))
        self.overlay[id] = Delete("", 0, "", id, archived)

    def merge_into_outer(self) -> None:
        """An inner block that ends well becomes part of the outer one; one that fails is forgotten alone."""
        assert self.outer is not None
        self.outer.ops += self.ops
        self.outer.overlay = self.overlay
