"""What documents say about the command line is true: each command they mention exists, and the backup restores."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

import opslog
from opslog.cli.app import app
from tests.cli.calling import shell

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def options_of(command: click.Command) -> set[str]:
    return {form for option in command.params if isinstance(option, click.Option) for form in option.opts}


def test_the_page_describes_every_command_and_option_and_no_other() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    context = click.Context(app)
    commands = {name: app.get_command(context, name) for name in app.list_commands(context)}
    described = set(re.findall(r"^(?:[^`\n]*and )?`opslog ([a-z]+)[^`\n]*`", page, re.MULTILINE))
    assert described >= set(commands), "a paragraph of docs/cli.md begins with `opslog COMMAND …`"
    known = options_of(app) | {"--help", "-h"}
    for name, command in commands.items():
        assert command is not None, name
        known |= options_of(command)
    assert set(re.findall(r"`(--?[a-z][a-z-]*)", page)) == known


def mentioned(text: str) -> set[str]:
    """The text after `opslog` wherever it is a command: at the start of code, in a job, in a shell block."""
    code = re.findall(r"`([^`\n]+)`", text)
    blocks = re.findall(r"(?ms)^```(?:sh|console|cron|ini)\n(.*?)^```$", text)
    lines = [*code, *(line for block in blocks for line in block.splitlines())]
    return {found for line in lines for found in re.findall(r"(?:^|[ ;|(])opslog ([a-z-].*)", line)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_that_documents_mention_exist(path: Path) -> None:
    context = click.Context(app)
    for text in mentioned(path.read_text(encoding="utf-8")):
        words = shlex.split(re.split(r"\\?\||;", text)[0], comments=True)
        while words[0].startswith("-"):
            del words[: 1 if words[0] == "--json" else 2]
        command = app.get_command(context, words[0])
        assert command is not None, f"{path.name}: opslog {text}"
        options = options_of(app) | options_of(command)
        given = {word for word in words if re.match(r"--?[a-z]", word)}
        assert given <= options, f"{path.name}: opslog {text}"


def test_mentions_are_found() -> None:
    """Otherwise the test above would prove nothing."""
    found = {text.split()[0] for path in DOCUMENTS for text in mentioned(path.read_text(encoding="utf-8"))}
    assert {"compact", "verify", "import", "demo"} <= found
    assert mentioned("`opslog nosuch` and\n```sh\nx | opslog --bad\n```\n") == {"nosuch", "--bad"}


def test_the_backup_of_the_operations_page_is_whole(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (backup,) = (block for block in re.findall(r"(?ms)^```sh\n(.*?)^```$", text) if "opslog verify backup" in block)
    with opslog.open(tmp_path / "tasks") as store:
        for number in range(50):
            store[str(number)] = {"number": number}
        store.compact()
        store.archive(lambda document: document["number"] == 1)
        expected = dict(store)
        done = shell(f"set -e\n{backup}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok: checked ")
    with opslog.open(tmp_path / "backup", read_only=True) as store:
        assert dict(store) == expected
        assert [list(store.load_archive(period)) for period in store.archives()] == [["1"]]
