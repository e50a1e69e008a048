"""Packages from npm are used only when they are complete, whoever else installs them at this moment."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.npm import PackagesMissingError, install

# As npm does it: the folder of the package first, its files later. A second npm in the same folder would fail.
NPM = """#!/bin/sh
set -e
mkdir "$3/running"
mkdir -p "$3/node_modules/one"
test ! -e "$3/breaks"
sleep 0.1
echo it >> "$3/node_modules/one/index.js"
rmdir "$3/running"
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("npm", "node"):
        (programs / name).write_text(NPM)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path


def test_processes_that_ask_at_once_install_once(root: Path) -> None:
    def one(_: int) -> str:
        return (install("set", "one@1", root=root) / "node_modules" / "one" / "index.js").read_text()

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(one, range(4))) == ["it\n"] * 4


def test_an_interrupted_installation_is_made_again(root: Path) -> None:
    folder = root / "set"
    folder.mkdir()
    (folder / "breaks").touch()
    with pytest.raises(PackagesMissingError, match="one@1 cannot be installed"):
        install("set", "one@1", root=root)
    assert (folder / "node_modules" / "one").exists()
    (folder / "breaks").unlink()
    (folder / "running").rmdir()
    install("set", "one@1", root=root)
    assert (folder / "node_modules" / "one" / "index.js").exists()


def test_other_packages_are_installed_anew(root: Path) -> None:
    install("set", "one@1", root=root)
    install("set", "one@2", root=root)
    folder = install("set", "one@2", root=root)
    assert (folder / "node_modules" / "one" / "index.js").read_text() == "it\n" * 2


def test_without_npm_the_reason_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(root))
    with pytest.raises(PackagesMissingError, match="no npm"):
        install("set", "one@1", root=root)
