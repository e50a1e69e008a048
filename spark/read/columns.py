"""Records and commits as columns of Arrow, the form that Spark takes. Does not use Spark.

Text is passed as the stored bytes, as one buffer per column: documents are never decoded on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
import pyarrow as pa

from opslog.chunks import packed
from opslog.format.commits import Batch, Commit, Delete, DeleteOp, Record, Set, SetOp, Undo
from opslog.tables.arrow import texts

T = TypeVar("T")

# The most rows that are passed together.
ROWS = 10_000

# The most bytes of documents that are passed together. A longer document is passed by itself.
BYTES = 8 * 1024 * 1024

STATE = pa.schema(
    [
        ("id", pa.string()),
        ("data", pa.string()),
        ("clock", pa.int64()),
        ("agent", pa.string()),
        ("ts", pa.string()),
        ("v", pa.int64()),
        ("by", pa.string()),
        ("tx", pa.string()),
    ]
)
ARCHIVE = pa.schema([("period", pa.string()), *STATE])
OPS = pa.schema(
    [
        ("agent", pa.string()),
        ("clock", pa.int64()),
        ("ts", pa.string()),
        ("op", pa.string()),
        ("id", pa.string()),
        ("data", pa.string()),
        ("v", pa.int64()),
        ("archived", pa.string()),
        ("target", pa.int64()),
        ("place", pa.int32()),
        ("segment", pa.int64()),
        ("offset", pa.int64()),
        ("by", pa.string()),
        ("tx", pa.string()),
        ("cancelled", pa.bool_()),
    ]
)


def state_columns(records: Sequence[Record]) -> list[pa.Array]:
    """The columns of `STATE`; `data` and `v` are null for a tombstone."""
    return [
        pa.array([record.id for record in records], pa.string()),
        texts([record.data if type(record) is Set else None for record in records]),
        pa.array([record.clock for record in records], pa.int64()),
        pa.array([record.agent for record in records], pa.string()),
        pa.array([record.ts for record in records], pa.string()),
        pa.array([record.v if type(record) is Set else None for record in records], pa.int64()),
        *_author_columns(records),
    ]


def _author_columns(commits: Sequence[Commit]) -> list[pa.Array]:
    """`by` and `tx`, which are null for commits that are not transactions."""
    return [
        pa.array([commit.by or None for commit in commits], pa.string()),
        pa.array([commit.tx or None for commit in commits], pa.string()),
    ]


class Op(msgspec.Struct, gc=False):
    """One row of the ops: an op of a commit, with the commit's position, and whether it was undone.

    :ivar place: the index of the op in its batch, from 0; None if the commit is no batch.
    """

    commit: Commit
    op: Set | Delete | SetOp | DeleteOp | None
    place: int | None
    segment: int
    offset: int
    cancelled: bool

    @property
    def word(self) -> str:
        """set, delete, undo or seal."""
        if isinstance(self.op, Set | SetOp):
            return "set"
        return self.commit.op if self.op is None else "delete"


def ops_of(commit: Commit, start: tuple[int, int], cancelled: bool) -> Iterator[Op]:
    """The rows of a commit."""
    if isinstance(commit, Batch):
        for place, op in enumerate(commit.ops):
            yield Op(commit, op, place, *start, cancelled)
    else:
        yield Op(commit, commit if isinstance(commit, Set | Delete) else None, None, *start, cancelled)


def ops_columns(ops: Sequence[Op]) -> list[pa.Array]:
    """The columns of `OPS`."""
    return [
        pa.array([op.commit.agent for op in ops], pa.string()),
        pa.array([op.commit.clock for op in ops], pa.int64()),
        pa.array([op.commit.ts for op in ops], pa.string()),
        pa.array([op.word for op in ops], pa.string()),
        pa.array([None if op.op is None else op.op.id for op in ops], pa.string()),
        texts([op.op.data if isinstance(op.op, Set | SetOp) else None for op in ops]),
        pa.array([op.op.v if isinstance(op.op, Set | SetOp) else None for op in ops], pa.int64()),
        pa.array([op.op.archived if isinstance(op.op, Delete | DeleteOp) else None for op in ops], pa.string()),
        pa.array([op.commit.target if isinstance(op.commit, Undo) else None for op in ops], pa.int64()),
        pa.array([op.place for op in ops], pa.int32()),
        pa.array([op.segment for op in ops], pa.int64()),
        pa.array([op.offset for op in ops], pa.int64()),
        *_author_columns([op.commit for op in ops]),
        pa.array([op.cancelled for op in ops], pa.bool_()),
    ]


def record_bytes(record: Record) -> int:
    return len(record.data) if type(record) is Set else 0


def op_bytes(op: Op) -> int:
    return len(op.op.data) if isinstance(op.op, Set | SetOp) else 0


def chunks(items: Iterable[T], size: Callable[[T], int]) -> Iterator[tuple[T, ...]]:
    """Items in groups that are passed together. `size` returns the bytes of documents in an item."""
    return packed(items, size, BYTES, ROWS)


_DDL = {
    "string": "STRING",
    "int64": "BIGINT",
    "int32": "INT",
    "bool": "BOOLEAN",
}


def ddl(schema: pa.Schema, documents: str | None = None) -> str:
    """The columns of a view as Spark's DDL.

    :param documents: the type of documents, in DDL; None: text.
    """
    kinds = {field.name: _DDL[str(field.type)] for field in schema}
    if documents is not None:
        kinds["data"] = f"STRUCT<{documents}>"
    return ", ".join(f"{name} {kind}" for name, kind in kinds.items())
