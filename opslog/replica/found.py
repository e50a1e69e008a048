"""What questions return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import msgspec

from opslog.errors import UsageError
from opslog.format.commits import Set
from opslog.format.documents import Schema

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

SCAN = "every document was read"


class Found(list[tuple[str, T]], Generic[T]):
    """What `find` returns: a list of (id, document) pairs. For Arrow, and for notebooks, it is a table.

    :ivar explain: what the question used: an index, or every document.
    """

    explain: str = SCAN
    # Set by `opslog.store`, which knows tables.
    table_of: ClassVar[Callable[[Callable[[Set], bytes | msgspec.Raw], Sequence[Set]], pa.Table]]

    def __init__(
        self, pairs: Iterable[tuple[str, T]] = (), source: tuple[Schema[T], Sequence[Set]] | None = None
    ) -> None:
        super().__init__(pairs)
        self._source = source

    def to_arrow(self) -> pa.Table:
        """The documents that were found, in their order, with the columns of `Store.to_arrow`; whatever became of the
        list since.

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
        return {"explain": self.explain, "_source": None}
