"""Typed columns from documents, instead of their text: the option ``schema`` of the data source."""

from __future__ import annotations

import datetime
import decimal
import math
import re
import struct
from collections.abc import Callable
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from opslog.errors import UsageError
from opslog.format.exact import UNREADABLE

# More than 6 decimals of a second, unless the others are zeros.
_TOO_FINE = re.compile(r"\.[0-9]{6}[0-9]*[1-9]")

# The errors for a document that does not fit.
_MISFITS = (*UNREADABLE, pa.ArrowInvalid, pa.ArrowTypeError)


class _Digits(str):
    """A JSON number with a fraction or an exponent, as its text."""


class _Checked(type):
    """The type of the types below, whose function `of` converts what msgspec has decoded. msgspec adds the place in the
    document to its ValueError. msgspec requires that the result is an instance of the type, and here any value is one.
    """

    def __instancecheck__(cls, value: object) -> bool:
        return True


class _Double(metaclass=_Checked):
    @staticmethod
    def of(value: object) -> float:
        number = _number(value)
        try:
            double = float(number)
        except OverflowError:  # of an integer; a number with an exponent becomes infinite
            double = math.inf
        if math.isinf(double) or (type(number) is int and double != number):
            raise ValueError(f"no DOUBLE is exactly {number!s:.40}; a DECIMAL may be")
        return double


class _Float(metaclass=_Checked):
    @staticmethod
    def of(value: object) -> float:
        double = _Double.of(value)
        try:
            (single,) = struct.unpack("<f", struct.pack("<f", double))
        except OverflowError:
            single = math.inf
        if single != double:
            raise ValueError(f"no FLOAT is exactly {double!r}: use DOUBLE")
        return double


class _Decimal(metaclass=_Checked):
    @staticmethod
    def of(value: object) -> decimal.Decimal:
        number = _number(value)
        try:
            return decimal.Decimal(number)
        except decimal.InvalidOperation:
            raise ValueError(f"no DECIMAL is exactly {number!s:.40}") from None


class _Timestamp(metaclass=_Checked):
    @staticmethod
    def of(value: object) -> datetime.datetime:
        try:
            return _time(value, _WITH_ZONE).astimezone(datetime.UTC)
        except OverflowError:
            raise ValueError(f"{value} is not between the years 1 and 9999 in UTC") from None


class _LocalTimestamp(metaclass=_Checked):
    @staticmethod
    def of(value: object) -> datetime.datetime:
        return _time(value, _WITHOUT_ZONE)


def _number(value: object) -> int | str:
    if type(value) is int or isinstance(value, _Digits):
        return value
    raise ValueError(f"Expected a number, got `{type(value).__name__}`")


_WITH_ZONE = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
_WITHOUT_ZONE = Annotated[datetime.datetime, msgspec.Meta(tz=False)]


def _time(value: object, kind: Any) -> datetime.datetime:
    if isinstance(value, str) and _TOO_FINE.search(value):
        raise ValueError(f"{value:.40} has more than 6 decimals of a second, which no timestamp has")
    try:
        time: datetime.datetime = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None  # to which msgspec adds the place
    return time


def _integer(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


# The JSON value that each Spark type requires. No conversion changes a value: no text becomes a number, and no 1.5 an
# integer. Times are RFC 3339 texts. `_Double` and the like check a value in Python, which takes longer.
_PLAIN: dict[type[spark.DataType], Any] = {
    spark.StringType: str,
    spark.BooleanType: bool,
    spark.ByteType: _integer(8),
    spark.ShortType: _integer(16),
    spark.IntegerType: _integer(32),
    spark.LongType: _integer(64),
    spark.FloatType: _Float,
    spark.DoubleType: _Double,
    spark.DecimalType: _Decimal,
    spark.DateType: datetime.date,
    spark.TimestampType: _Timestamp,
    spark.TimestampNTZType: _LocalTimestamp,
}

# The same for nearly all documents, without Python: up to 2^53 every integer is exactly a double.
_QUICK: dict[type[spark.DataType], Any] = {**_PLAIN, spark.DoubleType: _integer(54) | float}


def converter(schema: spark.StructType) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Returns a function that converts the column `data` from texts to the types of the schema. Fields that the schema
    does not name are left out. Fields that a document does not have are null.

    :raises UsageError: (raised by the function) a document does not fit; names it, the place in it, and what is wrong.
    """
    documents = schema["data"].dataType
    decode, decode_exactly = _decoder(documents, _QUICK), _decoder(documents, _PLAIN)
    arrow = to_arrow_schema(schema, timezone="UTC")
    place = arrow.get_field_index("data")
    kind = arrow.field(place).type

    def read(id: str, text: bytes | None) -> Any:
        try:
            value = text and decode_exactly(text)
            pa.scalar(value, kind)
        except _MISFITS as error:
            raise UsageError(f"document {id!r} does not fit the option schema: {error}") from error
        return value

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        texts = batch.column(place).cast(pa.binary()).to_pylist()
        try:
            column = pa.array([text and decode(text) for text in texts], kind)
        except _MISFITS:
            ids = batch["id"].to_pylist()
            column = pa.array([read(id, text) for id, text in zip(ids, texts, strict=True)], kind)
        columns = batch.columns
        return pa.RecordBatch.from_arrays([*columns[:place], column, *columns[place + 1 :]], schema=arrow)

    return convert


def _decoder(documents: spark.DataType, plain: dict[type[spark.DataType], Any]) -> Callable[[bytes], Any]:
    def convert(checked: Any, value: object) -> Any:
        return checked.of(value)

    return msgspec.json.Decoder(_python(documents, plain), dec_hook=convert, float_hook=_Digits).decode


def _python(kind: spark.DataType, plain: dict[type[spark.DataType], Any]) -> Any:
    """The type that msgspec decodes to.

    :param plain: `_PLAIN` or `_QUICK`.
    """
    if isinstance(kind, spark.StructType):
        fields = {field.name: _field(field, plain) for field in kind.fields}
        return TypedDict("Fields", fields)  # type: ignore[operator]  # made at run time
    if isinstance(kind, spark.ArrayType):
        return list[_or_none(_python(kind.elementType, plain), kind.containsNull)]  # type: ignore[misc]
    if isinstance(kind, spark.MapType) and isinstance(kind.keyType, spark.StringType):
        return dict[str, _or_none(_python(kind.valueType, plain), kind.valueContainsNull)]  # type: ignore[misc]
    if type(kind) not in plain:
        raise UsageError(f"the option schema cannot have {kind.simpleString()}: JSON has nothing that is that exactly")
    return plain[type(kind)]


def _field(field: spark.StructField, plain: dict[type[spark.DataType], Any]) -> Any:
    kind = _or_none(_python(field.dataType, plain), field.nullable)
    return NotRequired[kind] if field.nullable else kind


def _or_none(kind: Any, nullable: bool) -> Any:
    return kind | None if nullable else kind
