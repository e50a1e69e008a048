"""Values of documents in typed columns: each is exactly that of the document, or an error. Without Spark."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from pyspark.sql.types import DataType, StructField, StructType

import opslog
from opslog.spark.read.columns import STATE
from opslog.spark.read.typed import converter

DECIMAL = spark.DecimalType(38, 18)
NOON = datetime.datetime(2026, 11, 27, 12, tzinfo=datetime.UTC)


def typed(kind: DataType, *texts: str | None) -> list[Any]:
    """The values of a field `x` of this type, in documents with these texts as its value."""
    fields = {name: spark.LongType() if name in ("clock", "v") else spark.StringType() for name in STATE.names}
    data = StructType([StructField("x", kind)])
    schema = StructType([StructField(name, data if name == "data" else type) for name, type in fields.items()])
    rows = [
        {"id": f"id-{number}", "data": text and f'{{"x":{text},"y":0}}', "clock": number, "v": 1}
        for number, text in enumerate(texts)
    ]
    batch = converter(schema)(pa.RecordBatch.from_pylist(rows, STATE))
    assert batch["id"].to_pylist() == [row["id"] for row in rows]
    return [document and document["x"] for document in batch["data"].to_pylist()]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (spark.DoubleType(), "1", 1.0),
        (spark.DoubleType(), "0.1", 0.1),
        (spark.DoubleType(), "1e308", 1e308),
        (spark.DoubleType(), "-9007199254740992", -(2.0**53)),
        (spark.DoubleType(), "9007199254740994", 2.0**53 + 2),
        (spark.DoubleType(), "9223372036854775808", 2.0**63),
        (spark.FloatType(), "0.5", 0.5),
        (spark.FloatType(), "-3", -3.0),
        (spark.FloatType(), "16777218", 16777218.0),
        (spark.FloatType(), "3.4028234663852886e38", 3.4028234663852886e38),
        (DECIMAL, "1.50", Decimal("1.5")),
        (DECIMAL, "-12", Decimal(-12)),
        (DECIMAL, "1e5", Decimal(100_000)),
        (DECIMAL, "12345678901234567890.000000000000000001", Decimal("12345678901234567890.000000000000000001")),
        (spark.TimestampType(), '"2026-11-27T12:00:00Z"', NOON),
        (spark.TimestampType(), '"2026-11-27T14:00:00.123456000+02:00"', NOON.replace(microsecond=123456)),
        (spark.TimestampNTZType(), '"2026-11-27T12:00:00"', NOON.replace(tzinfo=None)),
        (spark.DateType(), '"2026-11-27"', NOON.date()),
        (spark.LongType(), "9223372036854775807", 2**63 - 1),
        (spark.ArrayType(spark.DoubleType()), "[1,2.5,null,9007199254740994]", [1.0, 2.5, None, 2.0**53 + 2]),
        (spark.MapType(spark.StringType(), spark.FloatType()), '{"a":1,"b":0.25}', [("a", 1.0), ("b", 0.25)]),
    ],
    ids=str,
)
def test_what_a_type_has_is_exact(kind: DataType, text: str, value: Any) -> None:
    assert typed(kind, None, text, "null") == [None, value, None]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (spark.DoubleType(), "9007199254740993", "no DOUBLE is exactly 9007199254740993"),
        (spark.DoubleType(), "18446744073709551615", "no DOUBLE is exactly 18446744073709551615"),
        (spark.DoubleType(), "9" * 400, "no DOUBLE is exactly 9999"),
        (spark.DoubleType(), '"1.5"', "Expected a number, got `str`"),
        (spark.DoubleType(), "true", "Expected a number, got `bool`"),
        (spark.FloatType(), "1e300", "no FLOAT is exactly 1e"),
        (spark.FloatType(), "0.1", "no FLOAT is exactly 0.1: use DOUBLE"),
        (spark.FloatType(), "16777217", "no FLOAT is exactly 16777217"),
        (spark.FloatType(), "9007199254740993", "no DOUBLE is exactly 9007199254740993"),
        (spark.FloatType(), "1e-300", "no FLOAT is exactly 1e-300"),
        (DECIMAL, '"1.50"', "Expected a number, got `str`"),
        (DECIMAL, "true", "Expected a number, got `bool`"),
        (DECIMAL, "1e-99999999999999999999", "no DECIMAL is exactly 1e-9999"),
        (DECIMAL, "0.1234567890123456789", "would cause data loss"),
        (spark.TimestampType(), '"2026-11-27T12:00:00.123456789Z"', "more than 6 decimals of a second"),
        (spark.TimestampType(), '"2026-11-27T12:00:00.0000001Z"', "more than 6 decimals of a second"),
        (spark.TimestampNTZType(), '"2026-11-27T12:00:00.1234567"', "more than 6 decimals of a second"),
        (spark.TimestampType(), '"0001-01-01T00:00:00+14:00"', "not between the years 1 and 9999"),
        (spark.TimestampType(), '"9999-12-31T23:59:59-14:00"', "not between the years 1 and 9999"),
        (spark.TimestampType(), '"2026-11-27T12:00:00"', "timezone"),
        (spark.TimestampNTZType(), '"2026-11-27T12:00:00Z"', "no timezone"),
        (spark.TimestampType(), "1", "Expected `datetime`, got `int`"),
        (spark.LongType(), "1.0", "Expected `int"),
        (spark.ArrayType(spark.DoubleType()), "[1,9007199254740993]", r"no DOUBLE .* at `\$.x\[1\]`"),
    ],
    ids=str,
)
def test_anything_else_is_an_error_that_names_the_document(kind: DataType, text: str, message: str) -> None:
    with pytest.raises(opslog.UsageError, match=rf"document 'id-1' does not fit the option schema: .*{message}"):
        typed(kind, None, text, "null")


def test_one_large_integer_changes_no_other_document() -> None:
    """A batch in which the quick way refuses a document is read in another way."""
    values = [1, 0.1, None, 2**60, -0.0, 1e-320]
    assert typed(spark.DoubleType(), *map(json.dumps, values)) == values
