"""The model of a disk: what can get lost, and what cannot."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.powercut.disk import (
    EXTREMES,
    AtRandom,
    Disk,
    Everything,
    Image,
    InTurn,
    Link,
    Make,
    Names,
    Nothing,
    Remove,
    Sync,
    Truncate,
    Write,
)

W = "/world"


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """A disk with an empty world. /world/d is a durable directory of inode 1."""
    disk = Disk(tmp_path)
    world = tmp_path.stat().st_ino
    disk.apply(Make(f"{tmp_path.resolve()}/d", 1, True))
    disk.apply(Sync(W, world))
    return disk


def path(disk: Disk, name: str) -> str:
    return f"{disk._world}/d/{name}"


def outcomes(disk: Disk) -> list[Image]:
    found: list[Image] = []
    for chooser in InTurn.all():
        image = disk.after_cut(chooser)
        assert image.pop("d") is None
        if image not in found:
            found.append(image)
    return found


def test_a_name_and_bytes_are_durable_each_by_its_own_fsync(disk: Disk) -> None:
    disk.apply(Make(path(disk, "f"), 2, False))
    assert outcomes(disk) == [{}, {"d/f": b""}]
    disk.apply(Write(path(disk, "f"), 2, 0, b"xy"))
    assert sorted(image.get("d/f", b"?") or b"" for image in outcomes(disk)) == [
        b"", b"\0\0", b"\0y", b"?", b"x", b"x\0", b"xy",
    ]  # fmt: skip
    disk.apply(Sync(path(disk, "f"), 2))
    assert outcomes(disk) == [{}, {"d/f": b"xy"}]
    disk.apply(Sync(path(disk, ""), 1))
    assert outcomes(disk) == [{"d/f": b"xy"}]


def test_a_durable_beginning_stays_as_it_is(disk: Disk) -> None:
    for event in (
        Make(path(disk, "f"), 2, False),
        Write(path(disk, "f"), 2, 0, b"old\n"),
        Sync(path(disk, "f"), 2),
        Sync(path(disk, ""), 1),
        Write(path(disk, "f"), 2, 4, b"new\nmore\n"),
    ):
        disk.apply(event)
    rng = random.Random(1)
    contents = {disk.after_cut(AtRandom(rng))["d/f"] for _ in range(2000)}
    assert len(contents) > 50
    for content in contents:
        assert content is not None
        assert content.startswith(b"old\n")
        assert all(byte in (0, ord(was)) for byte, was in zip(content[4:], "new\nmore\n", strict=False))
    assert b"old\n\0\0\0\0more\n" in contents, "a hole before good bytes"
    disk.apply(Truncate(path(disk, "f"), 2, 0))
    assert {image["d/f"] for image in outcomes(disk)} == {b"old\n", b""}


def test_removed_names_can_come_back_independently(disk: Disk) -> None:
    for number, name in ((2, "f"), (3, "g")):
        disk.apply(Make(path(disk, name), number, False))
    disk.apply(Sync(path(disk, ""), 1))
    for name in "fg":
        disk.apply(Remove(path(disk, name)))
    assert sorted(map(sorted, outcomes(disk))) == [[], ["d/f"], ["d/f", "d/g"], ["d/g"]]
    disk.apply(Sync(path(disk, ""), 1))
    assert outcomes(disk) == [{}]


def test_both_names_of_a_file_have_one_content(disk: Disk) -> None:
    disk.apply(Make(path(disk, "f"), 2, False))
    disk.apply(Write(path(disk, "f"), 2, 0, b"x"))
    disk.apply(Link(path(disk, "f"), path(disk, "g")))
    assert {"d/f": b"\0", "d/g": b""} not in outcomes(disk)
    assert {"d/f": b"\0", "d/g": b"\0"} in outcomes(disk)
    assert {"d/g": b"x"} in outcomes(disk), "each of the names can be there alone"


def test_with_a_directory_all_below_it_is_gone(disk: Disk) -> None:
    disk.apply(Make(path(disk, "e"), 2, True))
    disk.apply(Make(path(disk, "e/f"), 3, False))
    disk.apply(Sync(path(disk, "e/f"), 3))
    disk.apply(Sync(path(disk, "e"), 2))
    assert disk.after_cut(Nothing()) == {"d": None}
    assert disk.after_cut(Names()) == {"d": None, "d/e": None, "d/e/f": b""}


def test_everything_is_what_was_written(disk: Disk) -> None:
    disk.apply(Make(path(disk, "f"), 2, False))
    disk.apply(Write(path(disk, "f"), 2, 0, b"x"))
    assert disk.after_cut(Everything()) == {"d": None, "d/f": b"x"}
    for chooser in EXTREMES:
        assert disk.after_cut(chooser) in [{"d": None, **image} for image in outcomes(disk)]
