"""The data source `opslog`: ``spark.read.format("opslog").load(url)``, and ``USING opslog`` in SQL.

Spark makes the source in one process, plans in another, and reads in many more. Everything that passes between them is
pickled. The logic is in `opslog.spark.read.views`; this module has only Spark's concepts: options, schemas, filters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from opslog.errors import UsageError
from opslog.history import Point
from opslog.spark.errors import brief
from opslog.spark.read.columns import ddl
from opslog.spark.read.planning import SPLIT_BYTES
from opslog.spark.read.ranges import IdRange
from opslog.spark.read.tasks import read_task
from opslog.spark.read.typed import converter
from opslog.spark.read.views import EVERYTHING, ArchiveView, Asked, OpsView, StateView, Task, View
from opslog.spark.stores import open_store, storage_options, url_of

# The view of a stream.
CHANGES = "changes"


class DefaultSource(DataSource):
    """See `docs/spark.md` for the options."""

    @classmethod
    def name(cls) -> str:
        return "opslog"

    @brief
    def schema(self) -> str:
        if self.options.get("view") == CHANGES:
            from opslog.spark.stream.streaming import COLUMNS

            return ddl(COLUMNS)
        return ddl(view_of(self.options).schema, self.options.get("schema"))

    @brief
    def reader(self, schema: StructType) -> OpslogReader:
        url, view = url_of(self.options), view_of(self.options)
        expected = [field.name for field in view.schema]
        if schema.fieldNames() != expected:
            raise UsageError(
                f"this view has the columns {', '.join(expected)}: choose among them with select, and give types of "
                'what is in documents as .option("schema", …), not as .schema(…)'
            )
        typed = schema if "schema" in self.options else None
        kind = _PushdownReader if self.options.get("pushdown", "false") == "true" else OpslogReader
        return kind(url, storage_options(self.options), view, typed)

    @brief
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self.options.get("view") != CHANGES:
            raise UsageError(f'a stream has one view, and has to name it: .option("view", "{CHANGES}")')
        from opslog.spark.stream.streaming import StreamReader

        return StreamReader(url_of(self.options), storage_options(self.options), self.options)

    @brief
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from opslog.spark.write.writing import writer_of  # which needs this module

        return writer_of(self.options, schema, overwrite)


def view_of(options: Mapping[str, str]) -> View:
    """The view that the options name.

    :raises UsageError: there is no such view, or it has no such option.
    """
    name = options.get("view", "state")
    as_of, period = _point(options.get("asof")), options.get("period")
    split_bytes = _number(options.get("splitbytes", str(SPLIT_BYTES)), "splitBytes")
    if name == "archive":
        if as_of is not None:
            raise UsageError("archives have no past: leave out asOf")
        return ArchiveView(period, split_bytes)
    if period is not None:
        raise UsageError('the option period goes with view "archive"')
    kinds: dict[str, type[StateView | OpsView]] = {"state": StateView, "ops": OpsView}
    if name not in kinds:
        raise UsageError(f'view is "state", "ops" or "archive", and for a stream "{CHANGES}", not {name!r}')
    return kinds[name](as_of, split_bytes)


def _point(text: str | None) -> Point | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


def _number(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"{name} is a number of bytes from 1 on, not {text!r}")
    return int(text)


class OpslogPartition(InputPartition):
    """One task.

    :ivar value: the work of the task.
    """

    value: Task


class OpslogReader(DataSourceReader):
    """Reads one view of one store."""

    def __init__(self, url: str, options: dict[str, Any], view: View, typed: StructType | None) -> None:
        self._url = url
        self._options = options
        self._view = view
        self._typed = typed
        self._asked = EVERYTHING

    @brief
    def partitions(self) -> list[InputPartition]:
        with closing(open_store(self._url, self._options)) as backend:
            tasks = self._view.plan(backend, self._asked)
        return [OpslogPartition(task) for task in tasks] or [OpslogPartition(None)]

    @brief
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: Task | None = partition.value
        if task is None:
            return
        batches = read_task(self._url, self._options, self._view, task, self._asked)
        yield from batches if self._typed is None else map(converter(self._typed), batches)


class _PushdownReader(OpslogReader):
    """The reader for the option pushdown. Spark refuses it if ``spark.sql.python.filterPushdown.enabled`` is not true.

    This is not the default reader, because Spark 4.3 caches a plan for each table instead of each query. If a DataFrame
    is used twice with different filters, or later without any, both uses get the rows of one of them.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        for filter in filters:
            self._asked = narrowed(self._asked, filter)
        return filters  # Spark filters again: this reads less, but perhaps still more than was requested


def narrowed(asked: Asked, filter: Any) -> Asked:
    """The requested rows, narrowed by one more filter; unchanged if the filter concerns neither ids nor agents."""
    from pyspark.sql.datasource import (
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
        StringStartsWith,
    )

    column = getattr(filter, "attribute", None)
    among: frozenset[str] | None = None
    if isinstance(filter, EqualTo):
        among = frozenset([filter.value])
    elif isinstance(filter, In):
        among = frozenset(value for value in filter.value if value is not None)  # nothing equals null
    if column == ("agent",) and among is not None:
        return replace(asked, agents=among if asked.agents is None else asked.agents & among)
    if column != ("id",):
        return asked
    if among is not None:
        one_of = among if asked.one_of is None else asked.one_of & among
        range = IdRange(min(one_of), max(one_of) + "\0") if one_of else IdRange("", "")
        return replace(asked, one_of=one_of, ids=asked.ids.common(range) or IdRange("", ""))
    range = IdRange()
    if isinstance(filter, GreaterThan | GreaterThanOrEqual | StringStartsWith):
        range = IdRange(filter.value)
    elif isinstance(filter, LessThan | LessThanOrEqual):
        range = IdRange("", filter.value + "\0")
    return replace(asked, ids=asked.ids.common(range) or IdRange("", ""))
