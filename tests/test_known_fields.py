"""A program whose type does not know some fields of a stored document does not delete them by accident."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, cast

import msgspec
import pytest

import opslog
from opslog.environment import Environment
from opslog.format.known_fields import lost_field

ANY = object()


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
    below: Plain


class Label(msgspec.Struct, frozen=True):
    name: str = ""


class Labels(msgspec.Struct):
    labels: set[Label] = msgspec.field(default_factory=set)
    frozen: frozenset[Label] = frozenset()
    title: str = ""


class Lean(msgspec.Struct, omit_defaults=True):
    title: str = ""
    status: str = "active"
    plain: Plain = msgspec.field(default_factory=cast(Callable[[], Plain], dict))
    label: Label = Label()
    step: Step | None = None
    unset: Step | msgspec.UnsetType = msgspec.UNSET
    any: Any = ANY


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
    (Task, {"steps": [STEP, MORE]}, {"steps": None}, None),
    # Items that come, go and move.
    (Task, {"steps": [STEP, MORE]}, {"steps": [STEP]}, "$.steps[1].due"),
    (Task, {"steps": [MORE]}, {"steps": [OTHER, STEP]}, "$.steps[0].due"),
    (Task, {"steps": [OTHER, MORE]}, {"steps": [STEP]}, "$.steps[1].due"),
    (Task, {"steps": [OTHER, MORE]}, {"steps": [STEP, OTHER]}, "$.steps[1].due"),
    (Task, {"steps": [OTHER, MORE]}, {"steps": [OTHER, THIRD, STEP]}, "$.steps[1].due"),
    (Task, {"steps": [OTHER, MORE]}, {"steps": [OTHER, THIRD]}, "$.steps[1].due"),
    (Task, {"steps": [MORE, OTHER]}, {"steps": [OTHER | {"done": True}]}, "$.steps[0].due"),
    (Task, {"steps": [MORE, OTHER, THIRD]}, {"steps": [OTHER, THIRD]}, "$.steps[0].due"),
    (Task, {"steps": [MORE, OTHER, THIRD]}, {"steps": [THIRD, MORE]}, None),
    (Task, {"steps": [MORE]}, {"steps": []}, None),
    (Task, {"steps": [MORE, OTHER]}, {"steps": []}, None),
    (Task, {"steps": [STEP, OTHER]}, {"steps": [THIRD, STEP, OTHER]}, None),
    (Task, {"steps": [STEP, OTHER]}, {"steps": [THIRD]}, None),
    (Task, {"steps": [STEP, MORE]}, {"steps": [OTHER, MORE, STEP]}, None),
    (Task, {"steps": [MORE, MORE]}, {"steps": [MORE, STEP]}, "$.steps[1].due"),
    (Nested, {"lists": [[MORE], [STEP]]}, {"lists": [[STEP]]}, "$.lists[0][0].due"),
    (Nested, {"lists": [[MORE], [STEP]]}, {"lists": []}, None),
    (Labels, {"labels": [{"name": "a"}, {"name": "a", "due": 1}]}, {"labels": [{"name": "a"}]}, "$.labels[1].due"),
    (Labels, {"labels": [{"name": "a", "due": 1}]}, {"labels": [{"name": "b"}]}, "$.labels[0].due"),
    (Labels, {"labels": [{"name": "a"}, {"name": "b"}]}, {"labels": [{"name": "c"}]}, None),
    (Labels, {"labels": [{"name": "a", "due": 1}]}, {"labels": []}, None),
    (Labels, {"frozen": [{"name": "a", "due": 1}]}, {"frozen": [{"name": "b"}]}, "$.frozen[0].due"),
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
    (Lean, {"any": {"due": 1}}, {}, None),
    # What was left out has its default value, and was not removed.
    (Lean, {"plain": {"due": 1}}, {}, "$.plain.due"),
    (Lean, {"plain": {"title": "a"}}, {}, None),
    (Lean, {"label": {"name": "a", "due": 1}}, {}, "$.label.due"),
    (Lean, {"step": MORE}, {}, None),
    (Lean, {"unset": MORE}, {}, None),
    (Plain, {"below": {"due": 1}}, {}, None),
]


@pytest.mark.parametrize(("kind", "old", "new", "place"), LOST)
def test_fields_that_a_write_would_delete(
    kind: type, old: dict[str, Any], new: dict[str, Any], place: str | None
) -> None:
    assert lost_field(kind, old, new) == place


class Node(msgspec.Struct):
    title: str = ""
    below: Node | None = None


def finish(task: Task) -> None:
    task.steps = [step for step in task.steps if not step.done]
    for step in task.steps:
        step.done = True


def rename(document: Any) -> None:
    document.title = "new"


def deep(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {"title": "x", "below": None}
    for _ in range(levels - 1):
        document = {"title": "x", "below": document}
    return document


CHANGES: list[tuple[type, dict[str, Any], Callable[[Any], None], str]] = [
    (Lean, {"title": "x", "plain": {"due": 1}}, rename, r"delete \$\.plain\.due,"),
    (Labels, {"labels": [{"name": "a"}, {"name": "a", "due": 1}]}, rename, r"delete \$\.labels\[1\]\.due,"),
    # The second step becomes equal to the one that is removed.
    (Task, {"title": "x", "steps": [STEP | {"done": True}, MORE]}, finish, r"delete \$\.steps\[1\]\.due,"),
]


@pytest.mark.parametrize(("kind", "stored", "change", "message"), CHANGES)
def test_a_program_reads_changes_and_sets_a_document(
    tmp_path: Path, kind: type, stored: dict[str, Any], change: Callable[[Any], None], message: str
) -> None:
    with opslog.open(tmp_path, agent="new") as newer:
        newer["x"] = stored
    older: opslog.Store[Any] = opslog.open(tmp_path, agent="old", type=kind)
    with older:
        document = older["x"]
        change(document)
        with pytest.raises(opslog.InvalidDocumentError, match=message):
            older["x"] = document
    with opslog.open(tmp_path, read_only=True) as fresh:
        assert fresh["x"] == stored


def test_a_deep_document_is_set_or_refused_with_a_reason(tmp_path: Path) -> None:
    """How deep the comparison goes differs between versions of Python."""
    with opslog.open(tmp_path, agent="new") as newer:
        newer["x"] = deep(253)
    older: opslog.Store[Any] = opslog.open(tmp_path, agent="old", type=Node)
    title = "new"
    with older:
        document = older["x"]
        rename(document)
        try:
            older["x"] = document
        except opslog.InvalidDocumentError as error:
            assert "'x' is nested too deeply" in str(error)  # noqa: PT017  (it need not be raised)
            title = "x"
        assert older["x"].title == title


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


# How the call of a typed store comes to read what it has not seen before.
READING: dict[str, dict[str, Any]] = {
    "the document is guarded": {"guarded": True},
    "all writes go to the shared log": {"log": "shared"},
    "the store was idle for half of the tombstone TTL": {"idle": 51.0},
}


@pytest.mark.parametrize("reading", READING)
@pytest.mark.parametrize("way", ["set", "batch", "asyncio", "batch with asyncio"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_set_that_reads_more_first_is_checked_on_what_it_has_read(
    tmp_path: Path, reading: str, way: str, version: int
) -> None:
    def writes(*, guarded: bool = False, log: Literal["own", "shared"] = "own", idle: float = 0.0) -> None:
        now = [1000.0]
        environment = Environment(time=lambda: 1_800_000_000.0 + now[0], monotonic=lambda: now[0])
        options: dict[str, Any] = {"environment": environment, "compact_after": None}
        settings = opslog.Settings(tombstone_ttl_seconds=100)
        newer = opslog.open(tmp_path, agent="new", type=Second, version=version, settings=settings, **options)

        def write() -> None:
            newer["x"] = Second("a", due="tomorrow")
            now[0] += idle

        async def with_asyncio() -> None:
            async with opslog.aio.open(tmp_path, agent="old", type=First, log=log, **options) as older:
                write()
                if way == "asyncio":
                    await older.set("x", First("a", "done"))
                else:
                    async with older.batch() as batch:
                        await batch.set("x", First("a", "done"))

        with newer:
            if guarded:
                with opslog.open(tmp_path, agent="first", type=First) as first:
                    first.create("x", First("a"))
                newer.refresh()
            if "asyncio" in way:
                asyncio.run(with_asyncio())
                return
            with opslog.open(tmp_path, agent="old", type=First, log=log, **options) as older:
                write()
                DONE["set" if way == "set" else "update"](older)

    with pytest.raises(opslog.InvalidDocumentError if version == 1 else opslog.SchemaVersionError):
        writes(**READING[reading])
    with opslog.open(tmp_path, read_only=True, version=version) as fresh:
        assert dict(fresh.items()) == {"x": {"title": "a", "status": "active", "due": "tomorrow"}}


def test_a_batch_may_replace_a_guarded_document_that_it_has_deleted(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="new", type=Second) as newer:
        newer.create("x", Second("a", due="tomorrow"))
    with opslog.open(tmp_path, agent="old", type=First) as older:
        with older.batch():
            del older["x"]
            older["x"] = First("b")
        assert older["x"] == First("b")
    with opslog.open(tmp_path, read_only=True) as fresh:
        assert fresh["x"] == {"title": "b", "status": "active"}


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
