"""Real S3 servers for tests: moto behind one lock, Ceph if it is installed, and a server that a person names.

`OPSLOG_TEST_S3_URL=s3://bucket/prefix` names it; endpoint, region and credentials are then those of the AWS environment
variables. Tests leave nothing behind there.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

NAMES = ["moto", "ceph", *(["named"] if os.environ.get("OPSLOG_TEST_S3_URL") else [])]
# One server is enough for the tests that run at each change.
PARAMETERS = [NAMES[0], *(pytest.param(name, marks=pytest.mark.long) for name in NAMES[1:])]
_CEPH_PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")


class Server(NamedTuple):
    """A server that runs.

    :ivar url: the URL of a bucket, or of a prefix in one, for the tests alone.
    :ivar environment: the variables by which S3 clients find the server.
    """

    url: str
    environment: dict[str, str]


@contextmanager
def running(name: str, folder: Path, bucket: str = "opslog") -> Iterator[Server]:
    """One of `NAMES`, or the test is skipped.

    :param bucket: what to call the bucket where one is made.
    """
    match name:
        case "moto":
            pytest.importorskip("moto", reason="moto is not installed")
            with _process([sys.executable, str(Path(__file__).with_name("moto_server.py"))]) as port:
                yield _with_bucket(f"http://127.0.0.1:{port}", bucket)
        case "ceph":
            missing = [program for program in _CEPH_PROGRAMS if shutil.which(program) is None]
            if missing:
                pytest.skip(f"Ceph is not installed here: no {missing[0]}")
            script = Path(__file__).with_name("ceph.sh")
            gateway, monitor = _free_ports(2)
            with _process(["bash", str(script), str(folder / "ceph"), str(gateway), str(monitor)]):
                yield _with_bucket(f"http://127.0.0.1:{gateway}", bucket)
        case _:
            yield Server(os.environ["OPSLOG_TEST_S3_URL"].rstrip("/"), {})


@contextmanager
def _process(command: list[str]) -> Iterator[str]:
    """A program that prints one line when it is ready, and ends with its standard input."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        assert line, f"{command[-1]} ended with exit code {process.wait()}"
        yield line
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _with_bucket(endpoint: str, bucket: str) -> Server:
    from botocore.session import Session

    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    client = Session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    client.create_bucket(Bucket=bucket)
    client.close()
    return Server(f"s3://{bucket}", environment)
