"""The official suite for clients, if it is installed by hand: no registry has its package. The adapter that it talks to
is also tested without the suite, on this server.

    DURABLE_STREAMS_CLIENT_SUITE="node …/client-conformance-tests/dist/cli.js" pytest -m slow tests/server/client
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.client.driving import KINDS
from tests.support import client_conformance
from tests.support.servers import http, serving

SUITE = os.environ.get("DURABLE_STREAMS_CLIENT_SUITE", "")
ADAPTER = Path(client_conformance.__file__)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not SUITE, reason="DURABLE_STREAMS_CLIENT_SUITE names no command of the official suite")
@pytest.mark.parametrize("kind", KINDS)
def test_official_suite(kind: str, tmp_path: Path) -> None:
    """These cases do not apply: six about options that only the PHP client has, two about a number of messages in a
    batch, which this client does not limit, and two that the suite itself leaves out."""
    adapter = tmp_path / "adapter"
    adapter.write_text(f"#!/bin/sh\nexec {shlex.join([sys.executable, str(ADAPTER), kind])}\n")
    adapter.chmod(0o755)
    done = subprocess.run([*shlex.split(SUITE), "--run", adapter], capture_output=True, text=True, check=False)
    figures = dict(re.findall(r"^(Total|Passed|Failed|Skipped): (\d+)", done.stdout, re.MULTILINE))
    assert figures.get("Failed") == "0", done.stdout[-5000:] + done.stderr[-5000:]
    assert (figures["Total"], figures["Passed"], figures["Skipped"]) == ("269", "259", "10")


Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    with serving("--memory", "--long-poll-seconds", "0.3", "--faults") as server:
        yield server.root


@pytest.fixture(params=KINDS)
def ask(request: pytest.FixtureRequest, root: str) -> Iterator[Ask]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", ADAPTER, request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def asked(type: str, **command: Any) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"type": type, **command}) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())  # type: ignore[no-any-return]  # every result is an object

    assert asked("init", serverUrl=root)["success"]
    yield asked
    asked("shutdown")
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    return f"/v1/stream/{re.sub(r'[^a-z]+', '-', request.node.name)}"


def test_the_adapter_creates_appends_reads_and_closes(ask: Ask, path: str) -> None:
    made = ask("create", path=path, contentType="application/json", data='[{"n": 1}]')
    assert (made["success"], made["status"]) == (True, 201)
    assert ask("create", path=path, contentType="application/json")["status"] == 200
    end = ask("append", path=path, data='[{"n": 2}, {"n": 3}]', seq=1)["offset"]
    refused = ask("append", path=path, data="4", seq=1)
    assert (refused["success"], refused["errorCode"]) == (False, "SEQUENCE_CONFLICT") or refused[
        "errorCode"
    ] == "CONFLICT"
    for live in (False, True, "sse", "long-poll"):
        found = ask("read", path=path, live=live, waitForUpToDate=True)
        (chunk,) = found["chunks"]
        assert (json.loads(chunk["data"]), chunk["offset"]) == ([{"n": 1}, {"n": 2}, {"n": 3}], end)
        assert (found["upToDate"], found["streamClosed"]) == (True, False)
    nothing = ask("read", path=path, offset=end, live="long-poll", timeoutMs=500)
    assert (nothing["status"], nothing["chunks"], nothing["upToDate"]) == (204, [], True)
    assert ask("close", path=path, data="5")["finalOffset"] > end
    assert ask("append", path=path, data="6")["errorCode"] == "STREAM_CLOSED"
    assert ask("head", path=path)["streamClosed"] is True
    assert ask("delete", path=path)["success"]
    assert ask("read", path=path)["errorCode"] == "NOT_FOUND"


def test_the_adapter_produces(ask: Ask, path: str) -> None:
    ask("create", path=path, contentType="application/json")
    whose = {"path": path, "producerId": "p", "epoch": 0, "autoClaim": False}
    assert ask("idempotent-append", data="[1]", **whose)["success"]
    assert ask("idempotent-append", data="2", **whose)["success"]
    assert ask("idempotent-detach", path=path, producerId="p", epoch=0)["success"]
    many = {**whose, "epoch": 1, "items": ["3", "4", "5"], "maxInFlight": 3}
    assert ask("idempotent-append-batch", **many)["success"]
    stale = ask("idempotent-append", data="6", **whose)
    assert (stale["errorCode"], stale["status"]) == ("FORBIDDEN", 403)
    last = {**whose, "epoch": 2}
    assert ask("idempotent-close", data="7", **last)["finalOffset"] == ask("idempotent-close", **last)["finalOffset"]
    assert json.loads(ask("read", path=path)["chunks"][0]["data"]) == [[1], 2, 3, 4, 5, 7]


def test_the_adapter_computes_headers_and_reports_errors(ask: Ask, root: str, path: str) -> None:
    ask("create", path=path, contentType="application/json", data="1")
    ask("set-dynamic-header", name="X-Count", valueType="counter")
    ask("set-dynamic-param", name="count", valueType="counter")
    for count in ("1", "2"):
        found = ask("read", path=path)
        assert (found["headersSent"], found["paramsSent"]) == ({"X-Count": count}, {"count": count})
    ask("clear-dynamic")
    assert "headersSent" not in ask("read", path=path)
    for fault, live in (({"truncateBodyBytes": 1}, False), ({"corruptBody": True}, False)):
        http("POST", f"{root}/_test/inject-error", json={"path": path, "method": "GET", **fault})
        assert ask("read", path=path, live=live)["errorCode"] == "PARSE_ERROR"
    assert ask("read", path=path)["success"]
    assert ask("read", path=path, offset="zzz")["errorCode"] == "INVALID_OFFSET"
    epoch = ask("validate", target={"target": "idempotent-producer", "producerId": "p", "epoch": -1})
    assert (epoch["errorCode"], "epoch" in epoch["message"]) == ("INVALID_ARGUMENT", True)
    size = ask("validate", target={"target": "idempotent-producer", "producerId": "p", "maxBatchBytes": 0})
    assert (size["errorCode"], "maxBatchBytes" in size["message"]) == ("INVALID_ARGUMENT", True)
    assert ask("benchmark")["errorCode"] == "NOT_SUPPORTED"
