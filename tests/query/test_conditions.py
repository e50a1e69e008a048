"""Conditions: both forms mean the same, every comparison has an answer, and errors point at the mistake."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from enum import IntEnum, StrEnum
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from opslog.errors import QueryError, UsageError
from opslog.format.commits import Set
from opslog.query.conditions import And, Condition, Exists, Not, OneOf, Or, Range, compiled
from opslog.query.paths import parse_path
from opslog.query.question import parse, question
from opslog.query.text import DEPTH_MAX
from opslog.query.values import MISSING, key_of, rank, value_of

# No test may fail because the machine is busy.
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

DOCUMENT = {
    "status": "active",
    "hours": 3,
    "half": 0.5,
    "big": 2**63 - 1,
    "yes": True,
    "none": None,
    "tags": ["red", "blue", 7, None],
    "empty": [],
    "by": {"team": 7, "names": [{"first": "Ada"}, {"first": "Bob"}]},
    "due date": "2026-11-20",
    "a.b": 1,
    "and": 1,
    "@id": "not the id",
    "": "no name",
    "größe": 2,
}
RECORD = Set("2026-11-20T12:00:00.000000Z", 42, "planner", "task-1", msgspec.Raw(b"{}"))


def is_true(where: str | Mapping[str, Any], document: Any = DOCUMENT) -> bool:
    return compiled(parse(where))(document, RECORD)


@pytest.mark.parametrize(
    ("text", "mapping", "found"),
    [
        ('status = "active"', {"status": "active"}, True),
        ("status = active", {"status": "active"}, True),
        ("status=active", {"status": {"=": "active"}}, True),
        ("status != done", {"status": {"!=": "done"}}, True),
        ("hours > 2 and hours <= 3", {"hours": {">": 2, "<=": 3}}, True),
        ("hours = 3.0", {"hours": 3.0}, True),
        ("hours < 3", {"hours": {"<": 3}}, False),
        ("hours >= 3", {"hours": {">=": 3}}, True),
        ("half > 0", {"half": {">": 0}}, True),
        ("half = 5e-1", {"half": 0.5}, True),
        # integers of 64 bits are exact
        ("big = 9223372036854775807", {"big": 2**63 - 1}, True),
        ("big = 9223372036854775808.0", {"big": float(2**63)}, False),
        ("big < 9223372036854775808.0", {"big": {"<": float(2**63)}}, True),
        # true is not a number
        ("yes = true", {"yes": True}, True),
        ("yes = 1", {"yes": 1}, False),
        ("yes > 0", {"yes": {">": 0}}, False),
        ("hours > true", {"hours": {">": True}}, False),
        # values of different types never match, and never fail
        ("status > 3", {"status": {">": 3}}, False),
        ("status <= 3", {"status": {"<=": 3}}, False),
        ("tags > 3", {"tags": {">": 3}}, False),
        ('by < "x"', {"by": {"<": "x"}}, False),
        ("none >= null", {"none": {">=": None}}, False),
        ("hours != active", {"hours": {"!=": "active"}}, True),
        # missing
        ("nothing = null", {"nothing": None}, True),
        ("nothing != null", {"nothing": {"!=": None}}, False),
        ("nothing != 3", {"nothing": {"!=": 3}}, True),
        ("nothing < 3", {"nothing": {"<": 3}}, False),
        ("not nothing >= 3", {"not": {"nothing": {">=": 3}}}, True),
        ("none = null", {"none": None}, True),
        ("exists none", {"none": {"exists": True}}, True),
        ("exists nothing", {"nothing": {"exists": True}}, False),
        ("not exists nothing", {"nothing": {"exists": False}}, True),
        # in
        ("status in [active, blocked]", {"status": {"in": ["active", "blocked"]}}, True),
        ("status not in [active, blocked]", {"not": {"status": {"in": ["active", "blocked"]}}}, False),
        ("status in []", {"status": {"in": []}}, False),
        ("nothing in [null]", {"nothing": {"in": (None,)}}, True),
        ("hours in [1, true, 3.0]", {"hours": {"in": [1, True, 3.0]}}, True),
        # paths
        ("by.team = 7", {"by.team": 7}, True),
        ("by.names[1].first = Bob", {"by.names[1].first": "Bob"}, True),
        ("by.names[2].first = null", {"by.names[2].first": None}, True),
        ("tags[0] = red", {"tags[0]": "red"}, True),
        ("by[0] = 7", {"by[0]": 7}, False),
        ("status.x = null", {"status.x": None}, True),
        ('"due date" = 2026-11-20', {'"due date"': "2026-11-20"}, True),
        ('"a.b" = 1', {'"a.b"': 1}, True),
        ("a.b = 1", {"a.b": 1}, False),
        ('"and" = 1', {'"and"': 1}, True),
        ('"" = "no name"', {'""': "no name"}, True),
        ("größe = 2", {"größe": 2}, True),
        # arrays and objects
        ("tags[*] = red", {"tags[*]": "red"}, True),
        ("tags[*] != red", {"tags[*]": {"!=": "red"}}, False),
        ("tags[*] > 6", {"tags[*]": {">": 6}}, True),
        ("by.names[*].first in [Bob]", {"by.names[*].first": {"in": ["Bob"]}}, True),
        ("exists tags[*]", {"tags[*]": {"exists": True}}, True),
        ("exists empty[*]", {"empty[*]": {"exists": True}}, False),
        ("tags[*] = null", {"tags[*]": None}, True),
        ("empty[*] = null", {"empty[*]": None}, False),
        ('tags = ["red", "blue", 7, null]', {"tags": ["red", "blue", 7, None]}, True),
        ("tags = [red, blue]", {"tags": ["red", "blue"]}, False),
        ('by.names[0] = {"first": "Ada"}', {"by.names[0]": {"=": {"first": "Ada"}}}, True),
        # of the record
        ("@id = task-1", {"@id": "task-1"}, True),
        ('"@id" = task-1', {'"@id"': "task-1"}, False),
        ("@author = planner and @clock >= 42", {"@author": "planner", "@clock": {">=": 42}}, True),
        ("@ts > 2026-11-20 and @ts < 2026-11-21", {"@ts": {">": "2026-11-20", "<": "2026-11-21"}}, True),
        # joined
        ("hours = 9 or status = active", {"or": [{"hours": 9}, {"status": "active"}]}, True),
        (
            "hours = 3 or hours = 9 and status = done",
            {"or": [{"hours": 3}, {"and": [{"hours": 9}, {"status": "done"}]}]},
            True,
        ),
        ("(hours = 3 or hours = 9) and status = done", {"or": [{"hours": 3}, {"hours": 9}], "status": "done"}, False),
        ("NOT (hours = 3 AND status = done)", {"not": {"hours": 3, "status": "done"}}, True),
        ("not hours = 3 and status = done", {"and": [{"not": {"hours": 3}}, {"status": "done"}]}, False),
    ],
)
def test_both_forms_say_the_same(text: str, mapping: dict[str, Any], found: bool) -> None:
    assert is_true(text) is is_true(mapping) is found


def test_an_empty_mapping_and_none_are_true_of_everything() -> None:
    assert is_true({})
    assert compiled(parse(None))(DOCUMENT, RECORD)
    assert not is_true({"or": []})


class Status(StrEnum):
    ACTIVE = "active"


class Hours(IntEnum):
    THREE = 3


def test_a_mapping_takes_what_typed_documents_are_made_of() -> None:
    assert is_true({"status": Status.ACTIVE, "hours": {"in": {Hours.THREE}}})
    assert is_true({'"due date"': {"=": date(2026, 11, 20)}})
    assert is_true({"@ts": {"<": datetime(2027, 1, 1, tzinfo=UTC)}})


@pytest.mark.parametrize(
    ("text", "caret", "reason"),
    [
        ("", "^", "a condition is expected here"),
        ("status", "      ^", "after status, =, !=, <"),
        ("status = ", "         ^", "a value is expected here"),
        ('status = "active" an hours > 3', "                  ^", "and, or, or the end is expected"),
        ("status = 'active'", "         ^", "double quotes"),
        ('status = "active', "         ^", 'no closing "'),
        (r'status = "\x"', "         ^", "not a JSON string"),
        ("status = True", "         ^", "write true"),
        ("status = None", "         ^", "write null"),
        ("status = and", "         ^", 'write "and"'),
        ("status == 3", "        ^", "== is written ="),
        ("status <> 3", "        ^", "<> is written !="),
        ("hours =< 3", "       ^", "=< is written <="),
        ("hours => 3", "       ^", "=> is written >="),
        ("due is null", "    ^", "as = null"),
        ("due IS NOT NULL", "    ^", "as != null"),
        ("title like 'B%'", "      ^", "SQL does (sql in Python, opslog query in a shell)"),
        ("title not LIKE x", "          ^", "no operator tests a part of a text"),
        ("hours between 3 and 8", "      ^", "hours >= 3 and hours <= 8"),
        ("hours > 3 order by hours", "          ^", "order_by gives it, or --sort"),
        ("hours > 3 limit 5", "          ^", "limit gives it, or --limit"),
        ("(status = 3", "           ^", ") is expected here"),
        ("status = 3)", "          ^", "and, or, or the end"),
        ("status in 3", "          ^", "an array is expected"),
        ("status in [3", "            ^", ", or ] is expected"),
        ("status not 3", "           ^", "in is expected here"),
        ("status = 1e999", "         ^", "beyond the range of a double"),
        ("status = " + "9" * 5000, "", "beyond the range of a double"),
        ('by = {"a": 1, "a": 2}', "              ^", "twice"),
        ("by = {a: 1}", "      ^", "double quotes"),
        ("or = 3", "^", 'written "or"'),
        ("a. = 3", "  ^", "the name of a field"),
        ("a[x] = 3", " ^", "an item of an array"),
        ("a[-1] = 3", " ^", "an item of an array"),
        ("@who = 3", "^", "a record has @id, @author, @clock, @ts"),
        ("größe 日本 = 3", "      ^", "after größe"),
        ('"日本" x', "       ^", "after 日本"),
        ("a = 1 and", "         ^", "a condition is expected here"),
        ("a\n= 1 b", "      ^", "and, or, or the end"),
        ("a = \ud800", "    ^", ""),
    ],
)
def test_faults_in_a_text_are_pointed_at(text: str, caret: str, reason: str) -> None:
    if text.endswith("\ud800"):
        assert not is_true(text)  # a word that is in no document
        return
    with pytest.raises(QueryError) as raised:
        parse(text)
    first, shown, pointer = str(raised.value).split("\n")
    assert reason in first
    if caret:
        assert shown == "  " + text.replace("\n", " ")
        assert pointer == "  " + caret
    assert isinstance(raised.value, UsageError)
    assert raised.value.offset is not None


def test_a_long_text_is_shown_around_the_error() -> None:
    with pytest.raises(QueryError) as raised:
        parse(" or ".join(["a = 1"] * 1000) + " !")
    _, shown, pointer = str(raised.value).split("\n")
    assert len(shown) < 120
    assert shown[len(pointer) - 1] == "!"


@pytest.mark.parametrize(
    ("mapping", "place", "reason"),
    [
        ({"hours": {"~": 3}}, "where['hours']['~']", "the operators are =, !=, <"),
        ({"by": {"team": 7}}, "where['by']['team']", "'by.team'"),
        ({"by": {}}, "where['by']", '{"=": {}}'),
        ({"a": [1, {2}]}, "", ""),
        ({"a": [1, object()]}, "where['a']", "unsupported"),
        ({"a": float("nan")}, "where['a']", "nan is not a JSON number"),
        ({"a": {"in": [1, float("inf")]}}, "where['a']['in'][1]", "inf is not"),
        ({"a": {"in": "text"}}, "where['a']['in']", "a list"),
        ({"a": {"exists": 1}}, "where['a']['exists']", "True or False"),
        ({"a": {"=": {1: 2}}}, "where['a']['=']", "the key 1 is not a string"),
        ({"or": {"a": 1}}, "where['or']", "a list of mappings"),
        ({"and": [{"a": 1}, 3]}, "where['and'][1]", "a mapping"),
        ({"not": [1]}, "where['not']", "a mapping"),
        ({3: 4}, "where[3]", "a path is a text"),
        ({"due date": 4}, "where['due date']", 'as in "due date"'),
        (3, "where", "a text or a mapping, not int"),
    ],
)
def test_faults_in_a_mapping_are_named_by_their_place(mapping: Any, place: str, reason: str) -> None:
    if not place:
        assert not is_true(mapping)
        return
    with pytest.raises(QueryError) as raised:
        parse(mapping)
    assert raised.value.place == place
    assert str(raised.value).startswith(place)
    assert reason in str(raised.value)


def test_deep_nesting_is_refused_and_never_overflows_the_stack() -> None:
    endless: dict[str, Any] = {}
    endless["not"] = endless
    items: list[Any] = []
    items.append(items)
    deep = "(" * 5000 + "a = 1" + ")" * 5000
    for where in (deep, "not " * 5000 + "a = 1", "a = " + "[" * 5000, endless, {"a": items}):
        with pytest.raises(QueryError):
            parse(where)
    most = "not " * (DEPTH_MAX - 2) + "a = 1"
    assert is_true(most) is is_true("a = 1")
    assert is_true(" or ".join(f"hours = {number}" for number in range(5000)))


@pytest.mark.parametrize("text", ["a", "a.b[0].c", 'tags[*]."x y"', "@id", '"@id"', '"a.b"', '""."\\u0007"', "größe"])
def test_paths_are_written_as_they_are_read(text: str) -> None:
    assert parse_path(str(parse_path(text))) == parse_path(text)
    assert str(parse_path(text)) == text


@pytest.mark.parametrize("text", ["", "a b", "a.", ".a", "a[", "a[0", "a[0]b", "@", "@x"])
def test_an_invalid_path_is_refused(text: str) -> None:
    with pytest.raises(QueryError):
        parse_path(text)


@pytest.mark.parametrize(
    "arguments",
    [
        (None, "tags[*]", None, 0),
        (None, 3, None, 0),
        (None, [3], None, 0),
        (None, "-", None, 0),
        (None, None, -1, 0),
        (None, None, True, 0),
        (None, None, 1.0, 0),
        (None, None, None, -1),
        (None, None, None, None),
    ],
)
def test_invalid_arguments_are_refused(arguments: Any) -> None:
    with pytest.raises(UsageError):
        question(*arguments)


# -- values


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([2**63, 2**64 - 1, 0.5, 1.0, -0.0, float(2**63)])
    | st.sampled_from(["", "a", "b", "é", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


def equal(one: Any, other: Any) -> bool:
    """Equality of JSON, implemented in another way."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


