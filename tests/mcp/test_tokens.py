"""Tokens for a server at an address: who may do what, and in whose name. By the official client."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

import opslog
from opslog.doors.tokens import Tokens
from tests.support.documents import ROOT, blocks
from tests.support.mcp_clients import COMMAND, ERAS, Calls, Refused, http

READ_TOOLS = ["describe", "find", "get", "count", "history", "changes"]
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ACCEPTED = {"accept": "application/json, text/event-stream"}


def table(name: str, **fields: object) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(["[[token]]", f'name = "{name}"', f'sha256 = "{sha256(name.encode()).hexdigest()}"', *lines, ""])


TOKENS = (
    table("planner", read=["stores/board"], write=["stores/board"])
    + table("ci 7", read=[""], write=["stores"], agent="builder")
    + table("reader", read=["stores/board"])
    + table("nobody 9", read=["stores/board"], write=["stores/board"])
    + table("blind", write=["stores/board"])
    + table("elsewhere", read=["stores/boards"], write=["stores/boards"])
)


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    file = tmp_path / "tokens.toml"
    file.write_text(TOKENS)
    return str(file)


@pytest.fixture
def url(tmp_path: Path, tokens: str) -> Iterator[str]:
    with http(str(tmp_path / "board"), "--tokens", tokens) as served:
        yield served


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@asynccontextmanager
async def carrying(url: str, token: str, mode: str) -> AsyncIterator[Calls]:
    """A client that carries a token, which is its name here."""
    carrier = httpx2.AsyncClient(headers=bearer(token))
    async with carrier, Client(streamable_http_client(url, http_client=carrier), mode=mode) as client:
        yield Calls(client)


@pytest.mark.parametrize("mode", ERAS)
def test_a_token_writes_in_the_name_of_its_agent(tmp_path: Path, url: str, mode: str) -> None:
    async def run() -> None:
        async with carrying(url, "planner", mode) as planner, carrying(url, "ci 7", mode) as builder:
            stamp = (await planner("set", id="a", data={"n": 1}))["stamp"]
            assert (await planner("get", id="a"))["author"].startswith("planner.")
            assert (await builder("modify", id="b", changes={"n": 1}))["stamp"]
            assert (await builder("get", id="b"))["author"].startswith("builder.")
            with pytest.raises(Refused):
                await builder("undo", stamp=stamp)
            assert (await planner("undo", stamp=stamp))["ids"] == ["a"]

    asyncio.run(run())
    with opslog.open(tmp_path / "board", read_only=True) as store:
        assert {commit.author.partition(".")[0] for commit in store.ops()} == {"planner", "builder"}


@pytest.mark.parametrize("token", ["reader", "nobody 9"])
@pytest.mark.parametrize("mode", ERAS)
def test_a_token_that_may_not_write_or_names_no_agent_has_the_tools_that_read(url: str, mode: str, token: str) -> None:
    async def run() -> None:
        async with carrying(url, "planner", mode) as planner, carrying(url, token, mode) as reader:
            await planner("set", id="a", data={"n": 1})
            assert [tool.name for tool in (await reader.client.list_tools()).tools] == READ_TOOLS
            assert (await reader("get", id="a"))["data"] == {"n": 1}
            for tool in ("set", "claim", "undo", "batch"):
                with pytest.raises(MCPError, match="there is no tool"):
                    await reader(tool, id="a", data={})
            assert (await planner("get", id="a"))["data"] == {"n": 1}

    asyncio.run(run())


def test_without_a_token_that_may_read_the_store_nothing_is_answered(url: str) -> None:
    figures = url.removesuffix("/mcp") + "/metrics"
    refused: list[tuple[dict[str, str], int]] = [
        ({}, 401),
        (bearer("unknown"), 401),
        ({"authorization": "Basic planner"}, 401),
        (bearer("blind"), 403),
        (bearer("elsewhere"), 403),
    ]
    with httpx2.Client(headers=ACCEPTED) as client:
        for headers, status in refused:
            for answer in (client.post(url, json=PING, headers=headers), client.get(figures, headers=headers)):
                assert answer.status_code == status, headers
                assert answer.headers["www-authenticate"].startswith("Bearer ")
                assert answer.headers["x-request-id"]
        assert client.get(figures, headers=bearer("reader")).status_code == 200


def test_a_session_is_for_the_token_that_began_it(url: str) -> None:
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    with httpx2.Client(headers=ACCEPTED) as client:
        begun = client.post(url, json={**PING, "method": "initialize", "params": about}, headers=bearer("planner"))
        session = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}
        for token, status in (("planner", 200), ("ci 7", 404), ("reader", 404)):
            assert client.post(url, json=PING, headers=session | bearer(token)).status_code == status


@pytest.mark.parametrize("mode", ERAS)
def test_logs_name_the_token_and_do_not_have_it(tmp_path: Path, tokens: str, mode: str) -> None:
    async def run(url: str) -> None:
        async with carrying(url, "ci 7", mode) as call:
            await call("describe")

    logs: list[dict[str, Any]] = []
    with http(str(tmp_path / "board"), "--tokens", tokens, "--log-level", "debug", logs=logs) as url:
        asyncio.run(run(url))
    lines = [line for line in logs if line["logger"] == "opslog.access"]
    assert {line["token"] for line in lines} == {"ci 7"}
    assert "Bearer" not in json.dumps(logs)


@pytest.mark.parametrize("anyone", [True, False])
def test_tokens_do_not_open_an_address_of_this_machine_to_other_names(
    tmp_path: Path, tokens: str, anyone: bool
) -> None:
    """And --anyone, which does, as for a proxy, still asks for a token."""
    names = {"host": "tasks.example", "origin": "https://tasks.example", **ACCEPTED}
    options = ["--tokens", tokens, *["--anyone"] * anyone]
    with http(str(tmp_path / "board"), *options) as url, httpx2.Client(headers=names) as client:
        answer = client.post(url, json=PING, headers=bearer("planner"))
        assert (answer.status_code not in (403, 421)) == anyone
        assert client.post(url, json=PING).status_code == 401


def test_with_tokens_any_address_may_be_served(tmp_path: Path, tokens: str) -> None:
    with http(str(tmp_path / "board"), "--tokens", tokens, "--http", "0.0.0.0:0") as url, httpx2.Client() as client:
        local = url.replace("0.0.0.0", "127.0.0.1")
        assert client.post(local, json=PING, headers=ACCEPTED).status_code == 401
        elsewhere = {"host": "tasks.example", **ACCEPTED, **bearer("planner")}
        assert client.post(local, json=PING, headers=elsewhere).status_code not in (401, 403, 421)


def test_the_file_of_tokens_that_is_shown_can_be_read(tmp_path: Path) -> None:
    (shown,) = (block.text for block in blocks(ROOT / "docs" / "mcp.md") if block.language == "toml")
    file = tmp_path / "shown.toml"
    file.write_text(shown)
    token = Tokens.load(file).find("Bearer test")
    assert token is not None
    assert (token.author(), token.covers("stores/board", "write")) == ("claude", True)


def test_a_name_that_is_too_long_for_sessions_is_refused_at_the_start(tmp_path: Path) -> None:
    """With the longest name that is said to be possible, the server starts, and the token writes."""
    file = tmp_path / "tokens.toml"
    rights = {"read": ["stores/board"], "write": ["stores/board"]}
    options = ["--store", str(tmp_path / "board"), "--http", "127.0.0.1:0", "--tokens", str(file)]
    file.write_text(TOKENS + table("ci long", agent="x" * 128, **rights) + table("y" * 128, read=["stores/board"]))
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done
    assert "the token 'ci long' cannot write here" in done.stderr
    longest = re.search(r"at most (\d+) characters", done.stderr)
    assert longest is not None

    async def run(url: str) -> None:
        async with carrying(url, "ci long", "auto") as call:
            await call("set", id="a", data={})

    # A process may have a number with more digits than another one has.
    file.write_text(table("ci long", agent="x" * (int(longest[1]) - 5), **rights))
    with http(str(tmp_path / "board"), "--tokens", str(file)) as url:
        asyncio.run(run(url))


def test_a_long_name_that_only_reads_is_no_obstacle(tmp_path: Path) -> None:
    opslog.open(tmp_path / "board", agent="a").close()
    file = tmp_path / "tokens.toml"
    file.write_text(table("ci long", read=["stores/board"], write=["stores/board"], agent="x" * 128))
    with http(str(tmp_path / "board"), "--read-only", "--tokens", str(file)) as url, httpx2.Client() as client:
        assert client.post(url, json=PING, headers=ACCEPTED | bearer("ci long")).status_code not in (401, 403)


def test_options_that_cannot_be(tmp_path: Path, tokens: str) -> None:
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    for wrong, reason in (
        (["--tokens", tokens], "--tokens goes with --http"),
        (["--http", "127.0.0.1:0", "--tokens", str(empty)], "[[token]] tables"),
        (["--http", "127.0.0.1:0", "--tokens", str(tmp_path / "none.toml")], "cannot be read"),
    ):
        done = subprocess.run(
            [*COMMAND, "--store", str(tmp_path / "board"), *wrong],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, reason in done.stderr) == (2, True), done
