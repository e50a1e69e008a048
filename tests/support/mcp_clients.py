"""Clients of `opslog mcp`, by the official SDK: over a process of its own, or in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client

from opslog.doors.sessions import open_session, session_name
from opslog.mcp.running import Offer, server_of

COMMAND = [sys.executable, "-W", "error::UserWarning", "-m", "opslog", "mcp"]

# The two ways in which a client and a server come together: a handshake, as up to 2025, and none, as from 2026 on.
ERAS = ["legacy", "auto"]


class Refused(Exception):
    """A tool refused; `problem` says why."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem)
        self.problem = problem
        self.code = problem["code"]


class Calls:
    """A client whose calls return what is structured in their results."""

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
    """A server of its own process."""
    command = [*COMMAND, "--store", url, *options]
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=dict(os.environ))
    async with Client(stdio_client(parameters), mode=mode) as client:
        yield Calls(client)


@asynccontextmanager
async def inside(url: str, mode: str = "auto", **offer: Any) -> AsyncIterator[Calls]:
    """A server in this process."""
    offered = Offer(url=url, **offer)
    with open_session(url, session_name(offered.agent), read_only=offered.read_only) as store:
        async with Client(server_of(offered, store), mode=mode) as client:
            yield Calls(client)


@contextmanager
def http(url: str, *options: str) -> Iterator[str]:
    """A server at an address of this machine."""
    command = [*COMMAND, "--store", url, "--http", "127.0.0.1:0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert "http://" in line, line + process.stderr.read()
            yield line.split()[-1]
        finally:
            process.terminate()
            process.communicate()
