"""The console examples of the documents: each command runs, and prints what the document shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.consoles import check_console, examples
from tests.support.documents import ROOT

TUTORIAL = ROOT / "docs" / "tutorial.md"  # tests/test_tutorial.py follows it
DOCUMENTS = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if path != TUTORIAL and list(examples(path))
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_print_what_is_shown(path: Path, tmp_path: Path) -> None:
    check_console(path, tmp_path)
