"""The contract suite on the backends that come with opslog."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("opslog.backends.testing")

from opslog.backends import Backend, open_backend  # noqa: E402  (after the rewrite is registered)
from opslog.backends.fs import FsBackend  # noqa: E402
from opslog.backends.testing import BackendContract  # noqa: E402


class TestFs(BackendContract):
    def open_backend(self, space: Path) -> Backend:
        return FsBackend(space / "store")


class TestMemory(BackendContract):
    def open_backend(self, space: Path) -> Backend:
        return open_backend(f"memory://{space}")