@relaxed
@given(JSON, JSON)
def test_keys_are_equal_where_values_are(one: Any, other: Any) -> None:
    assert (key_of(one) == key_of(other)) is equal(one, other)
    assert (rank(key_of(one)) == rank(key_of(other))) is equal(one, other)
    assert equal(value_of(key_of(one)), one)
    assert not is_true({"x": {"!=": one}}, {"x": one})


@relaxed
@given(st.lists(JSON | st.just(MISSING), max_size=8))
def test_values_of_all_types_have_one_order(values: list[Any]) -> None:
    ordered = sorted(values, key=lambda value: rank(key_of(value)))
    kinds = [(type(value) if type(value) is not float else int) for value in ordered]
    order = [type(MISSING), type(None), bool, int, str, list, dict]
    assert [order.index(kind) for kind in kinds] == sorted(order.index(kind) for kind in kinds)
    numbers = [value for value in ordered if type(value) in (int, float)]
    assert numbers == sorted(numbers)
    texts = [value for value in ordered if type(value) is str]
    assert texts == sorted(texts)


PATHS = st.sampled_from(["x", "y", "x.y", '"a b"', "x[0]", "x[*]", "@id"])


def spelled(condition: Condition) -> str:
    """A condition in its form as text."""
    if isinstance(condition, OneOf):
        return f"{condition.path} in {json.dumps([value_of(key) for key in condition.keys])}"
    if isinstance(condition, Range):
        return f"{condition.path}{condition.operator}{json.dumps(condition.limit)}"
    if isinstance(condition, Exists):
        return f"exists {condition.path}"
    if isinstance(condition, Not):
        return f"not ({spelled(condition.part)})"
    return "(" + (" and " if isinstance(condition, And) else " or ").join(map(spelled, condition.parts)) + ")"


