"""The blocks of documents, and how to run their examples."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class Block(NamedTuple):
    """A fenced block. `before` is the line of text above it. `follows` is the language of a block directly above it."""

    language: str
    text: str
    line: int
    before: str
    follows: str


def blocks(path: Path) -> Iterator[Block]:
    language, before, follows, opened = "", "", "", 0
    lines: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if opened:
            if line == "```":
                yield Block(language, "".join(f"{line}\n" for line in lines), opened, before, follows)
                opened, follows, before = 0, language, ""
            else:
                lines.append(line)
        elif line.startswith("```"):
            opened, language, lines = number, line.removeprefix("```"), []
        elif line:
            before, follows = line, ""
    assert not opened, f"{path.name}:{opened}: this block has no end"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run_examples(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **known: Any) -> None:
    """Run all python blocks of a document in a folder, in order. A text block right after one shows what it prints.

    :param known: names that the examples use without defining them.
    """
    monkeypatch.chdir(folder)
    module = ModuleType("document")
    vars(module).update(known)
    monkeypatch.setitem(sys.modules, "document", module)  # dataclasses look up the module they are defined in
    printed = ""
    for block in blocks(path):
        if block.language == "python":
            output = io.StringIO()
            code = compile(
                "\n" * block.line + block.text, name_of(path), "exec"
            )  # tracebacks show the document's lines
            with contextlib.redirect_stdout(output):
                exec(code, vars(module))
            printed = output.getvalue()
        elif block.language == "text" and block.follows == "python":
            # Tables printed by Spark end with an empty line.
            assert printed.rstrip("\n") == block.text.rstrip("\n"), f"{name_of(path)}:{block.line}"
