"""The tools of the memory server return what the reference server returns, and two that write at once lose nothing."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client, types

import opslog
from opslog.doors.operations import Operations
from opslog.mcp.memory import Memory
from tests.support.mcp_clients import Refused, inside, stdio
from tests.support.npm import installed

ADA = {"name": "Ada", "entityType": "person", "observations": ["writes programs", "likes Tea"]}
BOB = {"name": "Bob", "entityType": "person", "observations": []}
API = {"name": "API/v1", "entityType": "project", "observations": ["in Python"]}
KNOWS = {"from": "Ada", "to": "Bob", "relationType": "knows"}
BUILDS = {"from": "Ada", "to": "API/v1", "relationType": "builds"}
ALONE = {"from": "Bob", "to": "nobody", "relationType": "waits for"}

STORY: list[tuple[str, dict[str, Any]]] = [
    ("read_graph", {}),
    ("create_entities", {"entities": [BOB, ADA]}),
    ("create_entities", {"entities": [ADA, API]}),
    ("create_entities", {"entities": []}),
    ("create_relations", {"relations": [KNOWS, BUILDS, ALONE]}),
    ("create_relations", {"relations": [KNOWS, {**KNOWS, "relationType": "likes"}]}),
    ("add_observations", {"observations": [{"entityName": "Bob", "contents": ["is tall", "is quiet"]}]}),
    ("add_observations", {"observations": [{"entityName": "Bob", "contents": ["is tall", "sings"]}]}),
    ("add_observations", {"observations": [{"entityName": "nobody", "contents": ["x"]}]}),
    ("read_graph", {}),
    ("search_nodes", {"query": "TEA"}),
    ("search_nodes", {"query": "person"}),
    ("search_nodes", {"query": "nothing of it"}),
    ("open_nodes", {"names": ["Bob", "nobody"]}),
    ("open_nodes", {"names": []}),
    ("delete_observations", {"deletions": [{"entityName": "Bob", "observations": ["is quiet", "unknown"]}]}),
    ("delete_observations", {"deletions": [{"entityName": "nobody", "observations": ["x"]}]}),
    ("delete_relations", {"relations": [BUILDS, {**BUILDS, "from": "nobody"}]}),
    ("read_graph", {}),
    ("delete_entities", {"entityNames": ["Bob", "nobody"]}),
    ("read_graph", {}),
]


async def _played(client: Client) -> list[tuple[str, Any]]:
    """The result of each call, or its error."""
    results: list[tuple[str, Any]] = []
    for tool, arguments in STORY:
        result = await client.call_tool(tool, arguments)
        if result.is_error:
            results.append((tool, "an error"))
        else:
            [content] = result.content
            assert isinstance(content, types.TextContent)
            text: Any = content.text
            if text.startswith(("{", "[")):
                text = json.loads(text)
            results.append((tool, (text, result.structured_content)))
    return results


@asynccontextmanager
async def _reference(file: Path) -> AsyncIterator[Client]:
    folder = installed("mcp-memory", "@modelcontextprotocol/server-memory@2026.8.31")
    program = folder / "node_modules" / "@modelcontextprotocol" / "server-memory" / "dist" / "index.js"
    parameters = StdioServerParameters(
        command="node", args=[str(program)], env={**os.environ, "MEMORY_FILE_PATH": str(file)}
    )
    async with Client(stdio_client(parameters), mode="legacy") as client:
        yield client


def test_each_call_returns_what_the_reference_server_returns(tmp_path: Path) -> None:
    """Its tools, their schemas, and a story."""

    async def run() -> None:
        async with _reference(tmp_path / "memory.jsonl") as reference, inside(str(tmp_path / "s"), memory=True) as call:
            ours, theirs = await _played(call.client), await _played(reference)
            assert ours == theirs
            tools = {tool.name: tool for tool in (await call.client.list_tools()).tools}
            for tool in (await reference.list_tools()).tools:
                mine = tools.pop(tool.name)
                assert (mine.title, mine.description) == (tool.title, tool.description)
                assert mine.input_schema["properties"].keys() == tool.input_schema.get("properties", {}).keys()
                assert mine.output_schema is not None
                assert tool.output_schema is not None
                assert mine.output_schema["properties"].keys() == tool.output_schema["properties"].keys()
                assert mine.annotations is not None
                assert tool.annotations is not None
                assert mine.annotations.read_only_hint == tool.annotations.read_only_hint
                assert mine.annotations.destructive_hint == tool.annotations.destructive_hint
            assert tools == {}

    asyncio.run(run())


@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_twenty_parallel_entities_are_twenty(tmp_path: Path, servers: int) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            calls = [await stack.enter_async_context(stdio(str(tmp_path), "--memory")) for _ in range(servers)]
            await calls[0]("create_entities", entities=[ADA])
            await asyncio.gather(
                *(calls[n % servers]("create_entities", entities=[{**BOB, "name": f"e{n}"}]) for n in range(20)),
                *(
                    calls[n % servers]("add_observations", observations=[{"entityName": "Ada", "contents": [f"o{n}"]}])
                    for n in range(20)
                ),
            )
            graph = await calls[-1]("read_graph")
            assert len(graph["entities"]) == 21
            assert len(graph["entities"][0]["observations"]) == 22

    asyncio.run(run())


def test_the_memory_of_the_reference_server_is_taken_in_once(tmp_path: Path) -> None:
    file = tmp_path / "memory.jsonl"
    lines = [{"type": "entity", **ADA}, {"type": "relation", **KNOWS}, {"type": "entity", **BOB}]
    file.write_text("\n".join(json.dumps(line) for line in lines))

    async def run() -> None:
        for _ in range(2):
            async with inside(str(tmp_path / "store"), memory=True, memory_file=file) as call:
                graph = await call("read_graph")
                assert [each["name"] for each in graph["entities"]] == ["Ada", "Bob"]
                assert graph["relations"] == [KNOWS]

    asyncio.run(run())
    for wrong in ("no json", '{"type":"entity"}', "[]"):
        file.write_text(wrong)
        with opslog.open(tmp_path / "other", log="shared", version=None) as store:
            with pytest.raises(opslog.UsageError, match="memory server"):
                Memory(Operations(store)).take_in(file)
            assert not store


@pytest.mark.parametrize("had_some", [False, True])
def test_deleted_entities_are_not_taken_in_again(tmp_path: Path, had_some: bool) -> None:
    file, store = tmp_path / "memory.jsonl", str(tmp_path / "store")
    file.write_text(json.dumps({"type": "entity", **ADA}))

    async def run() -> None:
        if had_some:
            async with inside(store, memory=True) as call:
                await call("create_entities", entities=[BOB])
        async with inside(store, memory=True, memory_file=file) as call:
            await call("delete_entities", entityNames=["Ada", "Bob"])
        file.write_text("no json any more")
        async with inside(store, memory=True, memory_file=file) as call:
            assert await call("read_graph") == {"entities": [], "relations": []}

    asyncio.run(run())


def test_a_server_that_only_reads_takes_nothing_in(tmp_path: Path) -> None:
    file, store = tmp_path / "memory.jsonl", str(tmp_path / "store")
    file.write_text(json.dumps({"type": "entity", **ADA}))

    async def run() -> None:
        async with inside(store, memory=True) as call:
            await call("create_entities", entities=[BOB])
        async with inside(store, memory=True, memory_file=file, read_only=True) as call:
            assert [each["name"] for each in (await call("read_graph"))["entities"]] == ["Bob"]

    asyncio.run(run())


def test_the_configuration_of_the_reference_server_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memory.jsonl"
    monkeypatch.setenv("MEMORY_FILE_PATH", str(file))

    async def names() -> list[str]:
        async with stdio(str(tmp_path / "store"), "--memory") as call:
            return [each["name"] for each in (await call("read_graph"))["entities"]]

    assert asyncio.run(names()) == [], "it need not be there"
    file.write_text(json.dumps({"type": "entity", **ADA}))
    assert asyncio.run(names()) == ["Ada"]
    assert asyncio.run(names()) == ["Ada"]


def test_other_documents_are_left_alone(tmp_path: Path) -> None:
    with opslog.open(tmp_path, log="shared", version=None) as store:
        store["task"] = {"from": "Ada", "to": "Bob"}
        store["entity/broken"] = {"name": 1}

    async def run() -> None:
        async with inside(str(tmp_path), memory=True) as call:
            with pytest.raises(Refused) as refused:
                await call("read_graph")
            assert refused.value.code == "invalid"
            for tool, arguments in (
                ("add_observations", {"observations": [{"entityName": "broken", "contents": ["x"]}]}),
                ("delete_observations", {"deletions": [{"entityName": "broken", "observations": ["x"]}]}),
            ):
                with pytest.raises(Refused) as refused:
                    await call(tool, **arguments)
                assert refused.value.code == "invalid"
                assert "entity/broken" in refused.value.problem["message"]
            await call("delete_entities", entityNames=["broken", "Ada"])
            assert await call("read_graph") == {"entities": [], "relations": []}

    asyncio.run(run())
    with opslog.open(tmp_path, read_only=True) as store:
        assert list(store) == ["task"]
