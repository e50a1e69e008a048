"""The floors of the house: what is above may import what is below, never the other way, wherever in a file the import
stands. `docs/architecture.md` draws them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"opslog": "opslog", "backends": "opslog.backends", "server": "opslog.server", "spark": "opslog.spark"}
"""Folders of the checkout, and the names under which they are imported."""

FLOORS: list[tuple[str, ...]] = [
    ("opslog.errors", "opslog.environment"),
    ("opslog.format",),
    ("opslog.backends",),
    ("opslog.merge", "opslog.concurrency"),
    ("opslog.snapshot",),
    ("opslog.log",),
    ("opslog.compaction",),
    ("opslog.replica",),
    ("opslog.history", "opslog.archive", "opslog.stats", "opslog.verify"),
    ("opslog.store",),
    ("opslog.opening",),
    ("opslog.aio",),
    ("opslog",),  # the public page
    ("opslog.importers",),
    ("opslog.bulk",),
    ("opslog.testing",),
    ("opslog.server", "opslog.spark"),
    ("opslog.cli.engines",),
    ("opslog.demo",),
    ("opslog.cli",),
    ("opslog.__main__", "opslog.spark.__main__"),  # commands
]
"""From the lowest one up. Modules of one floor may not import each other, but for those of one folder, which have
floors of their own if they are listed below."""

WITHIN: dict[str, list[tuple[str, ...]]] = {
    "opslog.server": [
        ("protocol",),
        ("options", "background", "metrics"),
        ("storage",),
        ("followers",),
        ("streams",),
        ("registry",),
        ("subscriptions",),
        ("http",),
        ("client", "page"),
    ],
    "opslog.spark": [
        ("java",),
        ("sessions",),
        ("stores",),
        ("read",),
        ("write",),
        ("stream",),
        ("source",),
        ("compact",),
        ("jobs",),
    ],
}


def module_of(path: Path) -> str:
    top, *parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([PACKAGES[top], *parts]).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    return {
        module_of(path): path
        for folder in PACKAGES
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "discovery" not in path.parts
    }


@cache
def imports() -> dict[str, set[str]]:
    """Which of our modules each of them imports: at its head, in a function, or for types alone."""
    return {module: set(_imported(path)) - {module} for module, path in modules().items()}


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module in modules():
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules() else node.module


def floor_of(module: str, floors: list[tuple[str, ...]]) -> tuple[int, str]:
    """Its number, and the name by which it is listed: the longest one that fits."""
    listed = [(name, number) for number, names in enumerate(floors) for name in names]
    fitting = [
        (len(name), number, name)
        for name, number in listed
        if module == name or (name != "opslog" and module.startswith(f"{name}."))
    ]
    assert fitting, f"{module} is on no floor: list it"
    _, number, name = max(fitting)
    return number, name


def test_imports_lead_down() -> None:
    upward = []
    for module, imported in imports().items():
        floor, name = floor_of(module, FLOORS)
        for other in sorted(imported):
            below, other_name = floor_of(other, FLOORS)
            if other_name != name and below >= floor:
                upward.append(f"{module} imports {other}")
    assert not upward, "the lower one must not know the upper one\n" + "\n".join(upward)


@pytest.mark.parametrize("package", WITHIN)
def test_imports_lead_down_within(package: str) -> None:
    floors = [tuple(f"{package}.{name}" for name in names) for names in WITHIN[package]]
    upward = []
    for module, imported in imports().items():
        if not module.startswith(f"{package}.") or module == f"{package}.__main__":
            continue
        floor, name = floor_of(module, floors)
        for other in sorted(imported):
            if other.startswith(f"{package}."):
                below, other_name = floor_of(other, floors)
                if other_name != name and below >= floor:
                    upward.append(f"{module} imports {other}")
    assert not upward, "the lower one must not know the upper one\n" + "\n".join(upward)


def test_no_circles() -> None:
    """No two modules need each other, directly or through others."""
    order: list[str] = []
    waiting = {module: set(imported) for module, imported in imports().items()}
    while free := [module for module, needed in waiting.items() if not needed & waiting.keys()]:
        order += free
        for module in free:
            del waiting[module]
    assert not waiting, f"these need each other, or modules that do: {sorted(waiting)}"
