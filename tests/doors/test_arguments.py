"""Errors about arguments name what the caller gave, and what is possible instead."""

from __future__ import annotations

import ast
import re
from typing import Annotated, Literal

import msgspec
import pytest

from opslog.doors.arguments import converted
from opslog.doors.problems import LANGUAGE, code_of
from opslog.errors import QueryError, UsageError
from opslog.mcp.documents import BatchIn
from opslog.query.question import parse


class Inner(msgspec.Struct):
    kind: Annotated[Literal["b", "a"], msgspec.Meta(description="Of it.")]


class Outer(msgspec.Struct):
    inner: Inner
    many: list[Inner] = []
    number: int = 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"inner": {"kind": "c"}}, "call: Invalid enum value 'c' - at `$.inner.kind`; possible are a, b"),
        (
            {"inner": {"kind": "a"}, "many": [{"kind": "a"}, {"kind": "c"}]},
            "call: Invalid enum value 'c' - at `$.many[1].kind`; possible are a, b",
        ),
        ({"inner": {"kind": "a"}, "number": "1"}, "call: Expected `int`, got `str` - at `$.number`"),
        ({}, "call: Object missing required field `inner`"),
    ],
)
def test_a_refusal_says_what_would_be_right(given: object, says: str) -> None:
    with pytest.raises(UsageError) as error:
        converted(given, Outer, "call")
    assert str(error.value) == says


def test_the_ops_of_a_batch_are_named() -> None:
    with pytest.raises(UsageError, match="possible are create, delete, set"):
        converted({"ops": [{"op": "put", "id": "a"}]}, BatchIn, "batch")


EACH = {"in [..]": "a in [1]", "not in [..]": "a not in [1]", "exists PATH": "exists a"}


def test_an_error_about_a_condition_has_the_language_in_it() -> None:
    """It shows examples that are valid conditions, and lists the operators."""
    assert LANGUAGE in code_of(QueryError("…", None, "")).next
    text, mapping = re.findall(r"as in (.*?)(?:, or a mapping|\. Operators)", LANGUAGE)
    assert parse(text)
    assert parse(ast.literal_eval(mapping))
    for operator in LANGUAGE.partition("Operators: ")[2].partition(";")[0].split(", "):
        assert parse(EACH.get(operator, f"a {operator} 1"))
