"""The installed package is the whole library: four top-level folders become one package, as a wheel and as an editable
install. Both go into environments of their own, which use the dependencies of this one, so that nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.documents import blocks

ROOT = Path(__file__).parents[1]
SOURCES = {"opslog": "opslog", "backends": "opslog/backends", "server": "opslog/server", "spark": "opslog/spark"}
"""Each top-level folder of source code, and its place after installation."""

DISCOVERY = ROOT / "spark" / "discovery"
"""Installed beside `opslog`, because Spark searches for it there."""

COMPILER = shutil.which((os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0])
"""The compiler for the kernel in C; None if there is none."""


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Run `command` with additional environment `variables`. Returns its standard output. If it fails, the test fails,
    and shows all output."""
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def expected_files() -> set[str]:
    """The paths in a wheel of all modules in the source folders, and of the marker for type checkers."""
    modules = {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, installed in SOURCES.items()
        for path in (ROOT / folder).rglob("*.py")
        if not path.is_relative_to(DISCOVERY)
    }
    page = {f"opslog/server/page/{path.name}" for path in (ROOT / "server" / "page").iterdir() if path.is_file()}
    found_by_spark = {path.relative_to(DISCOVERY).as_posix() for path in DISCOVERY.rglob("*.py")}
    kernel = {"opslog/kernel/_kernel.pyi"} | ({"opslog/kernel/_kernel.abi3.so"} if COMPILER else set())
    return modules | page | found_by_spark | kernel | {"opslog/py.typed"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout's sources, because builds leave files in the tree they build."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for folder in SOURCES:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return copy


def build_wheel(tree: Path, folder: Path, **variables: str) -> Path:
    """Build the wheel as `pip install` would."""
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, tree)
    run(sys.executable, "-m", "pip", *build, cwd=folder, **variables)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tree, tmp_path_factory.mktemp("wheel"))


def install(where: Path, *what: str | Path) -> Path:
    """Install `what` into a new environment at `where`, and return its Python.

    The environment sees the dependencies of this one through a path file. It does not follow path files of this one, so
    it does not see our own editable opslog.
    """
    venv.create(where, symlinks=True)
    python = where / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=where).strip()
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(site) / "borrowed.pth").write_text("\n".join(sorted(borrowed)) + "\n")
    flags = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
    run(python, "-m", "pip", "install", *flags, *what, cwd=where)
    return python


LOCATE_PACKAGES = """
import importlib, json
names = ["opslog", *(f"opslog.{name}" for name in ("backends", "cli", "importers", "server", "spark", "testing"))]
print(json.dumps({name: importlib.import_module(name).__file__ for name in names}))
"""


def imported_from(python: Path) -> dict[str, Path]:
    """The folder in which `python` finds each package of opslog."""
    # Run from the environment's own folder. Otherwise a tree in the working directory would be imported instead.
    found = json.loads(run(python, "-W", "error", "-c", LOCATE_PACKAGES, cwd=python.parents[1]))
    return {name: Path(file).parent for name, file in found.items()}


def test_wheel_holds_every_module(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == expected_files(), "add a missing folder to `packages` in pyproject.toml"


def test_wheel_imports(wheel: Path, tmp_path: Path) -> None:
    python = install(tmp_path / "env", wheel)
    found = imported_from(python)
    site = found["opslog"]
    assert site.is_relative_to(tmp_path)
    assert found == {
        "opslog": site,
        "opslog.backends": site / "backends",
        "opslog.cli": site / "cli",
        "opslog.importers": site / "importers",
        "opslog.server": site / "server",
        "opslog.spark": site / "spark",
        "opslog.testing": site / "testing",
    }


KERNEL = "import opslog.kernel; print(opslog.kernel.NAME)"


def test_wheel_is_of_the_platform_and_every_python(wheel: Path, tmp_path: Path) -> None:
    """One wheel serves all Pythons, through the stable ABI."""
    assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]
    python = install(tmp_path / "env", wheel)
    assert run(python, "-c", KERNEL, cwd=tmp_path, OPSLOG_KERNEL="").split() == ["C" if COMPILER else "Python"]


@pytest.mark.long
def test_without_a_compiler_it_is_installed_without_the_kernel(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tree"
    shutil.copytree(tree, copy, ignore=shutil.ignore_patterns("build", "*.so"))
    wheel = build_wheel(copy, tmp_path, CC="no-compiler-here", LDSHARED="no-compiler-here")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]
    python = install(tmp_path / "env", wheel)
    assert run(python, "-W", "error", "-c", KERNEL, cwd=tmp_path) == "Python\n"


def test_wheel_runs_the_command(wheel: Path, tmp_path: Path) -> None:
    python = install(tmp_path / "env", wheel)
    assert "Usage:" in run(python.parent / "opslog", "--help", cwd=tmp_path)


def test_wheel_runs_a_simulation_of_users_own_agents(wheel: Path, tmp_path: Path) -> None:
    """It runs the example of docs/testing.md, with `opslog.testing` alone and no tests/ beside it."""
    python = install(tmp_path / "env", wheel)
    found = list(blocks(ROOT / "docs" / "testing.md"))
    (example,) = [block.text for block in found if block.language == "python"]
    (printed,) = [block.text for block in found if block.follows == "python"]
    assert run(python, "-W", "error", "-c", example, cwd=tmp_path) == printed


@pytest.mark.long
def test_editable_install_is_the_tree(tree: Path, tmp_path: Path) -> None:
    python = install(tmp_path / "env", "--editable", tree)
    assert imported_from(python) == {
        "opslog": tree / "opslog",
        "opslog.backends": tree / "backends",
        "opslog.cli": tree / "opslog" / "cli",
        "opslog.importers": tree / "opslog" / "importers",
        "opslog.server": tree / "server",
        "opslog.spark": tree / "spark",
        "opslog.testing": tree / "opslog" / "testing",
    }
