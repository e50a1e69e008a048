"""The JSON contract of docs/cli.md: exactly these fields, in this order, and documents as stored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import open_backend
from tests.cli.calling import Result, call

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
EXACT = '{"z":1,"a":[-9223372036854775808,18446744073709551615,1.0,-0.5,"\u009b\u2028😀",{"b":{},"a":[]}],"":null}'


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    with opslog.open(root, agent="one", version=2) as store:
        store["a"] = {"n": 1}
        store["b"] = {"n": 2}
    return root


def documented(command: str) -> list[str]:
    """The fields that the table of docs/cli.md lists for a command."""
    section = DOCUMENT[DOCUMENT.index("\n## JSON") :]
    (row,) = [line for line in section.splitlines() if re.match(rf"\|[^|]*`{command}`", line)]
    fields = row.split("|")[3]
    return re.findall(r"`(\w+)`", re.sub(r"\([^()]*\)", "", fields.split(";")[0]))


def fields(result: Result) -> list[str]:
    (value,) = result.values
    assert result.err == ""
    return list(value)


def test_single_answers_have_the_documented_fields(store: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert fields(call(store, "set", "c", "{}", "--json")) == documented("set") == ["set", "stamp"]
    assert fields(call(store, "get", "c", "--stamp", "--json")) == documented("get --stamp")
    assert fields(call(store, "delete", "c", "--json")) == documented("delete") == ["deleted"]
    assert fields(call(store, "undo", "--json")) == documented("undo") == ["undone", "documents"]
    assert fields(call(store, "compact", "--json")) == documented("compact")
    assert fields(call(store, "stats", "--json")) == documented("stats")
    assert fields(call(store, "verify", "--json")) == documented("verify")
    assert fields(call(store, "export", out, "--json")) == ["documents", "file"]
    assert fields(call(store, "import", out, "--json")) == documented("import")
    assert fields(call(store, "copy", str(store), str(tmp_path / "copy"), "--json")) == documented("copy")
    assert fields(call(store, "replay", "--to", f"{out}-all", "--json")) == documented("replay")
    assert (
        fields(call(store, "archive", "-w", "n=1", "--period", "p", "--json")) == documented("archive") == ["archived"]
    )
    assert fields(call(store, "archive", "--list", "--json")) == documented("archive --list") == ["period"]


def test_streams_have_one_object_per_line(store: Path) -> None:
    assert call(store, "ls", "--json").values == [{"id": "a", "data": {"n": 1}}, {"id": "b", "data": {"n": 2}}]
    assert call(store, "ls", "--ids", "--json").values == [{"id": "a"}, {"id": "b"}]
    assert [list(value) for value in call(store, "history", "a", "--json").values] == [
        ["ts", "clock", "agent", "author", "op", "id", "undone", "data", "v"]
    ]
    assert call(store, "archive", "--where", "n=2", "--dry-run", "--json").values == [{"id": "b", "data": {"n": 2}}]
    assert call(store, "archive", "--where", "n=2", "--period", "p", "--json").values == [{"archived": 1}]
    assert call(store, "archive", "--load", "p", "--json").values == [{"id": "b", "data": {"n": 2}}]
    assert [list(value) for value in call(store, "history", "b", "--json").values][-1] == [
        *("ts", "clock", "agent", "author", "op", "id", "undone", "archived")
    ]
    segments = sorted(store.glob("ops/*/*"))
    lines = "".join(path.read_text() for path in segments)
    assert sorted(call(store, "ops", "--json").out.splitlines()) == sorted(lines.splitlines())


def test_documents_are_passed_through_exactly(store: Path) -> None:
    assert call(store, "set", "x", EXACT).code == 0
    assert call(store, "get", "x", "--json").out == EXACT + "\n"
    assert call(store, "get", "x").out == EXACT + "\n"
    assert f'{{"id":"x","data":{EXACT}}}\n' in call(store, "ls", "--json").out
    assert f"x\t{EXACT}\n" in call(store, "ls").out
    assert f'"data":{EXACT}' in call(store, "history", "x", "--json").out
    assert f'"data":{EXACT}' in call(store, "export").out
    assert f'{{"op":"set","id":"x","data":{EXACT}}}\n' in call(store, "export", "--plain").out
    assert call(store, "archive", "-w", "z=1", "--period", "p").code == 0
    assert call(store, "archive", "--load", "p", "--json").out == f'{{"id":"x","data":{EXACT}}}\n'


def test_a_compaction_beside_another_is_done_and_silent(store: Path) -> None:
    backend = open_backend(store)
    with backend.lock("compaction"):
        result = call(store, "compact", "--json")
    backend.close()
    assert (result.code, result.err) == (0, "")
    assert (result.values[0]["locked"], result.values[0]["manifest"]) == (True, None)
    assert call(store, "compact", "--json").values[0]["locked"] is False


def test_orphaned_logs_are_counted(tmp_path: Path) -> None:
    npm = tmp_path / "npm"
    ts = "2026-01-02T03:04:05.678Z"
    op: dict[str, Any] = {"ts": ts, "op": "set", "prev": None, "data": {}}
    for path, value in {
        "manifest.json": {
            "version": 1,
            "currentSnapshot": "snapshots/snap-1.json",
            "activeOps": "ops/ops-2.jsonl",
            "archiveSegments": [],
        },
        "snapshots/snap-1.json": {"version": 1, "timestamp": ts, "records": {"a": {}}},
        "ops/ops-1.jsonl": op | {"id": "lost"},
        "ops/ops-2.jsonl": op | {"id": "b"},
    }.items():
        (npm / path).parent.mkdir(parents=True, exist_ok=True)
        (npm / path).write_text(json.dumps(value) + "\n")
    result = call(tmp_path / "store", "import", str(npm), "--json")
    assert (result.code, result.err) == (0, "")
    assert result.values[0]["orphaned_logs"] == 1
    result = call(tmp_path / "salvaged", "import", str(npm), "--salvage", "--json")
    assert "orphaned_logs" not in result.values[0]
    assert call(tmp_path / "salvaged", "ls", "--ids").out == "a\nb\nlost\n"


def test_options_of_all_commands_stand_before_or_after_them(store: Path) -> None:
    elsewhere = store.with_name("elsewhere")
    for arguments in (["--json", "ls", "--ids"], ["ls", "--json", "--ids"], ["ls", "--ids", "--json"]):
        assert call(store, *arguments).values == [{"id": "a"}, {"id": "b"}]
        assert call(elsewhere, "--store", str(store), *arguments).code == 0
        assert call(elsewhere, *arguments, "-s", str(store)).code == 0
    assert call(elsewhere, "-a", "x", "set", "d", "{}", "-s", str(store), "--agent", "y", "--json").code == 0
    assert call(store, "history", "d", "--json").values[0]["agent"] == "y"
