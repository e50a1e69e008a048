"""Documents and ids: an accepted document comes back exactly, from memory, from the log and from a snapshot. If the
store cannot store it exactly, it refuses it and names the place in it."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import math
import shutil
import tracemalloc
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import Any, NamedTuple, NotRequired, TypedDict

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given, settings

import opslog
from opslog.format.documents import encode

Documents = dict[str, dict[str, Any]]

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.sampled_from(
        [0, -0.0, 0.0, 1, 1.0, True, 5e-324, 1e308, 1.7976931348623157e308, 2**53 + 1, "", "\0", "\u2028"]
    )
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))
DOCUMENTS = st.dictionaries(TEXT, VALUES, max_size=5)
STORES = st.dictionaries(TEXT, DOCUMENTS, max_size=4)

EVERYTHING: dict[str, Any] = {
    "null": None,
    "booleans": [True, False],
    "integers": [0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1],
    "floats": [0.0, -0.0, 1.0, -1.0, 5e-324, 2.2250738585072014e-308, 1e308, 1.7976931348623157e308, 0.1, 1e16, 1e22],
    "": "empty key",
    "text": [
        "",
        "\0",
        "\x7f",
        '\n\r\t"\\/',
        "\u2028\u2029",
        "\ufeff",
        "é",
        "e\u0301",
        "\U0010ffff",
        "🜁",
        "\ud7ff\ue000",
    ],
    "z": {"y": {"x": []}},
    "a": {},
    "nested": [[[[{}]]]],
    "keys": {"b": 1, "a": 2, "\n": 3, "\0": 4, "ä": 5, "10": 6, "9": 7},
}


def exact(value: object) -> object:
    """A representation that is equal only for values of the same types, with keys in the same order and zeros of the
    same sign."""
    if isinstance(value, dict):
        return type(value), [(key, exact(item)) for key, item in value.items()]
    if isinstance(value, list):
        return type(value), [exact(item) for item in value]
    if isinstance(value, float):
        return float, value.hex()
    return type(value), value


def assert_exact(found: Documents, wanted: Documents) -> None:
    assert list(found) == sorted(wanted)
    for id, document in wanted.items():
        assert exact(found[id]) == exact(document), f"document {id!r}"


@contextmanager
def directory() -> Iterator[Path]:
    """A directory for one Hypothesis example, because the examples of a test share their fixtures."""
    path = Path(mkdtemp(prefix="opslog-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def assert_round_trips(wanted: Documents) -> None:
    """Through memory, the log, a snapshot of one run, and an archive."""
    with directory() as root:
        with opslog.open(
            root, agent="a", durability="buffered", compact_after=None, settings=opslog.Settings(undo_window=0)
        ) as store:
            for id, document in wanted.items():
                store[id] = document
                assert exact(store[id]) == exact(document)
            assert_exact(dict(store.items()), wanted)
        with opslog.open(root, read_only=True) as from_log:
            assert_exact(dict(from_log.items()), wanted)
        with opslog.open(root, agent="b", compact_after=None) as store:
            done = store.compact(full=True)
            assert done.records == len(wanted)
        with opslog.open(root, agent="b", compact_after=None) as from_snapshot:
            assert_exact(dict(from_snapshot.items()), wanted)
            assert {id: exact(from_snapshot[id]) for id in wanted} == {id: exact(wanted[id]) for id in wanted}
            assert len(from_snapshot) == len(wanted)
            assert from_snapshot.archive(lambda document: True, "all") == len(wanted)
            if wanted:
                assert_exact(dict(sorted(from_snapshot.load_archive("all").items())), wanted)


@settings(deadline=None, max_examples=60)
@given(STORES)
@example({"": {}, "\n": {"": None}, "\0": {}, "/": {}, "../..": {}, ".": {}, "a/b": {}, "\u2028": {}, "\ufeff": {}})
@example(
    {"\ud7ff": {}, "\ue000": {}, "\uffff": {}, "\U00010000": {}, "\U0010ffff": {}, "z": {}, "é": {}, "e\u0301": {}}
)
@example({"everything": EVERYTHING})
def test_accepted_documents_come_back_exactly(documents: Documents) -> None:
    assert_round_trips(documents)


def test_a_document_takes_no_more_memory_than_its_text() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        texts = [encode({"number": number}) for number in range(100)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < sum(map(len, texts)) + 100 * 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(deadline=None, max_examples=5000)
@given(STORES)
def test_accepted_documents_come_back_exactly_at_length(documents: Documents) -> None:
    assert_round_trips(documents)


class Color(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Word(enum.StrEnum):
    ONE = "one"


class Point(NamedTuple):
    x: int


class Text(str):
    __slots__ = ()


@dataclass
class Task:
    title: str
    tags: list[str] = field(default_factory=list)


class Struct(msgspec.Struct):
    title: str


LIKE_ANYTHING = type("LikeAnything", (), {"__eq__": lambda self, other: True, "__hash__": lambda self: 0})()

# The document, and a word in the message.
REFUSED_VALUES = [
    (math.nan, "nan"),
    (math.inf, "inf"),
    (-math.inf, "-inf"),
    (2**64, "18446744073709551616"),
    (-(2**63) - 1, "-9223372036854775809"),
    (10**400, "64 bits"),
    ((1, 2), "tuple"),
    ((), "tuple"),
    (Point(1), "Point"),
    ({1}, "set"),
    (frozenset(), "frozenset"),
    (b"bytes", "bytes"),
    (bytearray(b"x"), "bytearray"),
    (datetime(2026, 1, 1, tzinfo=UTC), "datetime"),
    (date(2026, 1, 1), "date"),
    (time(12), "time"),
    (uuid.UUID(int=1), "UUID"),
    (Color.RED, "Color"),
    (Task("x"), "Task"),
    (Struct("x"), "Struct"),
    (Decimal("1.5"), "Decimal"),
    (Fraction(1, 2), "Fraction"),
    (1j, "complex"),
    (object(), "object"),
    (len, "builtin"),
    (range(3), "range"),
    (MappingProxyType({}), "mappingproxy"),
    (LIKE_ANYTHING, "LikeAnything"),
    ("\ud800", "surrogate"),
    ("a\udfffb", "surrogate"),
    ({"\ud800": 1}, "surrogate"),
    ({1: 1}, "the key 1 is not a string but int"),
    ({None: 1}, "the key None is not a string"),
    ({(1, 2): 1}, "the key"),
]


@pytest.mark.parametrize(
    ("value", "message"), REFUSED_VALUES, ids=[type(value).__name__ for value, _ in REFUSED_VALUES]
)
def test_values_that_cannot_be_stored_exactly_are_refused_with_their_place(value: object, message: str) -> None:
    with opslog.open(f"memory://refused-{id(value)}", agent="a") as store:
        documents = {"$.bad": {"bad": value}, "$.a[3].b": {"ok": 1, "a": [0, {}, [], {"b": value}]}}
        for place, document in documents.items():
            for write in (store.set, store.__setitem__):
                with pytest.raises(opslog.InvalidDocumentError) as caught:
                    write("doc", document)
                assert caught.value.place == place
                assert f"at {place}, " in str(caught.value)
                assert message in str(caught.value)
            with store.batch():
                store["other"] = {}
                with pytest.raises(opslog.InvalidDocumentError):
                    store["doc"] = document
        assert dict(store.items()) == {"other": {}}


@pytest.mark.parametrize(
    "value",
    [Number.ONE, Word.ONE, Text("x"), OrderedDict(), defaultdict(list), {Text("key"): 1}, {Word.ONE: 1}],
    ids=repr,
)
def test_values_that_would_come_back_as_another_type_are_refused(value: object) -> None:
    with opslog.open(f"memory://subtypes-{id(value)}", agent="a") as store:
        with pytest.raises(opslog.InvalidDocumentError, match=r"at \$\.a\[1\]\.b, "):
            store["doc"] = {"a": [0, {"b": value}]}
        assert len(store) == 0


@pytest.mark.parametrize(
    "document", [None, 1, "text", [], [("a", 1)], (), {1, 2}, Task("x"), b"{}", MappingProxyType({})], ids=repr
)
def test_a_document_is_a_dict(document: Any) -> None:
    with opslog.open("memory://not-dicts", agent="a") as store:
        with pytest.raises(opslog.InvalidDocumentError, match=r"at \$, .*a document is a JSON object"):
            store["doc"] = document
        assert "doc" not in store


def nested(levels: int, kind: type) -> dict[str, Any]:
    """A document with this many levels, itself included."""
    value: Any = {}
    for _ in range(levels - 2):
        value = {"k": value} if kind is dict else [value]
    return {"top": value}


@pytest.mark.parametrize("kind", [dict, list])
def test_nesting_has_a_limit_and_up_to_it_all_is_exact(kind: type) -> None:
    assert_round_trips({str(levels): nested(levels, kind) for levels in range(2, 255)})
    with opslog.open("memory://nesting", agent="a") as store:
        for levels in (255, 256, 257, 400, 2_000, 50_000):
            with pytest.raises(opslog.InvalidDocumentError, match="nested more than 254 levels deep"):
                store["deep"] = nested(levels, kind)
            with pytest.raises(opslog.InvalidDocumentError, match="nested more than 254 levels deep"):
                store["deep"] = {**nested(levels, kind), "last": [1, "x", None, 1.5]}
        store["wide"] = {**nested(254, kind), "last": [1, "x", None, 1.5]}


def test_a_document_that_contains_itself_is_refused() -> None:
    document: dict[str, Any] = {}
    document["self"] = document
    with opslog.open("memory://cycles", agent="a") as store, pytest.raises(opslog.InvalidDocumentError, match="itself"):
        store["doc"] = document


@pytest.mark.parametrize("id", ["\ud800", "a\udfff", 1, None, b"id", ("a",)], ids=repr)
def test_ids_that_no_document_can_have(id: Any) -> None:
    with opslog.open("memory://bad-ids", agent="a") as store:
        with pytest.raises(opslog.InvalidNameError, match="id"):
            store[id] = {}
        assert id not in store
        with pytest.raises(opslog.NotFoundError):
            store[id]
        with pytest.raises(opslog.NotFoundError):
            del store[id]
        assert store.get(id) is None
        assert len(store) == 0


def test_ids_are_in_the_order_of_code_points(tmp_path: Path) -> None:
    """UTF-16 has another order, in which code points above U+FFFF do not come last."""
    ids = ["", "\0", "\n", " ", "A", "a", "aa", "é", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"]
    with opslog.open(tmp_path, agent="a", settings=opslog.Settings(undo_window=3)) as store:
        for id in ids[::-2] + ids[-2::-2]:
            store[id] = {"id": id}
        for _ in range(2):
            assert list(store) == ids
            assert [document["id"] for document in store.values()] == ids
            store.compact()
    with opslog.open(tmp_path, read_only=True) as fresh:
        assert list(fresh) == ids
        assert [fresh[id]["id"] for id in ids] == ids


def test_lines_are_plain_json_for_everybody_else(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["the\nid ✓"] = EVERYTHING
    lines = (tmp_path / "ops/a/00000000000000000001.jsonl").read_bytes().removesuffix(b"\n").split(b"\n")
    assert len(lines) == 1
    line = json.loads(lines[0])
    assert (line["id"], exact(line["data"])) == ("the\nid ✓", exact(EVERYTHING))


def test_documents_handed_out_are_the_callers_own(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a", settings=opslog.Settings(undo_window=0)) as store:
        given: dict[str, Any] = {"list": [1], "dict": {}}
        store["a"] = given
        for _ in range(2):
            given["list"].append("changed")
            store["a"]["list"].append("changed")
            for document in [*store.values(), store.get("a") or {}, store.filter(bool)[0][1]]:
                document["dict"]["changed"] = True
            assert store["a"] == {"list": [1], "dict": {}}
            store.compact(full=True)


# -- types


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Person(msgspec.Struct, frozen=True):
    name: str
    age: int = 0


TYPED = [
    (Task, Task("build", ["a", "b"]), {"title": "build", "tags": ["a", "b"]}),
    (Movie, {"title": "x", "year": 1999}, {"title": "x", "year": 1999}),
    (Person, Person("Ada", 36), {"name": "Ada", "age": 36}),
]


@pytest.mark.parametrize(("kind", "value", "plain"), TYPED, ids=["dataclass", "TypedDict", "Struct"])
def test_typed_documents(tmp_path: Path, kind: type[Any], value: Any, plain: dict[str, Any]) -> None:
    with opslog.open(tmp_path, agent="a", type=kind, settings=opslog.Settings(undo_window=0)) as store:
        store["x"] = value
        with store.batch():
            store["y"] = value
            assert store["y"] == value
        for _ in range(2):
            assert (store["x"], store.get("y"), store.get("z")) == (value, value, None)
            assert type(store["x"]) is type(value)
            assert list(store.items()) == [("x", value), ("y", value)]
            assert store.filter(lambda found: found == value) == [("x", value), ("y", value)]
            store.compact(full=True)
        with pytest.raises(opslog.InvalidDocumentError, match=kind.__name__):
            store["bad"] = {"neither": "this nor that"}
        assert "bad" not in store
        store.archive(lambda found: True, "old")
        assert store.load_archive("old") == {"x": value, "y": value}
        store["x"] = value
    with opslog.open(tmp_path, read_only=True) as untyped:
        assert dict(untyped.items()) == {"x": plain}
    with opslog.open(tmp_path, read_only=True, type=kind) as typed:
        assert dict(typed.items()) == {"x": value}


def test_a_value_of_the_right_class_with_a_wrong_field_is_refused() -> None:
    with opslog.open("memory://wrong-field", agent="a", type=Task) as store:
        with pytest.raises(opslog.InvalidDocumentError, match="Task"):
            store["x"] = Task(1, ["a"])  # type: ignore[arg-type]
        with pytest.raises(opslog.InvalidDocumentError):
            store["x"] = dataclasses.replace(Task("x"), tags=[math.nan])  # type: ignore[list-item]
        assert len(store) == 0


def test_a_stored_document_of_another_shape_names_the_document(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["odd"] = {"name": 1}
    with opslog.open(tmp_path, agent="a", type=Person) as typed:
        with pytest.raises(opslog.SchemaMismatchError, match=r"'odd'.*by a at clock 1.*Person"):
            typed["odd"]
        del typed["odd"]
        assert len(typed) == 0


# -- schema versions


def migrate(document: dict[str, Any], version: int) -> dict[str, Any]:
    if version < 2:
        document = {"first": document["name"], "last": ""}
    if version < 3:
        document = {"name": {"first": document["first"], "last": document["last"]}}
    return document


def test_old_documents_are_migrated_when_read_and_changed_when_set(tmp_path: Path) -> None:
    versions: Iterator[tuple[int, dict[str, Any]]] = zip(
        itertools.count(1), [{"name": "Ada"}, {"first": "Ada", "last": "L"}, {"name": {"first": "Ada", "last": "L"}}]
    )
    for version, document in versions:
        with opslog.open(tmp_path, agent="a", version=version, settings=opslog.Settings(undo_window=0)) as store:
            store[f"v{version}"] = document
            store.compact()
    wanted = {
        "v1": {"name": {"first": "Ada", "last": ""}},
        "v2": {"name": {"first": "Ada", "last": "L"}},
        "v3": {"name": {"first": "Ada", "last": "L"}},
    }
    for compacted in (False, True):
        with opslog.open(tmp_path, agent="a", version=3, migrate=migrate) as store:
            assert dict(store.items()) == wanted
            assert {id: store[id] for id in store} == wanted
            if compacted:
                store.compact(full=True)
    with opslog.open(tmp_path, agent="a", version=None) as tool:
        assert tool["v1"] == {"name": "Ada"}
        tool["v2"] = {"first": "Ada", "last": "Lovelace"}  # keeps its version
    with opslog.open(tmp_path, agent="a", version=3, migrate=migrate) as store:
        assert store["v2"] == {"name": {"first": "Ada", "last": "Lovelace"}}
        store["v1"] = store["v1"]
    with opslog.open(tmp_path, read_only=True, version=3) as fresh:
        assert fresh["v1"] == wanted["v1"]


def test_a_document_of_a_newer_schema_is_an_error_that_names_it(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="new", version=7, settings=opslog.Settings(undo_window=0)) as store:
        store["new"] = {"form": "new"}
        store["replaced"] = {"form": "new"}
    for full in (False, True):
        with opslog.open(tmp_path, agent="old", version=2, migrate=migrate) as old:
            reads = (lambda: old["new"], lambda: old.get("new"), lambda: dict(old.items()), lambda: old.filter(bool))
            for read in reads:
                with pytest.raises(opslog.SchemaVersionError, match=r"'new'.*version 7 by new.*upgrade") as caught:
                    read()
                assert (caught.value.id, caught.value.version) == ("new", 7)
            assert "new" in old
            old["mine"] = {"name": "x"}
            assert old["mine"] == {"name": "x"}
            old.compact(full=full)
    with opslog.open(tmp_path, read_only=True, version=7) as new:
        assert new["new"] == {"form": "new"}


def test_versions_survive_batches_snapshots_and_undo(tmp_path: Path) -> None:
    with (
        opslog.open(tmp_path, agent="a", version=2, settings=opslog.Settings(undo_window=2)) as store,
        store.batch(),
    ):
        store["x"] = {"first": "a", "last": "b"}
        store["y"] = {"first": "a", "last": "b"}
    with opslog.open(tmp_path, agent="a", version=3, migrate=migrate) as store:
        store["x"] = {"name": {"first": "new", "last": "new"}}
        assert store.undo()
        for _ in range(3):
            assert store["x"] == store["y"] == {"name": {"first": "a", "last": "b"}}
            store["z"] = {"name": {}}
            store.compact(full=True)


class Odd(str):
    """An id with its own comparison and hash."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return 7