def mapped(condition: Condition) -> dict[str, Any]:
    """A condition in its form as a mapping."""
    if isinstance(condition, OneOf):
        return {str(condition.path): {"in": [value_of(key) for key in condition.keys]}}
    if isinstance(condition, Range):
        return {str(condition.path): {condition.operator: condition.limit}}
    if isinstance(condition, Exists):
        return {str(condition.path): {"exists": True}}
    if isinstance(condition, Not):
        return {"not": mapped(condition.part)}
    return {"and" if isinstance(condition, And) else "or": [mapped(part) for part in condition.parts]}


LEAVES = st.one_of(
    st.builds(lambda path, values: OneOf(parse_path(path), frozenset(map(key_of, values))), PATHS, st.lists(JSON)),
    st.builds(
        lambda path, sign, limit: Range(parse_path(path), sign, limit),
        PATHS,
        st.sampled_from(["<", "<=", ">", ">="]),
        JSON,
    ),
    st.builds(lambda path: Exists(parse_path(path)), PATHS),
)
CONDITIONS: st.SearchStrategy[Condition] = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(Not, inner)
        | st.builds(lambda parts: And(tuple(parts)), st.lists(inner, min_size=2, max_size=3))
        | st.builds(lambda parts: Or(tuple(parts)), st.lists(inner, min_size=2, max_size=3))
    ),
    max_leaves=6,
)


@relaxed
@given(CONDITIONS, st.dictionaries(st.sampled_from(["x", "y", "a b"]), JSON, max_size=3))
def test_every_condition_has_an_answer_and_can_be_written_both_ways(condition: Condition, document: Any) -> None:
    answer = compiled(condition)(document, RECORD)
    assert answer is is_true(spelled(condition), document) is is_true(mapped(condition), document)
    assert compiled(Not(condition))(document, RECORD) is not answer


@relaxed
@given(st.text(alphabet="ab.[]0*\"'=<>!(){},: \\-@\n日ornotiexs", max_size=20))
def test_any_text_is_a_condition_or_has_a_place_where_it_is_none(text: str) -> None:
    offset: int | None = 0
    try:
        parse(text)
    except QueryError as error:
        offset = error.offset
    assert offset is not None
    assert 0 <= offset <= len(text)
