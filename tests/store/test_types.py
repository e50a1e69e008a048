"""The types of documents that a store accepts, and its errors for documents and values of other types."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

import opslog


@dataclass
class First:
    title: str


@dataclass
class Second:
    title: str
    owner: str


@dataclass
class Nested:
    name: str
    children: list[Nested] = field(default_factory=list)


class Pair(NamedTuple):
    a: int
    b: int


class Listed(msgspec.Struct, array_like=True):
    a: int


class Cat(msgspec.Struct, tag=True):
    name: str


class Dog(msgspec.Struct, tag=True):
    name: str


class Typed(TypedDict):
    title: str


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with a document of the first version."""
    with opslog.open(tmp_path / "s", agent="a", type=First) as store:
        store["x"] = First("Build")
    return str(tmp_path / "s")


def test_an_old_document_without_migrate_is_no_damage_and_the_error_names_the_field_the_version_and_migrate(
    url: str,
) -> None:
    with (
        opslog.open(url, agent="b", type=Second, version=2) as store,
        pytest.raises(opslog.SchemaMismatchError) as caught,
    ):
        store["x"]
    message = str(caught.value)
    for part in ("'x'", "by a at clock 1", "version 1", "`owner`", "Second", "version 2", "`migrate` is missing"):
        assert part in message
    assert "not damaged" in message
    assert "opslog verify" not in message
    assert not isinstance(caught.value, opslog.CorruptError)
    arrived = pickle.loads(pickle.dumps(caught.value))
    assert (arrived.id, arrived.version) == ("x", 1)


@pytest.mark.parametrize("returned", [{"title": "Build"}, None])
def test_an_unfit_result_of_migrate_is_named(url: str, returned: Any) -> None:
    with (
        opslog.open(url, read_only=True, type=Second, version=2, migrate=lambda document, version: returned) as store,
        pytest.raises(opslog.SchemaMismatchError, match="correct what `migrate` returns"),
    ):
        dict(store.items())


@pytest.mark.parametrize("returned", [None, [], "text"])
def test_a_migrate_that_returns_no_document_does_not_make_documents_seem_absent(tmp_path: Path, returned: Any) -> None:
    """A `modify` would otherwise replace a document that it takes for absent."""
    with opslog.open(tmp_path / "s", agent="a") as store:
        store["x"] = {"n": 1}
    with opslog.open(tmp_path / "s", agent="a", version=2, migrate=lambda document, version: returned) as store:
        calls: list[Callable[[], object]] = [
            lambda: store["x"],
            lambda: store.get("x"),
            lambda: store.modify("x", lambda document: document or {"n": 0}),
            lambda: list(store.find("n = 1")),
            lambda: dict(store.items()),
        ]
        for call in calls:
            with pytest.raises(opslog.SchemaMismatchError, match=f"It returned {type(returned).__name__}"):
                call()
    with opslog.open(tmp_path / "s", read_only=True) as store:
        assert store["x"] == {"n": 1}


@dataclass
class Route:
    ends: tuple[int, int]
    stops: tuple[Pair, ...] = ()


class Ends(TypedDict):
    at: tuple[int, ...]


class Located(msgspec.Struct):
    at: Pair | None = None
    names: dict[str, tuple[str, ...]] = {}


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Route, Route((1, 2), (Pair(3, 4),)), '{"ends":[1,2],"stops":[[3,4]]}'),
        (Located, Located(Pair(1, 2), {"a": ("b", "c")}), '{"at":[1,2],"names":{"a":["b","c"]}}'),
        (Ends, {"at": (1, 2)}, '{"at":[1,2]}'),
    ],
    ids=["dataclass", "Struct", "TypedDict"],
)
def test_tuples_of_a_type_are_stored_as_lists(tmp_path: Path, kind: Any, value: Any, text: str) -> None:
    with opslog.open(tmp_path / "s", agent="a", type=kind) as store:
        store["x"] = value
        assert store["x"] == value
        store["x"] = store["x"]
        store.modify("x", lambda document: document)
        record = store.record("x")
        assert record is not None
        assert bytes(record.data).decode() == text
        assert store["x"] == value


def test_a_document_of_the_same_version_and_another_type_is_no_damage(url: str) -> None:
    with (
        opslog.open(url, read_only=True, type=Second) as store,
        pytest.raises(opslog.SchemaMismatchError, match=r"`owner`.*not damaged.*default") as caught,
    ):
        store.filter(lambda document: True)
    assert "`migrate` is missing" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (int, "int"),
        (str, "str"),
        (list, "list"),
        (list[First], "list"),
        (object, "object"),
        (Any, "Any"),
        (type(None), "NoneType"),
        (First | None, "None"),
        (Pair, "Pair"),
        (Listed, "Listed"),
        ("First", "First"),
        (First("x"), "First"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isalpha() else "-",
)
def test_a_type_whose_values_are_no_json_objects_is_refused_before_there_is_a_store(
    tmp_path: Path, kind: Any, named: str
) -> None:
    with pytest.raises(opslog.UsageError, match=named):
        opslog.open(tmp_path / "s", agent="a", type=kind)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("kind", [First, Typed, dict, dict[str, int], Cat | Dog], ids=lambda kind: str(kind)[-12:])
def test_types_whose_values_are_json_objects_are_taken(kind: Any) -> None:
    with opslog.open("memory://", agent="a", type=kind) as store:
        assert len(store) == 0


def test_a_typed_value_in_a_store_without_a_type_names_type() -> None:
    with opslog.open("memory://", agent="a") as store:
        with pytest.raises(opslog.InvalidDocumentError, match="open the store with type=First"):
            store["x"] = First("Build")  # type: ignore[arg-type]
        with pytest.raises(opslog.InvalidDocumentError, match=r"open the store with type=Cat$"):
            store["x"] = Cat("Tom")  # type: ignore[arg-type]
        with pytest.raises(opslog.InvalidDocumentError, match=r"at \$\.task, First is not .*type="):
            store["x"] = {"task": First("Build")}


def test_a_document_that_contains_itself_is_named_where_it_does() -> None:
    document: dict[str, Any] = {"a": [1]}
    document["a"].append({"back": document["a"]})
    with opslog.open("memory://", agent="a") as store:
        with pytest.raises(opslog.InvalidDocumentError) as caught:
            store["x"] = document
        assert caught.value.place == "$.a[1].back"
        assert str(caught.value).endswith("at $.a[1].back, it contains itself: this is the same list as at $.a")
        shared = [1]
        store["x"] = {"one": shared, "other": {"again": shared}}
        assert store["x"] == {"one": [1], "other": {"again": [1]}}


def test_a_typed_value_that_contains_itself_is_refused() -> None:
    nested = Nested("a")
    nested.children.append(nested)
    with (
        opslog.open("memory://", agent="a", type=Nested) as store,
        pytest.raises(opslog.InvalidDocumentError),
    ):
        store["x"] = nested


def test_a_deep_place_is_shown_in_short() -> None:
    document: dict[str, Any] = {}
    for _ in range(300):
        document = {"deeper": document}
    with opslog.open("memory://", agent="a") as store, pytest.raises(opslog.InvalidDocumentError) as caught:
        store["x"] = document
    assert caught.value.place == "$" + ".deeper" * 254
    assert len(str(caught.value)) < 250
    assert "more than 254 levels deep" in str(caught.value)
