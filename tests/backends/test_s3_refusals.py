"""Errors that a retry cannot fix are not a `RetryError`: S3 without credentials, and without a bucket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("s3fs", reason="needs opslog[fast]")
pytest.importorskip("obstore", reason="needs opslog[fast]")

import opslog


class NoBucket(BaseHTTPRequestHandler):
    """Responds like S3 if there is no bucket."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b"<?xml version='1.0'?>\n<Error><Code>NoSuchBucket</Code><Message>It is not there</Message></Error>"
        self.send_response(404)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), NoBucket)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.mark.parametrize("read_only", [True, False], ids=["read", "write"])
@pytest.mark.parametrize("driver", ["s3fs", "obstore"])
def test_missing_credentials_are_for_the_caller_to_set(endpoint: str, driver: str, read_only: bool) -> None:
    with pytest.raises(opslog.UsageError, match=r"AWS_ACCESS_KEY_ID.*profile.*key=.*anon=True"):
        opslog.open(f"s3://bucket/x?driver={driver}", read_only=read_only, endpoint_url=endpoint)


@pytest.mark.parametrize("driver", ["s3fs", "obstore"])
def test_a_missing_profile_is_named(endpoint: str, driver: str) -> None:
    with pytest.raises(opslog.UsageError, match=r"nobodys.*AWS_PROFILE"):
        opslog.open(f"s3://bucket/x?driver={driver}", read_only=True, endpoint_url=endpoint, profile="nobodys")


@pytest.mark.parametrize("read_only", [True, False], ids=["read", "write"])
@pytest.mark.parametrize("driver", ["s3fs", "obstore"])
def test_a_missing_bucket_is_named_and_to_be_created(endpoint: str, driver: str, read_only: bool) -> None:
    with pytest.raises(opslog.UsageError, match=r"^s3://bucket: there is no such bucket: create it") as caught:
        opslog.open(
            f"s3://bucket/x?driver={driver}", read_only=read_only, endpoint_url=endpoint, key="key", secret="secret"
        )
    assert "xml" not in str(caught.value)
