"""A program whose type does not know some fields of a stored document does not delete them by accident."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

import opslog
from opslog.format.known_fields import lost_field


@dataclass
class Step:
    name: str
    done: bool = False


class Point(NamedTuple):
    x: int
    y: int


class Cat(msgspec.Struct, tag="cat"):
    lives: int = 9


class Dog(msgspec.Struct, tag="dog", rename="camel"):
    good_boy: bool = True


class Row(msgspec.Struct, array_like=True):
    a: int
    b: int = 0


@dataclass
class Task:
    title: str
    first: Step | None = None
    steps: list[Step] = field(default_factory=list)
    by_name: dict[str, Step] = field(default_factory=dict)
    pair: tuple[Step, Step] | None = None
    pet: Cat | Dog | None = None
    anything: Any = None
    notes: dict[str, Any] = field(default_factory=dict)
    point: Point | None = None
    row: Row | None = None


@dataclass
class Nested:
    lists: list[list[Step]] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)


class Plain(TypedDict, total=False):
    title: str
    nested: dict[str, int]


class Lean(msgspec.Struct, omit_defaults=True):
    title: str = ""
    status: str = "active"


STEP = {"name": "a", "done": False}
MORE = STEP | {"due": 1}
OTHER, THIRD = STEP | {"name": "b"}, STEP | {"name": "c"}
LOST: list[tuple[type, dict[str, Any], dict[str, Any], str | None]] = [
    (Task, {"title": "a"}, {"title": "b"}, None),
    (Task, {"title": "a", "due": 1}, {"title": "a"}, "$.due"),
    (Task, {"title": "a", "due": None}, {"title": "a"}, "$.due"),
    (Task, {"title": "a", "due": 1}, {"title": "a", "due": 2}, None),
    (Task, {"first": MORE}, {"first": STEP}, "$.first.due"),
    (Task, {"first": MORE}, {"first": None}, None),
    (Task, {"first": MORE}, {}, None),
    (Task, {"steps": [STEP, MORE]}, {"steps": [STEP, STEP]}, "$.steps[1].due"),
    (Task, {"steps": [STEP, MORE]}, {"steps": [STEP]}, None),
    # Items that come, go and move.
    (Task, {"steps": [MORE]}, {"steps": [OTHER, STEP]}, "$.steps[0].due"),
    (Task, {"steps": [OTHER, MORE]}, {"steps": [STEP]}, "$.steps[1].due"),
    (Task, {"steps": [OTHER, MORE]}, {"steps": [STEP, OTHER]}, "$.steps[1].due"),
    (Task, {"steps": [OTHER, MORE]}, {"steps": [OTHER, THIRD, STEP]}, "$.steps[1].due"),
    (Task, {"steps": [OTHER, MORE]}, {"steps": [OTHER, THIRD]}, "$.steps[1].due"),
    (Task, {"steps": [MORE, OTHER]}, {"steps": [OTHER | {"done": True}]}, "$.steps[0].due"),
    (Task, {"steps": [MORE, OTHER, THIRD]}, {"steps": [OTHER, THIRD]}, None),
    (Task, {"steps": [MORE, OTHER, THIRD]}, {"steps": [THIRD, OTHER]}, None),
    (Task, {"steps": [MORE]}, {"steps": []}, None),
    (Task, {"steps": [STEP, OTHER]}, {"steps": [THIRD, STEP, OTHER]}, None),
    (Task, {"steps": [STEP, OTHER]}, {"steps": [THIRD]}, None),
    (Task, {"steps": [STEP, MORE]}, {"steps": [OTHER, MORE, STEP]}, None),
    (Task, {"steps": [MORE, MORE]}, {"steps": [MORE, STEP]}, "$.steps[1].due"),
    (Nested, {"lists": [[MORE], [STEP]]}, {"lists": [[STEP]]}, None),
    (Nested, {"lists": [[STEP], [MORE]]}, {"lists": [[OTHER]]}, "$.lists[1][0].due"),
    (Nested, {"tasks": [{"title": "a", "by_name": {"x": MORE}}]}, {"tasks": [{}, {}]}, "$.tasks[0].by_name.x.due"),
    (Task, {"by_name": {"x": MORE}}, {"by_name": {"x": STEP}}, "$.by_name.x.due"),
    (Task, {"by_name": {"x": MORE}}, {"by_name": {}}, None),
    (Task, {"pair": [STEP, MORE]}, {"pair": [STEP, STEP]}, "$.pair[1].due"),
    (Task, {"pet": {"type": "cat", "lives": 9, "owner": "x"}}, {"pet": {"type": "cat", "lives": 8}}, "$.pet.owner"),
    (Task, {"pet": {"type": "dog", "goodBoy": True}}, {"pet": {"type": "dog", "goodBoy": True}}, None),
    (Task, {"anything": {"x": 1}, "notes": {"y": {"z": 1}}}, {"anything": {}, "notes": {"y": {}}}, None),
    (Task, {"row": [1, 2, 3]}, {"row": [1, 2]}, "$.row[2]"),
    (Task, {"point": [1, 2]}, {"point": [3, 4]}, None),
    (Plain, {"title": "a", "due": 1}, {"title": "a"}, "$.due"),
    (Plain, {"nested": {"a": 1}}, {"nested": {}}, None),
    (Lean, {"title": "a", "status": "active"}, {"title": "a"}, None),
    (Lean, {"title": "a", "status": "active", "due": 1}, {"title": "a"}, "$.due"),
]


@pytest.mark.parametrize(("kind", "old", "new", "place"), LOST)
def test_fields_that_a_write_would_delete(
    kind: type, old: dict[str, Any], new: dict[str, Any], place: str | None
) -> None:
    assert lost_field(kind, old, new) == place


@dataclass
class First:
    title: str
    status: str = "active"


@dataclass
class Second:
    title: str
    status: str = "active"
    due: str = ""


DONE: dict[str, Callable[[opslog.Store[First]], None]] = {
    "set": lambda store: store.set("x", First("a", "done")),
    "read, change, set": lambda store: store.set("x", change(store["x"])),
    "update": lambda store: store.update({"x": First("a", "done")}),
}


def change(task: First) -> First:
    task.status = "done"
    return task


def in_a_batch(store: opslog.Store[First], write: Callable[[opslog.Store[First]], None]) -> None:
    with store.batch():
        store["z"] = First("c")
        write(store)


@pytest.mark.parametrize("way", DONE)
@pytest.mark.parametrize("durability", ["fsync", "buffered"])
@pytest.mark.parametrize("compacted", [False, True])
def test_an_older_program_does_not_delete_the_fields_of_a_newer_one(
    tmp_path: Path, way: str, durability: Any, compacted: bool
) -> None:
    settings = opslog.Settings(undo_window=0)
    with opslog.open(tmp_path, agent="new", type=Second, settings=settings) as newer:
        newer["x"] = Second("a", due="tomorrow")
        newer["y"] = Second("b")
        if compacted:
            newer.compact()
    with opslog.open(tmp_path, agent="old", type=First, durability=durability) as older:
        assert older["x"] == First("a"), "it can be read"
        with pytest.raises(opslog.InvalidDocumentError, match=r"delete \$\.due, which First does not know") as caught:
            DONE[way](older)
        assert caught.value.place == "$.due"
        with pytest.raises(opslog.InvalidDocumentError):
            in_a_batch(older, DONE[way])
        assert "z" not in older
        older["new"] = First("d")
        del older["y"]
        older["y"] = First("b")
    with opslog.open(tmp_path, read_only=True) as fresh:
        assert fresh["x"] == {"title": "a", "status": "active", "due": "tomorrow"}
        assert sorted(fresh) == ["new", "x", "y"]


def test_with_asyncio(tmp_path: Path) -> None:
    async def story() -> None:
        async with opslog.aio.open(tmp_path, agent="new", type=Second) as newer:
            await newer.set("x", Second("a", due="tomorrow"))
        async with opslog.aio.open(tmp_path, agent="old", type=First) as older:
            with pytest.raises(opslog.InvalidDocumentError, match=r"\$\.due"):
                await older.set("x", First("a", "done"))
            with pytest.raises(opslog.InvalidDocumentError, match=r"\$\.due"):
                async with older.batch() as batch:
                    await batch.set("x", First("a", "done"))
            await older.set("y", First("b"))

    asyncio.run(story())
    with opslog.open(tmp_path, read_only=True) as fresh:
        assert dict(fresh.items()) == {
            "x": {"title": "a", "status": "active", "due": "tomorrow"},
            "y": {"title": "b", "status": "active"},
        }


def test_a_field_that_goes_takes_a_new_version(tmp_path: Path) -> None:
    def migrate(document: dict[str, Any], version: int) -> dict[str, Any]:
        return {key: value for key, value in document.items() if key != "due"}

    with opslog.open(tmp_path, agent="a", type=Second) as store:
        store["x"] = Second("a", due="tomorrow")
    with opslog.open(tmp_path, agent="a", type=First, version=2) as hasty, pytest.raises(opslog.InvalidDocumentError):
        hasty["x"] = First("a", "done")
    with opslog.open(tmp_path, agent="a", type=First, version=2, migrate=migrate) as later:
        later["x"] = First("a", "done")
    with opslog.open(tmp_path, agent="b", type=Second) as older, pytest.raises(opslog.SchemaVersionError):
        older["x"] = Second("a", due="today")
    with opslog.open(tmp_path, read_only=True, version=2) as fresh:
        assert fresh["x"] == {"title": "a", "status": "done"}


def test_a_document_that_nobody_can_read_can_be_set_again(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {"title": "a", "due": 1}
    (segment,) = (tmp_path / "ops" / "a").iterdir()
    segment.write_bytes(segment.read_bytes().replace(b'"due"', b'"title"'))
    with opslog.open(tmp_path, agent="b", type=First) as typed:
        with pytest.raises(opslog.CorruptError):
            typed["x"]
        typed["x"] = First("anew")
        assert typed["x"] == First("anew")


def test_a_program_without_types_replaces_what_it_wants(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a", type=Second) as store:
        store["x"] = Second("a", due="tomorrow")
    with opslog.open(tmp_path, agent="a") as untyped:
        untyped["x"] = {"title": "a"}
        assert untyped["x"] == {"title": "a"}
