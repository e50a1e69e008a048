"""Agents share a board, each through an MCP server of its own, as language models do. A planner puts tasks on the
board. One of two coders goes silent after its claim. Each task is still done once.

python agents.py agents-board
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client

SECONDS = 1.0  # how long a claim lasts; for a model, use some minutes


class Agent:
    """An agent's access to a store: tools that it calls by name."""

    def __init__(self, name: str, client: Client) -> None:
        self.name = name
        self._client = client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The result of the tool. If the tool refused, `code`, `message` and `next` say why, and what to do."""
        result = await self._client.call_tool(tool, arguments)
        answer: dict[str, Any] = json.loads(result.content[0].text)  # type: ignore[union-attr]  # tools answer with text
        return answer


def server(store: str, name: str) -> Client:
    """A server for one agent. In a client's configuration: opslog mcp --store STORE --agent NAME."""
    arguments = ["-m", "opslog", "mcp", "--store", store, "--agent", name]
    return Client(stdio_client(StdioServerParameters(command=sys.executable, args=arguments)))


async def plan(planner: Agent, titles: list[str]) -> None:
    tasks = enumerate(titles, start=1)
    ops = [{"op": "create", "id": f"task-{n}", "data": {"title": title, "status": "open"}} for n, title in tasks]
    answer = await planner.call("batch", ops=ops)
    print(planner.name, "planned", answer["ids"] if "ids" in answer else answer["code"])


async def work(coder: Agent) -> None:
    """Claim and do tasks, until all are done."""
    while (await coder.call("find", where="status = open", limit=1))["items"]:
        claim = await coder.call("claim", where="status = open", seconds=SECONDS)
        if not claim["claimed"]:
            await asyncio.sleep(SECONDS / 4)  # others are working on the rest
            continue
        result = claim["data"]["title"].upper()  # here the model works
        changes = {"status": "done", "result": result}
        answer = await coder.call("release", id=claim["id"], key=claim["key"], changes=changes)
        print(coder.name, "did", claim["id"] if "stamp" in answer else answer["code"])


async def main(store: str) -> None:
    async with AsyncExitStack() as stack:
        planner, ann, bob = [
            Agent(name, await stack.enter_async_context(server(store, name))) for name in ("planner", "ann", "bob")
        ]
        await plan(planner, ["build api", "write tests", "ship it"])
        lost = await ann.call("claim", where="status = open", seconds=SECONDS)
        print("ann claimed", lost["id"], "and is not heard of again")
        await work(bob)
        late = await ann.call("release", id=lost["id"], key=lost["key"], changes={"status": "done", "by": "ann"})
        print("ann comes back too late:", late["code"])
        for item in (await planner.call("find", where="exists title"))["items"]:
            print(item["id"], item["data"]["status"], item["data"]["result"], "by", item["author"].split(".")[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Agents that share a board.")
    parser.add_argument("store", help="a directory, or s3://bucket/prefix")
    asyncio.run(main(parser.parse_args().store))
