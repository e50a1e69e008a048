"""The floors of the house: upper floors may import lower ones, never the other way, wherever in a file the import is.
`docs/architecture.md` draws them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.house import (
    FLOORS,
    ROOT,
    SERVER,
    SPARK,
    Floors,
    documents,
    floor_of,
    folder_of_tests,
    imports,
    is_test_of,
    modules,
)


@pytest.mark.parametrize(
    ("package", "floors"),
    [("opslog", FLOORS), ("opslog.server", SERVER), ("opslog.spark", SPARK)],
    ids=["library", "server", "spark"],
)
def test_imports_lead_down(package: str, floors: Floors) -> None:
    upward = []
    for module, imported in imports().items():
        if not module.startswith(package):
            continue
        floor, name = floor_of(module, floors)
        for other in sorted(imported):
            if other.startswith(package):
                below, other_name = floor_of(other, floors)
                if other_name != name and below >= floor:
                    upward.append(f"{module} imports {other}")
    assert not upward, "the lower one must not know the upper one\n" + "\n".join(upward)


def test_no_circles() -> None:
    """No two modules need each other, directly or through others."""
    waiting = {module: set(imported) for module, imported in imports().items()}
    while free := [module for module, needed in waiting.items() if not needed & waiting.keys()]:
        for module in free:
            del waiting[module]
    assert not waiting, f"these need each other, or modules that do: {sorted(waiting)}"


def test_opslog_testing_has_what_its_public_page_needs_and_no_more() -> None:
    """Users install it. Code that only our own simulation uses belongs to tests/simulation/."""
    inside = {module for module in imports() if module.startswith("opslog.testing.")}
    needed, waiting = {"opslog.testing"}, ["opslog.testing"]
    while waiting:
        more = imports()[waiting.pop()] & inside - needed
        needed |= more
        waiting += more
    assert inside - needed == set(), "nothing that opslog.testing exports needs these: move them to tests/simulation/"


def test_documents_show_the_floors_and_modules_as_they_are() -> None:
    stale = [path.name for path, text in documents().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, f"docs/{stale} are of before: python -m tests.support.house"


@pytest.mark.parametrize(
    ("module", "test", "expected"),
    [
        ("opslog.log.writer", "server/test_writer.py", False),  # of a module of the same name
        ("opslog.server.storage.writer", "server/test_writer.py", True),
        ("opslog.server.protocol.offsets", "spark/test_offsets.py", False),
        ("opslog.cli.session", "test_session.py", False),
        ("opslog.cli.documents", "cli/test_documents.py", True),  # it runs commands, and imports none
        ("opslog.aio", "store/test_aio.py", True),  # it imports `opslog`
    ],
)
def test_a_test_of_the_same_name_may_be_another_modules(module: str, test: str, expected: bool) -> None:
    assert is_test_of(ROOT / "tests" / test, module) is expected


def test_modules_are_listed_with_tests_of_their_own() -> None:
    """Tests that use the module, or that are in the folder of its tests."""
    paths = {path.relative_to(ROOT).as_posix(): module for module, path in modules().items()}
    wrong: list[str] = []
    folder = ""
    for line in (ROOT / "docs/modules.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("### "):
            folder = line.removeprefix("### ")
        elif row := re.match(r"\| `(\w+)` \|", line):
            module = paths[f"{folder}{row[1]}.py"]
            for test in map(Path, re.findall(r"\(\.\./(tests/[^)]+)\)", line)):
                whole = ROOT / test
                if not (whole == folder_of_tests(module) if whole.is_dir() else is_test_of(whole, module)):
                    wrong.append(f"{module}: {test}")
    assert not wrong, "these tests are another module's\n" + "\n".join(wrong)
