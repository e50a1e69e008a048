"""The files in `deploy/` start a server that there is, with options that it has."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from opslog.cli.serving import serve_command
from opslog.cli.session import Session

ROOT = Path(__file__).parents[2]
CONTAINERFILE = (ROOT / "deploy" / "Containerfile").read_text()
UNIT = (ROOT / "deploy" / "opslog.service").read_text()


def options(command: list[str]) -> dict[str, Any]:
    """What `opslog serve` makes of a command line."""
    program, name, *arguments = command
    assert (program, name) == ("/opt/opslog/bin/opslog", "serve")
    return serve_command.make_context("serve", arguments, obj=Session()).params


def instruction(name: str) -> list[str]:
    (found,) = re.findall(rf"^{name} (.*)$", CONTAINERFILE, re.MULTILINE)
    command: list[str] = json.loads(found)
    return command


def test_the_container_serves_its_volume_to_everybody_with_a_token() -> None:
    given = options([*instruction("ENTRYPOINT"), *instruction("CMD")])
    assert (given["host"], given["port"]) == ("0.0.0.0", 4437)
    assert (given["data"], given["tokens"]) == (Path("/data"), Path("/tokens.toml"))


def test_the_container_is_built_from_all_that_the_wheel_is_made_of() -> None:
    copied = set(re.findall(r"^COPY ([^-].*) /source", CONTAINERFILE, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {path.partition("/")[0] for path in project["tool"]["setuptools"]["package-dir"].values()}
    files = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    assert {name for names in copied for name in names.split()} == folders | files


def test_the_unit_serves_its_state_directory_on_this_machine() -> None:
    (command,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    given = options(shlex.split(command))
    assert (given["host"], given["port"], given["data"]) == ("127.0.0.1", 4437, Path("/var/lib/opslog/streams"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "opslog.service"
    unit.write_text(UNIT.replace("/opt/opslog/bin/opslog", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    # It mentions other units, too, that this one needs.
    assert [line for line in done.stderr.splitlines() if line.startswith("opslog.service")] == []
