"""A directory that holds something else does not become a store. An empty directory, or a nearly empty one, does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import opslog
from opslog.backends import open_backend
from opslog.bulk.copying import copy


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


@pytest.mark.parametrize("url", [str, "file://{}".format], ids=["path", "file"])
def test_a_directory_with_other_files_is_refused_by_their_names_and_left_as_it_is(
    tmp_path: Path, url: Callable[[Path], str]
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "setup.py").touch()
    (tmp_path / "README.md").touch()
    with pytest.raises(opslog.InvalidNameError, match=r"not a store, and has other files: 'setup\.py', 'src'\. Give"):
        opslog.open(url(tmp_path), agent="a")
    with pytest.raises(opslog.NotFoundError):
        opslog.open(url(tmp_path), read_only=True)
    assert names(tmp_path) == {"src", "setup.py", "README.md"}


def test_only_some_of_many_files_are_named(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"row-{number:04}.csv").touch()
    with pytest.raises(opslog.InvalidNameError, match=r"'row-0004\.csv', …") as caught:
        opslog.open(tmp_path)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "name", [".gitignore", ".git", ".nfs0001", "lost+found", "README", "readme.txt", "LICENSE", "CACHEDIR.TAG"]
)
def test_files_that_people_and_systems_put_anywhere_do_not_hinder_a_store(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {}
    assert name in names(tmp_path)


def test_a_store_may_have_other_files_beside_it_later(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {}
    (tmp_path / "notes.csv").touch()
    with opslog.open(tmp_path, agent="b") as store:
        assert "x" in store


def test_a_store_whose_beginning_was_interrupted_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "locks" / "agents").mkdir(parents=True)
    opslog.open(tmp_path, agent="a").close()


def test_a_copy_into_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    with opslog.open(tmp_path / "s", agent="a") as store:
        store["x"] = {}
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "data.csv").touch()
    with pytest.raises(opslog.InvalidNameError, match=r"data\.csv"):
        copy(open_backend(tmp_path / "s"), open_backend(tmp_path / "t"))
    assert names(tmp_path / "t") == {"data.csv"}


def test_a_store_that_lost_its_manifests_is_still_called_damaged(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {}
    (tmp_path / "manifests" / f"{1:020}.json").unlink()
    (tmp_path / "manifests").rmdir()
    (tmp_path / "other.csv").touch()
    with pytest.raises(opslog.CorruptError, match="manifests"):
        opslog.open(tmp_path, agent="b")
