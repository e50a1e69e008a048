"""Servers as processes of their own, many at once, of which some are killed; and servers over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

import opslog
from opslog.doors.sessions import session_name
from opslog.mcp.running import Offer
from tests.cli.calling import call as run_command
from tests.support.mcp_clients import COMMAND, ERAS, Calls, Refused, http, stdio
from tests.support.places import DIRECTORY, Place


@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_twenty_parallel_writes_keep_twenty(tmp_path: Path, servers: int) -> None:
    """From one process and from two. The reference memory server, which rewrites its file, keeps 1 and 2 of them."""

    async def run() -> None:
        async with AsyncExitStack() as stack:
            calls = [await stack.enter_async_context(stdio(str(tmp_path))) for _ in range(servers)]
            await asyncio.gather(
                *(calls[n % servers]("modify", id="board", changes={f"n{n}": n}) for n in range(20)),
                *(calls[n % servers]("create", id=f"d{n}", data={}) for n in range(20)),
            )
            for call in calls:
                assert len((await call("get", id="board"))["data"]) == 20
                assert (await call("describe"))["documents"] == 21

    asyncio.run(run())


def test_the_agent_is_the_one_that_was_given_also_if_it_is_called_main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def agent(*options: str) -> str:
        async with stdio(str(tmp_path), *options) as call:
            name: str = (await call("describe"))["agent"]
        return name.partition(".")[0]

    assert asyncio.run(agent()) == "mcp"
    assert asyncio.run(agent("--agent", "main")) == "main"
    monkeypatch.setenv("OPSLOG_AGENT", "main")
    assert asyncio.run(agent()) == "main"


async def _work(call: Calls, done: list[str]) -> None:
    """Do tasks until none is left."""
    while (claimed := await call("claim", where="status = open", seconds=600))["claimed"]:
        done.append(claimed["id"])
        await call("release", id=claimed["id"], key=claimed["key"], changes={"status": "done"})


@pytest.mark.parametrize(
    ("place", "servers", "tasks"),
    [
        pytest.param(DIRECTORY, 2, 30, id="directory-2-servers"),
        pytest.param("moto-s3fs", 2, 10, id="s3-2-servers", marks=pytest.mark.long),
        pytest.param(DIRECTORY, 8, 200, id="directory-8-servers", marks=pytest.mark.slow),
        pytest.param("moto-s3fs", 8, 200, id="s3-8-servers", marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
    indirect=["place"],
)
def test_each_task_is_done_once(place: Place, servers: int, tasks: int) -> None:
    with opslog.open(place.url(), agent="planner", **place.options) as store:
        store.update({f"task-{n:03d}": {"status": "open"} for n in range(tasks)})
    done: list[list[str]] = [[] for _ in range(servers)]

    async def run() -> None:
        async with AsyncExitStack() as stack:
            starting = (stack.enter_async_context(stdio(place.url())) for _ in range(servers))
            calls = [await each for each in starting]
            await asyncio.gather(*map(_work, calls, done))

    asyncio.run(run())
    assert sorted(id for ids in done for id in ids) == [f"task-{n:03d}" for n in range(tasks)]
    with opslog.open(place.url(), read_only=True, **place.options) as store:
        assert store.group("status") == [("done", tasks)]
        written = Counter(record.id for commit in store.ops() for record in commit.records if commit.by)
        assert {written[f"task-{n:03d}"] for n in range(tasks)} == {1}


def test_a_killed_server_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """SIGKILL comes while many calls are under way. What was answered is there, and another agent takes over a claim of
    the dead one."""
    with subprocess.Popen(
        [*COMMAND, "--store", str(tmp_path / "store")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(number: int, method: str, **params: Any) -> None:
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            assert process.stdin is not None
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()

        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        ask(0, "initialize", **about)
        assert b"protocolVersion" in process.stdout.readline()
        process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        ask(1, "tools/call", name="claim", arguments={"id": "work", "seconds": 0.5})
        assert b"true" in process.stdout.readline()
        for n in range(100, 400):
            ask(n, "tools/call", name="create", arguments={"id": f"d{n}", "data": {"n": n}})
        answered = [json.loads(process.stdout.readline()) for _ in range(40)]
        os.kill(process.pid, signal.SIGKILL)
        answered += [json.loads(line) for line in process.stdout.read().split(b"\n") if line.endswith(b"}")]
    acknowledged = {answer["id"] for answer in answered if not answer["result"].get("isError")}
    assert len(acknowledged) >= 40
    with opslog.open(tmp_path / "store", agent="check") as store:
        assert {f"d{n}" for n in acknowledged} <= store.keys()

    async def take_over() -> None:
        async with stdio(str(tmp_path / "store")) as call:
            while not (await call("claim", id="work", seconds=0.5))["claimed"]:
                await asyncio.sleep(0.01)

    asyncio.run(take_over())


@pytest.mark.parametrize("mode", ERAS)
def test_over_http_sessions_of_one_process_share_a_store(tmp_path: Path, mode: str) -> None:
    async def run(url: str) -> None:
        async with Client(url, mode=mode) as one, Client(url, mode=mode) as other:
            first, second = Calls(one), Calls(other)
            await asyncio.gather(
                *(first("modify", id="a", changes={f"n{n}": n}) for n in range(10)),
                *(second("modify", id="a", changes={f"m{n}": n}) for n in range(10)),
            )
            assert len((await first("get", id="a"))["data"]) == 20
            await first("modify", id="a", changes={"last": True})
            assert (await first("claim", id="a", seconds=60))["claimed"]
            assert not (await second("claim", id="a", seconds=60))["claimed"]
            stamp = (await first("set", id="b", data={"by": "first"}))["stamp"]
            if mode == "legacy":  # with sessions, each one has a name of its own, and undoes its own writes
                assert (await second("describe"))["agent"] != (await first("describe"))["agent"]
                with pytest.raises(Refused):  # its newest write is one of `a` that others have overwritten
                    await second("undo")
            else:
                with pytest.raises(Refused, match="give the stamp"):
                    await second("undo")
            assert (await first("undo", stamp=stamp))["ids"] == ["b"]

    with http(str(tmp_path / "store"), "--agent", "claude") as url:
        asyncio.run(run(url))
    with opslog.open(tmp_path / "store", read_only=True) as store:
        assert all(commit.author.startswith("claude.") for commit in store.ops())


@pytest.mark.parametrize("mode", ERAS)
def test_each_request_over_http_has_a_line_in_the_log_with_its_tool_and_is_counted(tmp_path: Path, mode: str) -> None:
    async def run(url: str) -> None:
        named = httpx2.AsyncClient(headers={"x-request-id": "of-the-client"})
        async with named, Client(streamable_http_client(url, http_client=named), mode=mode) as client:
            await Calls(client)("set", id="a", data={"secret": "x"})
            answer = await named.get(url)
            assert answer.headers["x-request-id"] == "of-the-client"
            figures.append(await named.get(url.removesuffix("/mcp") + "/metrics"))
            elsewhere = {"host": "page.example"}
            refused.append((await named.get(url.removesuffix("/mcp") + "/metrics", headers=elsewhere)).status_code)
            with pytest.raises(Refused):
                await Calls(client)("get", id="none")
            figures.append(await named.get(url.removesuffix("/mcp") + "/metrics"))

    logs: list[dict[str, Any]] = []
    figures: list[httpx2.Response] = []
    refused: list[int] = []
    with http(str(tmp_path / "board"), "--log-level", "debug", logs=logs) as url:
        asyncio.run(run(url))
    lines = [line for line in logs if line["logger"] == "opslog.access"]
    assert {(line["path"], line["request_id"]) for line in lines} == {
        ("/mcp", "of-the-client"),
        ("/metrics", "of-the-client"),
    }
    called = [line for line in lines if "operation" in line]
    fields = ("door", "store", "operation", "status")
    assert [[line[name] for name in fields] for line in called] == [
        ["mcp", "board", "set", 200],
        ["mcp", "board", "get", 200],
    ]
    assert "secret" not in json.dumps(logs)
    first, second = figures
    counted = 'opslog_store_requests_total{{door="mcp",operation="{}",status="{}",store="board"}} 1.0'
    assert counted.format("set", "ok") in first.text
    assert counted.format("get", "not_found") in second.text
    assert 'opslog_store_seconds_count{door="mcp",store="board"} 2.0' in second.text
    assert 'opslog_store_documents{store="board"} 1.0' in second.text
    assert refused == [421]


def test_no_two_sessions_have_one_name() -> None:
    assert len({session_name("claude") for _ in range(100)}) == 100, "in containers, host and process may be the same"


def test_an_invented_session_name_has_no_session(tmp_path: Path) -> None:
    async def run(url: str) -> None:
        named = httpx2.AsyncClient(headers={"mcp-session-id": "made-up"})
        async with named, Client(streamable_http_client(url, http_client=named), mode="auto") as client:
            call = Calls(client)
            await call("set", id="a", data={})
            with pytest.raises(Refused, match="give the stamp"):
                await call("undo")

    with http(str(tmp_path / "store")) as url:
        asyncio.run(run(url))


def test_invalid_addresses_and_tools_are_refused(tmp_path: Path) -> None:
    for wrong in (["--http", "0.0.0.0:0"], ["--http", "nowhere"], ["--anyone"], ["--tools", "rm"]):
        done = run_command(tmp_path, "mcp", *wrong)
        assert done.code == 2, (wrong, done)
        assert "anyone" in done.err or "address" in done.err or "no tool" in done.err
    done = run_command(tmp_path / "nothing", "mcp", "--read-only")
    assert done.code == 3
    assert "no store" in done.err


@pytest.mark.parametrize("anyone", [True, False])
def test_anyone_may_come_by_another_name_where_that_is_said(tmp_path: Path, anyone: bool) -> None:
    """As behind a proxy on the same machine that passes on the name that its clients use."""
    names = {"host": "tasks.example", "origin": "https://tasks.example"}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accepted = {"accept": "application/json, text/event-stream"}
    with http(str(tmp_path), *["--anyone"] * anyone) as url, httpx2.Client(headers=names) as client:
        figures = client.get(url.removesuffix("/mcp") + "/metrics")
        answer = client.post(url, json=asked, headers=accepted)
    assert [figures.status_code == 200, answer.status_code not in (403, 421)] == [anyone, anyone]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("tasks", "tasks"),
        ("/srv/tasks/", "tasks"),
        (".", "here"),
        ("./..", "up"),
        ("a#1", "a#1"),
        ("memory://tasks", "tasks"),
        ("s3://bucket/team/tasks", "tasks"),
        ("s3://bucket/", "bucket"),
    ],
)
def test_the_store_has_a_name_in_figures_and_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, name: str
) -> None:
    place = tmp_path / "up" / "here"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    assert Offer(url).name == name
