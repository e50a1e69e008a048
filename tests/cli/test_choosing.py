"""How commands choose documents: conditions, ages, and the fields of an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import opslog
from tests.cli.calling import call


def content(root: Path) -> dict[str, Any]:
    with opslog.open(root, read_only=True, version=None) as store:
        return dict(store.items())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two documents from the year 2000 with schema version 3, and one from now."""
    long_ago = opslog.Environment(time=lambda: 946_684_800.0)
    root = tmp_path / "store"
    with opslog.open(root, agent="old", version=3, environment=long_ago) as store:
        store["a"] = {"status": "done"}
        store["b"] = {"status": "active"}
    with opslog.open(root, agent="new") as store:
        store["c"] = {"status": "done"}
    return root


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--older-than", "52w"], "ab"),
        (["--older-than", "36500d"], ""),
        (["--where", "status=done"], "ac"),
        (["--where", "status=done", "--older-than", "365d"], "a"),
        (["--where", "status=done", "--where", "x=1"], ""),
    ],
)
def test_a_dry_run_shows_what_the_real_one_moves(store: Path, options: list[str], ids: str) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    shown = call(store, "archive", *options, "--dry-run")
    assert [line.split("\t")[0] for line in shown.out.splitlines()] == [*ids]
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    noun = "document" if len(ids) == 1 else "documents"
    assert call(store, "archive", *options, "--period", "p").out == f"archived {len(ids)} {noun}\n"
    assert sorted([*content(store), *ids]) == ["a", "b", "c"]
    assert call(store, "archive", "--load", "p").code == (0 if ids else 1)
    assert call(store, "archive", "--load", "p").out == shown.out


@pytest.mark.parametrize("options", [[], ["--plain"]])
def test_every_export_can_be_imported(store: Path, tmp_path: Path, options: list[str]) -> None:
    exported = call(store, "export", *options).out
    copy = tmp_path / "copy"
    assert call(copy, "--agent", "importer", "import", "-", stdin=exported.encode()).code == 0
    assert content(copy) == content(store)
    with opslog.open(copy, read_only=True, version=None) as opened:
        records = list(opened.records())
    assert [record.v for record in records] == [3, 3, 1]
    agents = ["old", "old", "new"] if not options else ["importer"] * 3
    assert [record.agent for record in records] == agents
    assert records[0].ts.startswith("2000-01-01T00:00:00") is (not options)


def test_a_set_keeps_the_schema_version(store: Path) -> None:
    assert call(store, "set", "a", "{}").code == 0
    assert call(store, "set", "c", "{}").code == 0
    assert [value["v"] for id in "ac" for value in call(store, "history", id, "--json").values] == [3, 3, 1, 1]


@pytest.mark.parametrize("command", [["ls"], ["count"], ["archive", "--dry-run"]])
def test_a_condition_that_cannot_be_read_is_pointed_at(tasks: Path, command: list[str]) -> None:
    done = call(tasks, *command, "--where", "status = active an hours > 3")
    assert done.code == 2
    assert "  status = active an hours > 3\n                  ^\n" in done.err.replace("'", "")
    assert call(tasks, *command, "--where", "status", "--json").code == 2


@pytest.mark.parametrize("options", [["ls", "--sort", "a b"], ["ls", "--sort", "a[*]"], ["count", "--by", "."]])
def test_a_path_that_cannot_be_read_is_pointed_at(tasks: Path, options: list[str]) -> None:
    done = call(tasks, *options)
    assert done.code == 2
    assert "^" in done.err
