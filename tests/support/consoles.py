"""The console examples of documents, and how to run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Example(NamedTuple):
    command: str
    output: str


def examples(path: Path) -> Iterator[Example]:
    """The commands of all console blocks of a document, in order."""
    for block in re.findall(r"^```console\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield Example(command, output)


def check_console(path: Path, place: Path) -> None:
    """Run all commands of a document in one shell, in one directory."""
    wanted = list(examples(path))
    mark = "@@ end of a command @@"
    script = "\n".join(f"{example.command}\nprintf '{mark}\\n'" for example in wanted)
    done = subprocess.run(
        ["bash"],
        input=script.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=place,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("OPSLOG_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        check=True,
        timeout=120,
    )
    printed = TS.sub("TIME", done.stdout.decode()).split(f"{mark}\n")[:-1]
    assert list(zip([example.command for example in wanted], printed, strict=True)) == [
        (example.command, TS.sub("TIME", example.output)) for example in wanted
    ]
