"""If memory runs out, the kernel raises MemoryError, and its data stays as it was."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("opslog.kernel._kernel", reason="the kernel was not built")

PROGRAM = """
import resource
from opslog.kernel import _kernel

def chunk(start):
    return b"".join(
        b'{"ts":"2026-11-24T12:00:00.000000Z","clock":%d,"agent":"a","op":"set","id":"%d","data":{"a":"%b"}}\\n'
        % (clock, clock, b"x" * 1000)
        for clock in range(start, start + 200)
    )

table = _kernel.Table()
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (48 << 20), resource.RLIM_INFINITY))
failures, clock = 0, 1
for _ in range(10_000):
    try:
        sets, others = _kernel.scan(chunk(clock), "a")
        clock += 200
        table.add(sets)
    except MemoryError:
        failures += 1
        if failures == 5:
            break
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert failures == 5
count = len(table)
assert count > 1000
ids = table.ids(0, count)
assert ids == sorted(ids) and len(set(ids)) == count
for id in ids:
    assert table.get(id)[1] == int(id)
assert table.lines(0, count).count(b"\\n") == count
print("consistent")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer needs more address space than that")
def test_a_table_that_gets_no_memory_is_what_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("consistent\n", "")
