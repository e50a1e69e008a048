"""The files in `deploy/` start an existing server, with options that it has."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from opslog.cli.serving import serve_command
from opslog.cli.session import Session
from tests.test_packaging import build_wheel, expected_files

ROOT = Path(__file__).parents[2]
CONTAINERFILE = (ROOT / "deploy" / "Containerfile").read_text()
UNIT = (ROOT / "deploy" / "opslog.service").read_text()


def options(command: list[str]) -> dict[str, Any]:
    """How `opslog serve` parses a command line."""
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


def test_the_container_is_built_from_all_that_the_wheel_is_made_of(tmp_path: Path) -> None:
    """The files copied into the image make the whole wheel, with the kernel if there is a compiler."""
    source = tmp_path / "source"
    source.mkdir()
    for names, place in re.findall(r"^COPY ([^-].*) /source(\S*)$", CONTAINERFILE, re.MULTILINE):
        for name in names.split():
            path = ROOT / name
            if path.is_dir():
                shutil.copytree(path, f"{source}{place}", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy(path, f"{source}{place}")
    wheel = build_wheel(source, tmp_path)
    assert {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} == expected_files()


def test_the_image_has_what_serves_and_its_kernel() -> None:
    build, _, image = CONTAINERFILE.partition("\nFROM ")[2].partition("\nFROM ")
    extras = re.search(r"'/source\[(.*)\]'", build)
    assert extras is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"server", "mcp", "s3"} == set(extras[1].split(",")) <= set(project["optional-dependencies"])
    assert "gcc" in build
    assert "gcc" not in image
    (check,) = re.findall(r'^RUN /opt/opslog/bin/python -c "(.*)"$', build, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", check],
        env={**os.environ, "OPSLOG_KERNEL": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the kernel was not built" in done.stderr


def test_the_unit_serves_its_state_directory_on_this_machine() -> None:
    (command,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    given = options(shlex.split(command))
    assert (given["host"], given["port"], given["data"]) == ("127.0.0.1", 4437, Path("/var/lib/opslog/streams"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "opslog.service"
    unit.write_text(UNIT.replace("/opt/opslog/bin/opslog", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    # It mentions other units, too, which this one needs.
    assert [line for line in done.stderr.splitlines() if line.startswith("opslog.service")] == []
