"""The contract on real S3 servers, through each driver."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("s3fs", reason="needs opslog[fast]")
pytest.importorskip("obstore", reason="needs opslog[fast]")
pytest.register_assert_rewrite("opslog.backends.testing")

from opslog.backends import Backend, open_backend  # noqa: E402  (after the rewrite is registered)
from opslog.backends.testing import ODD_PATHS, BackendContract  # noqa: E402
from tests.support.s3_servers import PARAMETERS, Server  # noqa: E402


@pytest.mark.parametrize("s3_server", PARAMETERS, indirect=True)
class OnServers(BackendContract):
    driver = ""
    odd_paths = tuple(path for path in ODD_PATHS if "\n" not in path)  # moto and obstore cannot handle them

    @pytest.fixture(autouse=True)
    def in_a_prefix_of_its_own(self, s3_server: Server) -> Iterator[None]:
        self.url = f"{s3_server.url}/{uuid.uuid4().hex}"
        yield
        backend = open_backend(self.url)
        backend.delete([entry.path for entry in backend.list("")])
        backend.close()

    def open_backend(self, space: Path) -> Backend:
        return open_backend(f"{self.url}{space}?driver={self.driver}")


@pytest.mark.long
class TestS3fs(OnServers):
    driver = "s3fs"


class TestObstore(OnServers):
    driver = "obstore"
