"""The public API compared with that of the last release: every change that may break a program is intended, and has a
reason.

The comparison is of the source: names, parameters, kinds. Each difference that a program can notice has an entry in
tests/fixtures/api-changes.toml.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import griffe
import pytest

from tests.support.documents import ROOT
from tests.support.releases import release_in

CHANGES = ROOT / "tests" / "fixtures" / "api-changes.toml"
MODULES = ["", "aio", "backends", "server", "server.client", "spark", "testing"]
"""Modules below `opslog` whose `__all__` is public."""


def load(tree: Path, folder: Path) -> griffe.Module:
    """The package as it is installed: four folders of the tree are one package. Nothing is imported."""
    package = folder / "opslog"
    package.mkdir(parents=True)
    for path in (tree / "opslog").iterdir():
        (package / path.name).symlink_to(path)
    for name in ("backends", "server", "spark"):
        (package / name).symlink_to(tree / name)
    loaded = griffe.load(
        "opslog",
        search_paths=[folder],
        try_relative_path=False,  # it would be the one in the working directory
        allow_inspection=False,
        resolve_aliases=True,
        resolve_external=False,
    )
    assert isinstance(loaded, griffe.Module)
    return loaded


def public(package: griffe.Module, module: str) -> dict[str, griffe.Object]:
    """The exports of a module by name, from wherever they are defined."""
    place = package[module] if module else package
    assert place.exports, f"{place.path} has no __all__"
    members = {name: place.members[name] for name in map(str, place.exports)}
    return {
        name: member.final_target if isinstance(member, griffe.Alias) else member for name, member in members.items()
    }


def differences(old: griffe.Module, new: griffe.Module) -> set[tuple[str, str]]:
    """The public path of each object whose difference may break a program, and the difference."""
    found = set()
    for module in MODULES:
        path = ".".join(filter(None, ("opslog", module)))
        pages = griffe.Module(path), griffe.Module(path)
        exported = public(old, module), public(new, module)
        for name in exported[0].keys() & exported[1].keys():
            # Its members, including inherited ones.
            before, now = exported[0][name], exported[1][name]
            for breakage in griffe.find_breaking_changes(before, now):
                inside = breakage.obj.path.removeprefix(before.path).removeprefix(now.path)
                found.add((f"{path}.{name}{inside}", breakage.kind.value))
        # griffe compares only the members of an object. So an exported object becomes a member here.
        for page, objects in zip(pages, exported, strict=True):
            for name, value in objects.items():
                page.set_member(name, value)
        found |= {(breakage.obj.path, breakage.kind.value) for breakage in griffe.find_breaking_changes(*pages)}
    return found


def packages(folder: Path) -> tuple[griffe.Module, griffe.Module]:
    return load(release_in(folder), folder / "old"), load(ROOT, folder / "new")


@pytest.mark.long
def test_breaking_changes_are_intended(tmp_path: Path) -> None:
    listed = tomllib.loads(CHANGES.read_text(encoding="utf-8"))["change"]
    assert all(len(entry["reason"]) > 20 for entry in listed), "a reason is a sentence"
    intended = [path for entry in listed for path in entry["objects"]]
    assert len(intended) == len(set(intended))
    found = sorted(differences(*packages(tmp_path)))
    surprises = [f"{path}: {what}" for path, what in found if path not in intended]
    assert not surprises, "mend these, or name them in tests/fixtures/api-changes.toml:\n" + "\n".join(surprises)
    gone = set(intended) - {path for path, _ in found}
    assert not gone, f"tests/fixtures/api-changes.toml names what is no difference: {gone}"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("def f(a, b=1): ...", "def f(a, b=1, c=2): ...", []),
        ("def f(a): ...", "def f(a, b): ...", [("opslog.f", "Parameter was added as required")]),
        ("def f(a): ...", "def g(a): ...", [("opslog.f", "Public object was removed")]),
        (
            "class C:\n    def m(self, *, x=1): ...",
            "class C:\n    def n(self): ...",
            [("opslog.C.m", "Public object was removed")],
        ),
    ],
)
def test_these_changes_are_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, expected: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr("tests.test_public_api.MODULES", [""])
    loaded = []
    for name, text in (("old", before), ("new", after)):
        for folder in ("opslog", "backends", "server", "spark"):
            (tmp_path / name / folder).mkdir(parents=True)
        names = [line.split("(")[0].split()[1].rstrip(":") for line in text.splitlines() if line[0] in "dc"]
        (tmp_path / name / "opslog" / "__init__.py").write_text(f"__all__ = {names}\n{text}\n")
        loaded.append(load(tmp_path / name, tmp_path / f"{name}-installed"))
    assert sorted(differences(*loaded)) == expected
