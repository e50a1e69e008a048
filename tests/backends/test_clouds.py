"""Google Cloud Storage and Azure Blob Storage: the contract and a store, on a fake Google server in this process, and
on containers that a person names.

`OPSLOG_TEST_GS_URL=gs://bucket/prefix` and `OPSLOG_TEST_AZ_URL=az://container/prefix` name them; credentials and
endpoints (of Azurite, for one) are those of the environment variables that obstore reads.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="needs opslog[fast]")
pytest.register_assert_rewrite("opslog.backends.testing")

import opslog  # noqa: E402  (after the rewrite is registered)
from opslog.backends import Backend, open_backend  # noqa: E402
from opslog.backends.testing import ODD_PATHS, BackendContract  # noqa: E402
from opslog.errors import InvalidNameError  # noqa: E402
from opslog.verify.verify import verify  # noqa: E402
from tests.support.s3_server import S3Server  # noqa: E402

NAMED = [url.rstrip("/") for name in ("GS", "AZ") if (url := os.environ.get(f"OPSLOG_TEST_{name}_URL"))]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture(params=["gs://bucket", *NAMED])
def place(request: pytest.FixtureRequest, server: S3Server) -> Iterator[tuple[str, dict[str, Any]]]:
    """A prefix of its own, and the options for it."""
    options: dict[str, Any] = {}
    if request.param not in NAMED:
        account = {"gcs_base_url": server.url, "disable_oauth": True, "client_email": "", "private_key": ""}
        options = {"service_account_key": json.dumps({**account, "private_key_id": ""}), "skip_signature": True}
    url = f"{request.param}/{uuid.uuid4().hex}"
    yield url, options
    backend = open_backend(url, **options)
    backend.delete([entry.path for entry in backend.list("")])
    backend.close()


class TestContract(BackendContract):
    odd_paths = tuple(path for path in ODD_PATHS if "\n" not in path)

    @pytest.fixture(autouse=True)
    def at_a_place(self, place: tuple[str, dict[str, Any]]) -> None:
        self.url, self.options = place

    def open_backend(self, space: Path) -> Backend:
        return open_backend(f"{self.url}{space}", **self.options)


def test_a_store_from_end_to_end(place: tuple[str, dict[str, Any]]) -> None:
    url, options = place
    with opslog.open(url, agent="a", compact_after=None, **options) as store:
        for number in range(50):
            store[str(number)] = {"number": number}
        assert store.undo()
        assert store.compact().commits == 19
        expected = dict(store.items())
    with opslog.open(url, read_only=True, **options) as reader:
        assert dict(reader.items()) == expected
    backend = open_backend(url, **options)
    assert verify(backend).problems == []
    backend.close()


@pytest.mark.parametrize("url", ["gs://", "az:///x", "gs://bucket/x?y=1", "az://container/x#y"])
def test_urls_without_a_prefix_are_refused(url: str) -> None:
    with pytest.raises(InvalidNameError, match="://"):
        opslog.open(url, agent="a")
