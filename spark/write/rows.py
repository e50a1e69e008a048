"""Turns rows of a table into ops: the permitted columns, and their meaning. Uses no store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructType,
)

from opslog.errors import InvalidDocumentError, OpslogError, UsageError
from opslog.format.commits import DeleteOp, SetOp, Stamp
from opslog.format.documents import check_id, check_version, encode
from opslog.format.exact import UNREADABLE, InexactError, load_document

Op = SetOp | DeleteOp

# The columns of the view `state`. They are permitted, so that a changed row can be written back with all of them.
_STATE = ("id", "data", "clock", "agent", "ts", "v", "by", "tx")

# Columns of a row beside its document: the op to write, and the stamp that the document must have.
_OWN = ("_op", "_if_stamp")

_INTEGERS = (ByteType, ShortType, IntegerType, LongType)

_JSON = (*_INTEGERS, BooleanType, DoubleType, FloatType, NullType, StringType)


class Columns(msgspec.Struct, frozen=True):
    """The meaning of a table's columns.

    :ivar fields: if there is no column `data`, the columns that are fields of the document.
    :ivar has_stamp: whether each row names the stamp that its document must have.
    """

    fields: tuple[str, ...] = ()
    is_text: bool = False
    has_op: bool = False
    has_version: bool = False
    has_stamp: bool = False

    @classmethod
    def of(cls, schema: StructType) -> Columns:
        """:raises UsageError: rows with these columns are not documents; the error names the column that is wrong."""
        _check_names(schema, "the table")
        types = {field.name: field.dataType for field in schema.fields}
        for name in ("id", *_OWN):
            if not isinstance(types.get(name, StringType() if name in _OWN else None), StringType):
                raise UsageError(f"a row to write has a column {name} of type string, not {types.get(name)}")
        if "data" not in types:
            fields = tuple(name for name in types if name not in ("id", *_OWN))
            for name in fields:
                _check_type(types[name], name)
            return cls(fields, has_op="_op" in types, has_stamp="_if_stamp" in types)
        others = [name for name in types if name not in (*_STATE, *_OWN)]
        if others:
            raise UsageError(
                f"beside data there are the columns {', '.join(others)}: put them into data, or leave data out to make "
                "all columns the fields of documents"
            )
        is_text = isinstance(types["data"], StringType)
        if not is_text:
            if not isinstance(types["data"], StructType):
                raise UsageError(f"data is a document: JSON text or a struct, not {types['data'].simpleString()}")
            _check_type(types["data"], "data")
        if "v" in types and not isinstance(types["v"], _INTEGERS):
            raise UsageError(
                f"beside data, v is the schema version of a document: an integer, not {types['v'].simpleString()}"
            )
        return cls((), is_text, "_op" in types, "v" in types, "_if_stamp" in types)

    def ops(self, batch: pa.RecordBatch) -> Iterator[Op]:
        """The ops that the rows write.

        :raises UsageError: a row cannot be written; the error names its id.
        :raises InvalidDocumentError: likewise.
        """
        columns = {name: self._values(batch, name) for name in self._needed()}
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            try:
                yield self._op(row)
            except InvalidDocumentError as error:
                raise InvalidDocumentError(f"row {row['id']!r}: {error}", error.place) from error
            except OpslogError as error:
                raise UsageError(f"row {row['id']!r}: {error}") from error

    def conditions(self, batch: pa.RecordBatch) -> list[str | None]:
        """The stamp that the document of each row must have, as text; None: there must be no document.

        :raises UsageError: a row's stamp is invalid, or is null although the row deletes; the error names the id.
        """
        if not self.has_stamp:
            return [None] * batch.num_rows
        found: list[str | None] = self._values(batch, "_if_stamp")
        words = self._values(batch, "_op") if self.has_op else ["set"] * len(found)
        for id, word, text in zip(self._values(batch, "id"), words, found, strict=True):
            try:
                if text is not None:
                    Stamp.parse(text)
                elif word == "delete":
                    raise UsageError("_if_stamp is null, so there is no document, and _op deletes it")
            except UsageError as error:
                raise UsageError(f"row {id!r}: {error}") from error
        return found

    def _values(self, batch: pa.RecordBatch, name: str) -> list[Any]:
        """A column's values. The JSON text of documents is returned as bytes.

        :raises UsageError: a text is not UTF-8. Spark does not check that of its strings.
        """
        column = batch.column(name)
        if self.is_text and name == "data":
            column = column.cast(pa.binary())
        try:
            values: list[Any] = column.to_pylist()
        except UnicodeDecodeError as error:
            raise UsageError(f"the column {name} has a text that is not UTF-8: {error.object!r:.80}") from error
        return values

    def _needed(self) -> Sequence[str]:
        document = self.fields or ("data",)
        return ("id", *document, *(["_op"] if self.has_op else []), *(["v"] if self.has_version else []))

    def _op(self, row: dict[str, Any]) -> Op:
        id = check_id(row["id"])
        op = row["_op"] if self.has_op else "set"
        if op == "delete":
            return DeleteOp(id)
        if op != "set":
            raise UsageError(f"_op is 'set' or 'delete', not {op!r}")
        version = check_version(row["v"]) if self.has_version and row["v"] is not None else 1
        if self.is_text:
            return SetOp(id, msgspec.Raw(_one_line(row["data"])), version)
        document = {name: row[name] for name in self.fields} if self.fields else row["data"]
        return SetOp(id, msgspec.Raw(encode(document)), version)


def _one_line(text: bytes | None) -> bytes:
    """JSON text on one line: without white space between tokens, and otherwise unchanged, with every digit.

    :raises InvalidDocumentError: it is null, or readers of the store would refuse it.
    """
    if text is None:
        raise InvalidDocumentError("data is null; a row that deletes says so in a column _op")
    try:
        line = msgspec.json.format(text, indent=-1)
        load_document(line)
    except UNREADABLE as error:
        raise InvalidDocumentError(f"data is no JSON text: {error}") from error
    except InexactError as error:
        raise InvalidDocumentError(f"data is no JSON object that can be stored exactly: {error}") from error
    return line


def _check_names(type: StructType, place: str) -> None:
    """:raises UsageError: two columns or fields have one name."""
    names = type.fieldNames()
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{place} has the name {name} twice, and only one of the values could be kept")


def _check_type(type: DataType, place: str) -> None:
    if isinstance(type, StructType):
        _check_names(type, place)
        for field in type.fields:
            _check_type(field.dataType, f"{place}.{field.name}")
    elif isinstance(type, ArrayType):
        _check_type(type.elementType, f"{place}[]")
    elif not isinstance(type, _JSON):
        raise UsageError(
            f"{place} is of type {type.simpleString()}, which JSON does not have: cast it to a string or a number, or "
            "make it an array or a struct"
        )
