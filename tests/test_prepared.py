"""Types are prepared before threads use them, because msgspec crashes if two threads prepare one at once."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# These decode no structs, or the modules of their structs prepare them.
PREPARED_ELSEWHERE = {
    "opslog/doors/arguments.py",
    "opslog/format/checksum.py",
    "opslog/format/torn.py",
    "spark/read/typed.py",
    "server/subscriptions/store.py",
}
# Only one thread calls these: in the command line, at the start of a server, in the demo, in the worker processes of
# Spark.
ALONE = {
    "opslog/doors/tokens.py",
    "opslog/demo/page.py",
    "opslog/demo/workers.py",
    "opslog/importers/lines.py",
    "spark/compaction/compacting.py",
    "spark/read/output.py",
    "spark/write/writing.py",
}

DECODES = ("msgspec.json.decode", "msgspec.msgpack.decode")

RACE = """
import sys, threading, types
import opslog

sys.setswitchinterval(1e-6)
SOURCE = '''
from __future__ import annotations
import msgspec
class A(msgspec.Struct):
    a: int
    b: str = ""
class B(msgspec.Struct):
    x: list[A]
    y: dict[str, A] = {}
    z: A | None = None
'''
THREADS = 4

def use(type, number, barrier):
    barrier.wait()
    with opslog.open(f"memory://{number}", read_only=True, type=type) as store:
        store.get("d")

stores = [opslog.open(f"memory://{number}") for number in range(THREADS)]
for store in stores:
    store["d"] = {"x": [{"a": 1}], "y": {"k": {"a": 2}}, "z": {"a": 3}}
for number in range(300):
    module = sys.modules[f"m{number}"] = types.ModuleType(f"m{number}")
    exec(SOURCE, module.__dict__)
    barrier = threading.Barrier(THREADS)
    threads = [threading.Thread(target=use, args=(module.B, thread, barrier)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_open_stores_of_one_type_at_once() -> None:
    """If they prepared the type at once, this would end with a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("folder", ["opslog", "backends", "server", "spark"])
def test_no_type_is_worked_out_at_its_first_use(folder: str) -> None:
    """A module that decodes to a type, or converts to one, prepares types. Otherwise only one thread may run it."""
    forgotten = []
    for path in (ROOT / folder).rglob("*.py"):
        text = path.read_text()
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        named = [(ast.unparse(call.func), call) for call in calls]
        uses = [
            call
            for name, call in named
            if name == "msgspec.convert" or (name in DECODES and any(each.arg == "type" for each in call.keywords))
        ]
        if uses and not any(name == "prepare" for name, _ in named):
            forgotten.append(path.relative_to(ROOT).as_posix())
    assert set(forgotten) <= ALONE | PREPARED_ELSEWHERE
