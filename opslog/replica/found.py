"""What questions return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, SupportsIndex, TypeVar, overload

import msgspec

from opslog.errors import UsageError
from opslog.format.commits import Set
from opslog.format.documents import Schema

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

SCAN = "every document was read"


class Found(Generic[T]):
    """The result of `find`: (id, document) pairs, which you index, iterate and compare like a list. For Arrow and for
    notebooks it is a table.

    Its type is neither list nor Sequence, because pyarrow, Polars and DuckDB check for these first, and would not see
    the table. `list(found)` is a list.

    :ivar explain: what the query read: documents that an index found, the first ones, or every document.
    """

    explain: str = SCAN
    # Set by `opslog.store`, which knows tables.
    table_of: ClassVar[Callable[[Callable[[Set], bytes | msgspec.Raw], Sequence[Set]], pa.Table]]

    def __init__(
        self, pairs: Iterable[tuple[str, T]] = (), source: tuple[Schema[T], Sequence[Set]] | None = None
    ) -> None:
        self._pairs = list(pairs)
        self._source = source

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[tuple[str, T]]:
        return iter(self._pairs)

    @overload
    def __getitem__(self, at: SupportsIndex) -> tuple[str, T]: ...

    @overload
    def __getitem__(self, at: slice) -> list[tuple[str, T]]: ...

    def __getitem__(self, at: SupportsIndex | slice) -> tuple[str, T] | list[tuple[str, T]]:
        return self._pairs[at]

    def __eq__(self, other: object) -> bool:
        """Whether it has the same pairs as another one, or as a list."""
        if isinstance(other, Found):
            return self._pairs == other._pairs
        return self._pairs == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of a list: documents may change

    def __repr__(self) -> str:
        return repr(self._pairs)

    def to_arrow(self) -> pa.Table:
        """The documents that were found, as they were then and in their order, with the columns of `Store.to_arrow`.

        :raises UsageError: this is a copy, such as one from another process: it does not know who wrote what.
        """
        if self._source is None:
            raise UsageError("this is a copy of what find returned, and only that itself is a table: ask again")
        schema, records = self._source
        return type(self).table_of(schema.text, records)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """The first pairs as a table, for notebooks."""
        from opslog.notebook import documents_table

        return documents_table(f"find: {self.explain}", self, len(self))

    def __getstate__(self) -> dict[str, object]:
        return {"_pairs": self._pairs, "explain": self.explain, "_source": None}