def test_an_id_is_its_text_whatever_class_it_is_of(tmp_path: Path) -> None:
    with opslog.open(tmp_path) as store:
        store[Odd("a")] = {"n": 1}
        assert store["a"] == store[Odd("a")] == {"n": 1}
        with store.batch():
            store[Odd("a")] = {"n": 2}
            store[Odd("b")] = {"n": 2}
            assert store["a"] == store[Odd("b")] == {"n": 2}
            del store[Odd("b")]
            assert Odd("b") not in store
        store.modify(Odd("a"), lambda document: {"n": document["n"] + 1 if document else 0})
        with store.transaction() as transaction:
            assert transaction[Odd("a")] == {"n": 3}
            transaction[Odd("c")] = {"n": 3}
            assert transaction["c"] == {"n": 3}
        assert [(id, type(id)) for id in store] == [("a", str), ("c", str)]
        assert Odd("a") in store
        assert store.record(Odd("a")) == store.record("a")
        del store[Odd("a")]
        assert "a" not in store
    with opslog.open(tmp_path, read_only=True) as store:
        assert list(store) == ["c"]


@pytest.mark.parametrize("documents", [0, 3, 3000], ids=["empty", "small", "a log of several chunks"])
def test_what_is_no_string_is_no_id(tmp_path: Path, documents: int) -> None:
    with opslog.open(tmp_path, durability="buffered", compact_after=None) as store:
        for number in range(documents):
            store[f"task-{number}"] = {"text": "x" * 1000}
    with opslog.open(tmp_path, read_only=True) as store:
        others: list[Any] = [5, None, b"task-1", 1.5, ("task-1",)]
        for id in others:
            assert store.get(id) is None
            assert store.record(id) is None
            assert id not in store
            with pytest.raises(opslog.NotFoundError):
                store[id]
