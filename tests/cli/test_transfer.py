"""import, export. (What each source may look like is tested in tests/importers/.)"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import opslog as library
from tests.cli.conftest import Opslog


def content(root: Path) -> dict[str, Any]:
    with library.open(root, read_only=True, version=None) as store:
        return dict(store.items())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A store with documents of two agents, of two schema versions, and with all of Unicode."""
    root = tmp_path / "source"
    with library.open(root, agent="a") as a, library.open(root, agent="b", version=7) as b:
        a["x"] = {"z": 1, "a": [None, 2**64 - 1, -(2**63), 0.1]}
        b["é😀\u2028"] = {"n": {}}
        a["gone"] = {}
        del a["gone"]
    return root


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_an_export_can_be_imported_again(opslog: Opslog, source: Path, root: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    assert opslog("-s", str(source), "export", str(file), "--json").values == [{"documents": 2, "file": str(file)}]
    assert opslog("import", str(file), "--json").values == [
        {"commits": 2, "ops": 2, "agents": 2, "clock": 2, "archived": {}}
    ]
    assert content(root) == content(source)

    def exported(place: Path) -> list[Any]:
        with library.open(place, read_only=True, version=None) as store:
            return [(record.id, record.ts, record.agent, record.v, bytes(record.data)) for record in store.records()]

    assert exported(root) == exported(source)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]


def test_export_to_a_pipe(opslog: Opslog, source: Path) -> None:
    lines = opslog("-s", str(source), "export").out.split("\n")[:-1]
    assert [json.loads(line)["op"] for line in lines] == ["set", "set"]
    plain = opslog("-s", str(source), "export", "-", "--plain")
    assert [set(line) for line in plain.values] == [{"op", "id", "data"}, {"op", "id", "data", "v"}]
    assert plain.out.startswith(
        '{"op":"set","id":"x","data":{"z":1,"a":[null,18446744073709551615,-9223372036854775808,0.1]}}\n'
    )
    assert (
        opslog("import", "-", stdin="\n".join(lines).encode()).out == "imported 2 documents in 2 commits by 2 agents\n"
    )


def test_export_of_the_past(opslog: Opslog, source: Path) -> None:
    with library.open(source, read_only=True) as store:
        ts = [commit.ts for commit in store.ops() if commit.agent == "a"]
    assert opslog("-s", str(source), "export", "--as-of", "1").values[0]["clock"] == 1
    assert {line["id"] for line in opslog("-s", str(source), "export", "--plain", "--as-of", ts[1]).values} >= {
        "gone",
        "x",
    }
    answer = opslog("-s", str(source), "export", "--as-of", "yesterday")
    assert answer.code == 2
    assert "as_of takes a clock (an integer) or a time" in answer.err


