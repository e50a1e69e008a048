"""A buffered store writes its buffer when the program ends, unless it is killed."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import opslog

OPEN = "import opslog; store = opslog.open(root, agent='a', durability='buffered', buffer_seconds=3600)"


def run(root: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    source = f"root = {str(root)!r}\n{textwrap.dedent(program)}"
    return subprocess.run(
        [sys.executable, *options, "-c", source], capture_output=True, text=True, check=False, timeout=60
    )


def ids(root: Path) -> list[str]:
    with opslog.open(root, read_only=True) as store:
        return list(store)


@pytest.mark.parametrize(
    ("end", "status"),
    [("pass", 0), ("raise SystemExit(3)", 3), ("raise RuntimeError('oh')", 1), ("del store", 0)],
    ids=["normally", "by-exit", "by-an-exception", "without-the-store"],
)
def test_a_program_that_ends_without_close_loses_nothing(tmp_path: Path, end: str, status: int) -> None:
    done = run(tmp_path, f"{OPEN}\nfor n in range(100): store[f'd{{n:03}}'] = {{'n': n}}\n{end}")
    assert done.returncode == status
    assert ids(tmp_path) == [f"d{n:03}" for n in range(100)]


def test_a_store_that_was_not_closed_is_a_resource_warning(tmp_path: Path) -> None:
    done = run(tmp_path, f"{OPEN}\nstore['a'] = {{}}", "-W", "always")
    assert "ResourceWarning: unclosed <opslog.Store" in done.stderr
    closed = run(tmp_path, f"{OPEN}\nstore['b'] = {{}}\nstore.close()", "-W", "always")
    assert "ResourceWarning" not in closed.stderr
    assert ids(tmp_path) == ["a", "b"]


def test_each_store_is_written_also_where_a_warning_is_an_error(tmp_path: Path) -> None:
    program = """
        import opslog
        stores = [
            opslog.open(f"{root}/{n}", agent="a", durability="buffered", buffer_seconds=3600) for n in range(3)
        ]
        for store in stores:
            store["a"] = {}
        """
    done = run(tmp_path, program, "-W", "error::ResourceWarning")
    assert "ResourceWarning: unclosed <opslog.Store" in done.stderr
    assert [ids(tmp_path / f"{n}") for n in range(3)] == [["a"]] * 3


def test_writes_of_another_function_at_exit_are_written_too(tmp_path: Path) -> None:
    """That function was registered before the store was opened, so it runs after the store's own."""
    program = f"import atexit\natexit.register(lambda: store.set('last', {{}}))\n{OPEN}\nstore['first'] = {{}}"
    assert run(tmp_path, program).returncode == 0
    assert ids(tmp_path) == ["first", "last"]


@pytest.mark.parametrize(
    "before",
    ["import opslog", "import opslog; other = opslog.open(f'{root}-other', **buffered)", "import threading"],
    ids=["opslog was imported", "another store was open", "opslog is imported at exit"],
)
def test_a_store_opened_at_exit_writes_its_commits(tmp_path: Path, before: str) -> None:
    """The function that would write its buffer has already run, or would not be called any more."""
    program = f"""
        import atexit

        buffered = dict(agent="a", durability="buffered", buffer_seconds=3600)

        @atexit.register
        def write():
            import opslog
            global store
            store = opslog.open(root, **buffered)
            store["a"] = {{}}
            with store.batch():
                store["b"] = {{}}

        {before}
        """
    done = run(tmp_path / "store", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert ids(tmp_path / "store") == ["a", "b"]


def test_a_forked_child_does_not_write_its_parents_buffer(tmp_path: Path) -> None:
    program = f"""
        {OPEN}
        import os, sys
        store['a'] = {{}}
        child = os.fork()
        if child == 0:
            own = opslog.open(root, agent='child', durability='buffered', buffer_seconds=3600)
            own['c'] = {{}}
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        before = opslog.open(root, read_only=True)
        assert list(before) == ['c'], list(before)
        """
    # Newer Pythons warn about any fork in a process with threads.
    done = run(tmp_path, program, "-W", "ignore::DeprecationWarning")
    assert (done.returncode, done.stderr) == (0, "")
    assert ids(tmp_path) == ["a", "c"]
    with opslog.open(tmp_path, read_only=True) as store:
        assert [commit.agent for commit in store.ops()] == ["a", "child"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_writes_its_own(tmp_path: Path, method: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
            import multiprocessing
            import opslog

            def work():
                url, buffer = {str(tmp_path / "store")!r}, dict(durability="buffered", buffer_seconds=3600)
                store = opslog.open(url, agent="child", **buffer)
                store["a"] = {{}}

            if __name__ == "__main__":
                child = multiprocessing.get_context({method!r}).Process(target=work)
                child.start()
                child.join()
                raise SystemExit(child.exitcode)
            """)
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert ids(tmp_path / "store") == ["a"]


def test_an_asynchronous_store_is_written_too(tmp_path: Path) -> None:
    program = """
        import asyncio, opslog

        async def main():
            store = await opslog.aio.open(root, agent="a", durability="buffered", buffer_seconds=3600)
            await store.set("a", {})

        asyncio.run(main())
        """
    assert run(tmp_path, program).returncode == 0
    assert ids(tmp_path) == ["a"]


def test_a_buffer_that_cannot_be_written_at_exit_is_a_warning(tmp_path: Path) -> None:
    program = f"{OPEN}\nimport os\nstore['a'] = {{}}\nos.rename(root, root + '-away')"
    done = run(tmp_path / "store", program)
    assert done.returncode == 0
    assert re.search(r"RuntimeWarning: the program ended, and buffered commits of .*/store may be lost: ", done.stderr)
    assert "was written at exit" not in done.stderr
