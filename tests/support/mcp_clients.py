"""Clients of `opslog mcp`, by the official SDK: over a process of its own, or in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import IO, Any

from mcp import Client, StdioServerParameters, stdio_client

from opslog.doors.metrics import DoorMetrics
from opslog.doors.sessions import open_session, session_name
from opslog.environment import REAL, Environment
from opslog.mcp.running import Offer, server_of
from tests.support.waiting import until

COMMAND = [sys.executable, "-W", "error::UserWarning", "-m", "opslog", "mcp"]

# The two ways in which a client and a server start: with a handshake, as up to 2025, and without one, as from 2026 on.
ERAS = ["legacy", "auto"]


class Refused(Exception):
    """A tool refused the call; `problem` says why."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem)
        self.problem = problem
        self.code = problem["code"]


class Calls:
    """A client whose calls return the structured part of their results."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """:raises Refused: the result is an error."""
        result = await self.client.call_tool(tool, arguments)
        [content] = result.content
        if result.is_error:
            raise Refused(json.loads(content.text))  # type: ignore[union-attr]  # it is text
        assert isinstance(result.structured_content, dict)
        return result.structured_content


@asynccontextmanager
async def stdio(url: str, *options: str, mode: str = "auto") -> AsyncIterator[Calls]:
    """A client of a server in a process of its own."""
    command = [*COMMAND, "--store", url, *options]
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    async with Client(stdio_client(parameters), mode=mode) as client:
        yield Calls(client)


@asynccontextmanager
async def inside(
    url: str, mode: str = "auto", *, environment: Environment = REAL, **offer: Any
) -> AsyncIterator[Calls]:
    """A client of a server in this process."""
    offered = Offer(url=url, **offer)
    name = session_name(offered.agent)
    with open_session(url, name, read_only=offered.read_only, environment=environment) as store:
        async with Client(server_of(offered, store, DoorMetrics()), mode=mode) as client:
            yield Calls(client)


@contextmanager
def http(url: str, *options: str, logs: list[dict[str, Any]] | None = None) -> Iterator[str]:
    """A client of a server at an address of this machine.

    :param logs: gets the server's log lines after its end.
    """
    command = [*COMMAND, "--store", url, "--http", "127.0.0.1:0", "--json", *options]
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(command, stderr=errors) as process:
        try:
            until(lambda: bool(_lines(errors)) or process.poll() is not None)
            (serving, *_) = _lines(errors)
            yield serving["url"]
        finally:
            process.terminate()
            process.wait()
            if logs is not None:
                logs += _lines(errors)


def _lines(errors: IO[str]) -> list[dict[str, Any]]:
    # Read without moving the position at which the server, which has the same file open, writes next.
    text = os.pread(errors.fileno(), 1 << 24, 0).decode()
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