def test_a_failed_export_leaves_nothing(
    opslog: Opslog, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    target = tmp_path / "out"
    target.write_text("what was there before")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        answer = opslog("-s", str(source), "export", str(target))
    assert answer.code == 3
    assert os.strerror(28) in answer.err
    assert target.read_text() == "what was there before"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out"]
    assert opslog("-s", str(source), "export", str(tmp_path / "no" / "out")).code == 3


def test_import_of_plain_lines_is_of_the_agent(opslog: Opslog, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines.gz"
    file.write_bytes(gzip.compress(b'{"id":"a","n":1}\n{"id":"b","n":2}\n{"id":"a","n":3}\n'))
    assert opslog("--agent", "me", "import", str(file)).out == "imported 3 documents in 3 commits\n"
    assert content(root) == {"a": {"n": 3}, "b": {"n": 2}}
    assert {line["agent"] for line in opslog("ops").values} == {"me"}


def test_a_bad_line_is_named_and_nothing_is_imported(opslog: Opslog, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b'{"id":"a"}\n{"id":7}\n')
    error = opslog("import", str(file), "--json").error
    assert (error["error"], error["path"], error["offset"]) == ("CorruptError", str(file), 11)
    assert not list(root.glob("ops/*/*"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "name one source"),
        (["a", "--git", "b"], "name one source"),
        (["nosuch"], "cannot read nosuch"),
        (["nosuch", "--salvage"], "--salvage and --archives are for a directory"),
        (["--git", "/"], "git"),
    ],
)
def test_sources_that_cannot_be(opslog: Opslog, root: Path, arguments: list[str], text: str) -> None:
    answer = opslog("import", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert text in answer.err
    assert not list(root.glob("*/*"))


def test_import_from_git(opslog: Opslog, root: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    environment = {**os.environ, "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*arguments: str, name: str = "Ann Example") -> None:
        identity = {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", name), ("EMAIL", name))
        }
        subprocess.run(
            ["git", "-C", repository, *arguments], check=True, capture_output=True, env=environment | identity
        )

    repository.mkdir()
    git("init")
    (repository / "one").write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    (repository / "two").write_text("2")
    git("add", ".")
    git("commit", "-m", "second", name="Bob")
    assert opslog("import", "--git", str(repository)).out == (
        "imported 2 versions of documents in 2 commits by 2 agents\n"
    )
    assert set(content(root)) == {"one", "two"}
    assert [line["agent"] for line in opslog("ops").values] == ["Ann-Example", "Bob"]
    other = root.with_name("other")
    assert opslog("-s", str(other), "import", "--git", str(repository), "--rev", "HEAD~1").code == 0
    assert set(content(other)) == {"one"}


class TestBacklog:
    """A directory as npm @backloghq/opslog leaves it after one of two writers has compacted it."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        directory = tmp_path / "npm"
        for name in ("snapshots", "ops", "archive"):
            (directory / name).mkdir(parents=True)
        ts = "2026-01-02T03:04:05.678Z"
        (directory / "snapshots" / "snap-1.json").write_text(
            json.dumps({"version": 1, "timestamp": ts, "records": {"a": {"n": 1}}})
        )
        op = {"ts": ts, "op": "set", "prev": None, "agent": "w", "clock": 1}
        (directory / "ops" / "agent-w-2.jsonl").write_text(json.dumps(op | {"id": "b", "data": {"n": 2}}) + "\n")
        (directory / "ops" / "agent-v-1.jsonl").write_text(
            json.dumps(op | {"agent": "v", "id": "lost", "data": {"n": 3}}) + "\n"
        )
        (directory / "archive" / "archive-2025-Q1.json").write_text(
            json.dumps({"version": 1, "period": "2025-Q1", "timestamp": ts, "records": {"old": {"n": 4}}})
        )
        (directory / "manifest.json").write_text(
            json.dumps(
                {
                    "version": 1,
                    "currentSnapshot": "snapshots/snap-1.json",
                    "activeOps": "ops/agent-w-2.jsonl",
                    "archiveSegments": ["archive/archive-2025-Q1.json"],
                    "activeAgentOps": {"w": "ops/agent-w-2.jsonl"},
                }
            )
        )
        return directory

    def test_the_state_and_an_offer_to_salvage(self, opslog: Opslog, root: Path, directory: Path) -> None:
        answer = opslog("import", str(directory))
        assert answer.code == 0
        assert "has 1 logs that its manifest no longer names (agent-v-1.jsonl, …)" in answer.err
        assert "--salvage" in answer.err
        assert content(root) == {"a": {"n": 1}, "b": {"n": 2}}

    def test_salvage_and_archives(self, opslog: Opslog, root: Path, directory: Path) -> None:
        answer = opslog("import", str(directory), "--salvage", "--archives", "--json")
        assert (answer.code, answer.err) == (0, "")
        assert answer.values[0]["archived"] == {"2025-Q1": 1}
        assert content(root) == {"a": {"n": 1}, "b": {"n": 2}, "lost": {"n": 3}}
        assert opslog("archive", "--load", "2025-Q1").out == 'old\t{"n":4}\n'
        assert opslog("verify").code == 0
        again = opslog("import", str(directory), "--archives")
        assert again.out.endswith("and 1 archived document\n")
        assert opslog("archive", "--load", "2025-Q1").out == 'old\t{"n":4}\n'

    def test_another_directory_is_refused(self, opslog: Opslog, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        answer = opslog("import", str(tmp_path / "empty"))
        assert answer.code == 2
        assert "manifest.json" in answer.err


def test_the_demo_runs(opslog: Opslog) -> None:
    (result,) = opslog("--json", "demo", "--seconds", "1", "--agents", "2", "--no-spark").values
    assert result["ok"] is True
    assert result["lost"] == 0
