"""The contract suite on the backends that come with opslog."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.register_assert_rewrite("opslog.backends.testing")

from opslog.backends import Backend, open_backend, testing  # noqa: E402  (after the rewrite is registered)
from opslog.backends.local.fs import FsBackend  # noqa: E402
from opslog.backends.testing import BackendContract  # noqa: E402


class TestFs(BackendContract):
    def open_backend(self, space: Path) -> Backend:
        return FsBackend(space / "store")


class TestMemory(BackendContract):
    def open_backend(self, space: Path) -> Backend:
        return open_backend(f"memory://{space}")


def test_the_suites_own_example_runs(tmp_path: Path) -> None:
    assert testing.__doc__ is not None
    example = testing.__doc__.partition("::\n")[2].partition("\n\nEvery test")[0]
    (tmp_path / "test_example.py").write_text(textwrap.dedent(example))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-k", "create and not while", "-p", "no:cacheprovider"]
    command += ["--basetemp", str(tmp_path / "temporary")]  # pytest would first remove old runs in a shared directory
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins of others take longer than the tests
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
