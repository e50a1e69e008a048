"""What all commands share: where the store and the agent come from, help, and errors of the store."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

import opslog as library
from opslog.cli import main, program
from opslog.cli.app import app
from opslog.cli.session import Session
from tests.cli.conftest import Opslog

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
SHELL = (sys.executable, "-m", "opslog")


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(app)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        yield name, command


def test_every_command_explains_itself(opslog: Opslog) -> None:
    for name, command in commands():
        answer = opslog(name, "--help")
        assert answer.code == 0
        assert f"opslog {name}" in answer.out
        assert command.help
    listing = opslog("--help").out
    assert all(f"  {name}" in listing for name, _ in commands())
    assert opslog("--version").out == f"opslog, version {library.__version__}\n"


def test_a_store_must_be_named(opslog: Opslog, root: Path) -> None:
    answer = opslog("ls", OPSLOG_STORE="")
    assert answer.code == 2
    assert "--store DIRECTORY, or set OPSLOG_STORE" in answer.err
    assert opslog("set", "x", "{}", "--store", str(root), OPSLOG_STORE="").code == 0
    assert opslog("-s", str(root), "ls", "--ids", OPSLOG_STORE="").out == "x\n"
    other = str(root / "other")
    assert opslog("-s", str(root), "get", "x", OPSLOG_STORE=other).code == 0
    assert opslog("-s", other, "get", "-s", str(root), "x").code == 0, "the nearest one counts"
    assert opslog("--json", "ls", OPSLOG_STORE=other).error["error"] == "NotFoundError"


def test_the_agent_may_come_from_the_environment(opslog: Opslog) -> None:
    opslog("set", "x", "{}", OPSLOG_AGENT="from-env")
    opslog("set", "x", "{}", "--agent", "given", OPSLOG_AGENT="from-env")
    assert [line["agent"] for line in opslog("ops").values] == ["from-env", "given"]
    answer = opslog("set", "x", "{}", "--agent", "no/good")
    assert answer.code == 2
    assert "agent 'no/good' is not a valid name" in answer.err


def test_the_garbage_collector_passes_over_what_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    before = gc.get_freeze_count()
    seen = []

    def run(arguments: Sequence[str]) -> int:
        seen.append((gc.isenabled(), gc.get_freeze_count() > before))
        return 3

    monkeypatch.setattr(program, "run", run)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        gc.unfreeze()
    assert seen == [(True, True)], "a command that runs for long needs the collector"
    assert ended.value.code == 3


def test_a_busy_agent_is_a_failure_that_says_what_to_do(opslog: Opslog, root: Path) -> None:
    with library.open(root, agent="main"):
        answer = opslog("set", "x", "{}")
        assert answer.code == 3
        assert f"pid {os.getpid()}" in answer.err
        assert opslog("--json", "undo").error["error"] == "AgentBusyError"
        assert opslog("ls").code == 0
        assert opslog("compact").code == 0


def test_damage_is_a_failure_with_file_and_offset(opslog: Opslog, root: Path) -> None:
    opslog("set", "x", "{}")
    (segment,) = root.glob("ops/main/*")
    segment.write_bytes(segment.read_bytes() + b"nonsense\n")
    answer = opslog("get", "x")
    assert (answer.code, answer.out) == (3, "")
    assert "byte 92" in answer.err
    error = opslog("get", "x", "--json").error
    assert (error["error"], error["path"], error["offset"]) == (
        "CorruptError",
        "ops/main/00000000000000000001.jsonl",
        92,
    )


def test_an_error_of_the_system_is_a_sentence(opslog: Opslog, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Session, as_of: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "/somewhere")

    monkeypatch.setattr(Session, "reading", fail)
    assert opslog("ls") == (3, "", f"opslog: /somewhere: {os.strerror(errno.EIO)}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(opslog: Opslog, shell: str) -> None:
    answer = opslog("completion", shell)
    assert answer.code == 0
    assert "_OPSLOG_COMPLETE" in answer.out


def test_completion_needs_a_known_shell(opslog: Opslog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert opslog("completion").code == 2
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert "function" in opslog("completion").out


def test_the_help_of_a_command_names_the_options_that_mean_something_to_it(opslog: Opslog) -> None:
    named = {
        name: {option for option in ("--store", "--agent", "--json") if f" {option} " in opslog(name, "--help").out}
        for name in (
            "get",
            "set",
            "ls",
            "compact",
            "archive",
            "export",
            "import",
            "copy",
            "serve",
            "demo",
            "completion",
        )
    }
    for name in ("get", "ls", "compact", "export"):
        assert named[name] == {"--store", "--json"}, name
    for name in ("set", "archive", "import", "serve"):
        assert named[name] == {"--store", "--agent", "--json"}, name
    for name in ("copy", "demo"):
        assert named[name] == {"--json"}, name
    assert named["completion"] == set()


def test_the_help_of_a_command_says_what_the_agent_is_there(opslog: Opslog) -> None:
    """Servers do not hold the name."""
    says = {name: " ".join(opslog(name, "--help").out.split()) for name in ("set", "serve", "mcp")}
    assert [name for name, text in says.items() if "one live process per name" in text] == ["set"]
    assert "[OPSLOG_AGENT; main]" in says["serve"]
    assert "[OPSLOG_AGENT; mcp]" in says["mcp"]


def test_a_script_may_give_all_commands_the_same_options(opslog: Opslog) -> None:
    opslog("set", "a", "{}", "--agent", "me")
    assert opslog("ls", "--ids", "--agent", "me").out == "a\n"
