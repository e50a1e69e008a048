"""Typed columns from documents, instead of their text: the option ``schema`` of the data source."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from opslog.errors import UsageError


def _integer(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


# The JSON value that each Spark type requires. No conversion changes a value: no text becomes a number, and no 1.5 an
# integer. Times are RFC 3339 texts.
_PLAIN: dict[type[spark.DataType], Any] = {
    spark.StringType: str,
    spark.BooleanType: bool,
    spark.ByteType: _integer(8),
    spark.ShortType: _integer(16),
    spark.IntegerType: _integer(32),
    spark.LongType: _integer(64),
    spark.FloatType: float,
    spark.DoubleType: float,
    spark.DecimalType: decimal.Decimal,
    spark.DateType: datetime.date,
    spark.TimestampType: Annotated[datetime.datetime, msgspec.Meta(tz=True)],
    spark.TimestampNTZType: Annotated[datetime.datetime, msgspec.Meta(tz=False)],
}


def converter(schema: spark.StructType) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Returns a function that converts the column `data` from texts to the types of the schema. Fields that the schema
    does not name are left out. Fields that a document does not have are null.

    :raises UsageError: (raised by the function) a document does not fit; names it, the place in it, and what is wrong.
    """
    decode = msgspec.json.Decoder(_python(schema["data"].dataType)).decode
    arrow = to_arrow_schema(schema, timezone="UTC")
    place = arrow.get_field_index("data")
    kind = arrow.field(place).type

    def check(id: str, text: bytes | None) -> None:
        try:
            pa.scalar(text and decode(text), kind)
        except (msgspec.ValidationError, pa.ArrowInvalid) as error:
            raise UsageError(f"document {id!r} does not fit the option schema: {error}") from error

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = batch.column(place).cast(pa.binary()).to_pylist()
        try:
            column = pa.array([text and decode(text) for text in texts], kind)
        except (msgspec.ValidationError, pa.ArrowInvalid):
            for id, text in zip(batch["id"], texts, strict=True):
                check(id.as_py(), text)
            raise
        columns = batch.columns
        return pa.RecordBatch.from_arrays([*columns[:place], column, *columns[place + 1 :]], schema=arrow)

    return convert


def _python(kind: spark.DataType) -> Any:
    """The type that msgspec decodes to."""
    if isinstance(kind, spark.StructType):
        fields = {field.name: _field(field) for field in kind.fields}
        return TypedDict("Fields", fields)  # type: ignore[operator]  # made at run time
    if isinstance(kind, spark.ArrayType):
        return list[_or_none(_python(kind.elementType), kind.containsNull)]  # type: ignore[misc]
    if isinstance(kind, spark.MapType) and isinstance(kind.keyType, spark.StringType):
        return dict[str, _or_none(_python(kind.valueType), kind.valueContainsNull)]  # type: ignore[misc]
    if type(kind) not in _PLAIN:
        raise UsageError(f"the option schema cannot have {kind.simpleString()}: JSON has nothing that is that exactly")
    return _PLAIN[type(kind)]


def _field(field: spark.StructField) -> Any:
    kind = _or_none(_python(field.dataType), field.nullable)
    return NotRequired[kind] if field.nullable else kind


def _or_none(kind: Any, nullable: bool) -> Any:
    return kind | None if nullable else kind
