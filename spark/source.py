"""The data source `opslog`: ``spark.read.format("opslog").load(url)``, and ``USING opslog`` in SQL.

Spark makes the source in one process, plans in another and reads in many more; what goes between them is pickled. All
that is said of a store is said in `opslog.spark.read.views`; here are only the words of Spark: options, schemas,
filters.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from opslog.backends import Backend, open_backend
from opslog.errors import CorruptError, MissingFileError, RetryError, UsageError
from opslog.history import Point
from opslog.snapshot.manifests import ManifestStore
from opslog.spark.read.planning import SPLIT_BYTES
from opslog.spark.read.ranges import IdRange
from opslog.spark.read.views import EVERYTHING, ArchiveView, Asked, OpsView, StateView, Task, View
from opslog.spark.typed import converter

_OWN = {
    *("path", "paths", "view", "asof", "period", "schema", "splitbytes", "pushdown"),
    *("startingat", "ongap", "maxbytespertrigger"),
    "agent",
}
"""The options that are not the storage's, in lower case, as Spark hands them over."""

CHANGES = "changes"
"""The view of a stream."""

_DDL = {
    "string": "STRING",
    "int64": "BIGINT",
    "int32": "INT",
    "bool": "BOOLEAN",
}


class DefaultSource(DataSource):
    """See `docs/spark.md` for the options."""

    @classmethod
    def name(cls) -> str:
        return "opslog"

    def schema(self) -> str:
        if self.options.get("view") == CHANGES:
            from opslog.spark.stream.streaming import COLUMNS

            return ddl(COLUMNS)
        return ddl(view_of(self.options).schema, self.options.get("schema"))

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

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self.options.get("view") != CHANGES:
            raise UsageError(f'a stream has one view, and has to name it: .option("view", "{CHANGES}")')
        from opslog.spark.stream.streaming import StreamReader

        return StreamReader(url_of(self.options), storage_options(self.options), self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from opslog.spark.write.writing import writer_of  # which needs this module

        return writer_of(self.options, schema, overwrite)


def ddl(schema: pa.Schema, documents: str | None = None) -> str:
    """The columns of a view in Spark's words. :param documents: what documents are, in Spark's words; None: text."""
    kinds = {field.name: _DDL[str(field.type)] for field in schema}
    if documents is not None:
        kinds["data"] = f"STRUCT<{documents}>"
    return ", ".join(f"{name} {kind}" for name, kind in kinds.items())


def view_of(options: Mapping[str, str]) -> View:
    """The view that the options ask for. :raises UsageError: there is no such view, or it has no such option."""
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


def url_of(options: Mapping[str, str]) -> str:
    """The store's URL; a directory's as an absolute path, because workers may have another working directory.

    :raises UsageError: no store is named, or several, or one that only this process can see.
    """
    url = options.get("path")
    if not url:
        raise UsageError(
            "name one store: .load(url), or CREATE TEMPORARY VIEW … USING opslog OPTIONS (path '…'). Several stores "
            "are a union of several reads. Of a table in its catalog Spark tells a data source in Python nothing, not "
            "even where it is"
        )
    scheme, separator, _ = url.partition("://")
    if separator and scheme == "memory":
        raise UsageError(f"{url} is in the memory of one process, and Spark reads in others: use a directory or s3://")
    if separator:
        return url
    # What SQL makes of a path.
    return os.path.abspath(url.removeprefix("file:"))


def storage_options(options: Mapping[str, str]) -> dict[str, Any]:
    """What the backend takes: everything that is not the data source's own. Numbers and JSON objects are understood."""
    return {name: _value(name, text) for name, text in options.items() if name.lower() not in _OWN}


def _value(name: str, text: str) -> Any:
    if text in ("true", "false") or text.startswith("{"):
        return msgspec.json.decode(text)
    return float(text) if name.endswith("_seconds") else int(text) if name.endswith("_bytes") else text


def open_store(url: str, options: Mapping[str, Any]) -> Backend:
    """The storage of a store that exists."""
    try:
        return open_backend(url, create=False, **options)
    except TypeError as error:
        raise UsageError(f"{url}: {error}: neither opslog nor this storage has such an option") from error


class OpslogPartition(InputPartition):
    """One task. :ivar value: what it reads."""

    value: Task


class OpslogReader(DataSourceReader):
    """Reads one view of one store."""

    def __init__(self, url: str, options: dict[str, Any], view: View, typed: StructType | None) -> None:
        self._url = url
        self._options = options
        self._view = view
        self._typed = typed
        self._asked = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        with closing(open_store(self._url, self._options)) as backend:
            tasks = self._view.plan(backend, self._asked)
        return [OpslogPartition(task) for task in tasks] or [OpslogPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task: Task | None = partition.value
        if task is None:
            return
        batches = read_task(self._url, self._options, self._view, task, self._asked)
        yield from batches if self._typed is None else map(converter(self._typed), batches)


def read_task(
    url: str, options: Mapping[str, Any], view: View, task: Task, asked: Asked = EVERYTHING
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, wherever it runs.

    :raises CorruptError: names file and offset. :raises RetryError: the job began so long ago that a compaction has
        collected what it was to read.
    """
    with closing(open_store(url, options)) as backend:
        try:
            yield from view.read(backend, task, asked)
        except MissingFileError as error:
            raise _gone(backend, task, error) from error


def _gone(backend: Backend, task: Task, error: MissingFileError) -> RetryError | CorruptError:
    """What it means that a task found a file missing that was there when the job was planned."""
    if task.period or ManifestStore(backend).newest_number() == task.manifest:
        return CorruptError(
            f"{error}. opslog does not remove it: restore it from a copy; `opslog verify` lists all such places",
            error.path,
        )
    return RetryError(
        f"{error}: a compaction collected it while this job was reading. Run the job again; jobs that take longer than "
        "the store's grace period need a longer one, or compact with keep_history"
    )


class _PushdownReader(OpslogReader):
    """The reader with the option pushdown. Spark refuses it where ``spark.sql.python.filterPushdown.enabled`` is not
    true.

    Not the usual one, because Spark 4.3 remembers what was planned by table and not by query: of a DataFrame that is
    used twice with different filters, or later without any, both uses get the rows of one.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        for filter in filters:
            self._asked = narrowed(self._asked, filter)
        return filters  # Spark looks again: what is read is less, and may still be more than is asked for


def narrowed(asked: Asked, filter: Any) -> Asked:
    """What is asked for, given one more filter; the same, where it says nothing of ids and agents."""
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
        among = frozenset(filter.value)
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
