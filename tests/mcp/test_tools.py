"""The tools for documents, called by the SDK's own client, which checks each result against the tool's schema."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError

import opslog
from tests.support.mcp_clients import ERAS, Calls, Refused, inside

pytestmark = pytest.mark.parametrize("mode", ERAS)

Story = Callable[[Calls], Awaitable[None]]


def play(url: object, mode: str, story: Story, **offer: Any) -> None:
    async def run() -> None:
        async with inside(str(url), mode, **offer) as call:
            await story(call)

    asyncio.run(run())


def test_a_claim_is_one_call_and_its_result_another(tmp_path: Path, mode: str) -> None:
    async def story(call: Calls) -> None:
        await call("batch", ops=[{"op": "create", "id": f"task-{n}", "data": {"status": "open"}} for n in range(3)])
        claimed = await call("claim", where="status = open", seconds=60)
        assert (claimed["claimed"], claimed["id"], claimed["data"]) == (True, "task-0", {"status": "open"})
        assert not (await call("claim", id="task-0"))["claimed"], "a claim of one's own is renewed by its key"
        assert (await call("claim", id="task-0", key=claimed["key"], seconds=90))["seconds"] == 90
        released = await call("release", id="task-0", key=claimed["key"], changes={"status": "done"})
        entry = await call("get", id="task-0")
        assert (entry["stamp"], entry["data"]) == (released["stamp"], {"status": "done"})
        page = await call("find", where={"status": "open"}, fields=["status"], limit=1, count=True)
        assert (page["count"], [item["id"] for item in page["items"]]) == (2, ["task-1"])
        assert [
            item["id"] for item in (await call("find", where={"status": "open"}, cursor=page["cursor"]))["items"]
        ] == ["task-2"]
        assert (await call("count", by="status"))["groups"] == [
            {"value": "open", "documents": 2},
            {"value": "done", "documents": 1},
        ]

    play(tmp_path, mode, story)


def test_the_protection_by_a_stamp(tmp_path: Path, mode: str) -> None:
    async def story(call: Calls) -> None:
        stamp = (await call("set", id="a", data={"n": 1}))["stamp"]
        assert (await call("modify", id="a", changes={"m": 2}, if_stamp=stamp))["data"] == {"n": 1, "m": 2}
        writes: list[tuple[str, dict[str, Any]]] = [("set", {"data": {}}), ("modify", {"changes": {}}), ("delete", {})]
        for tool, more in writes:
            with pytest.raises(Refused) as refused:
                await call(tool, id="a", if_stamp=stamp, **more)
            assert refused.value.code == "conflict"
            assert refused.value.problem["now"]["data"] == {"n": 1, "m": 2}
            assert refused.value.problem["next"]
        assert (await call("undo"))["ids"] == ["a"]
        assert (await call("get", id="a"))["data"] == {"n": 1}

    play(tmp_path, mode, story)


def test_changes_go_on_from_a_token(tmp_path: Path, mode: str) -> None:
    async def story(call: Calls) -> None:
        await call("set", id="a", data={})
        token = (await call("changes"))["token"]
        await call("delete", id="a")
        changes = await call("changes", since=token)
        assert [(each["op"], each["id"]) for each in changes["changes"]] == [("delete", "a")]
        assert [each["op"] for each in (await call("history", id="a"))["revisions"]] == ["set", "delete"]

    play(tmp_path, mode, story)


def test_large_documents_that_changed_are_named_and_not_all_sent(tmp_path: Path, mode: str) -> None:
    async def story(call: Calls) -> None:
        token = (await call("changes"))["token"]
        for n in range(4):
            await call("set", id=f"{n}", data={"text": "x" * 20_000})
        changes = await call("changes", since=token)
        assert [each["id"] for each in changes["changes"]] == ["0", "1"]
        assert changes["omitted"] == ["2", "3"]

    play(tmp_path, mode, story)


def test_errors_say_what_to_do_next(tmp_path: Path, mode: str) -> None:
    async def story(call: Calls) -> None:
        await call("set", id="a", data={})
        wrong: list[tuple[str, str, dict[str, Any]]] = [
            ("exists", "create", {"id": "a", "data": {}}),
            ("not_found", "get", {"id": "b"}),
            ("not_found", "delete", {"id": "b"}),
            ("invalid", "find", {"where": "status = = 1"}),
            ("invalid", "find", {"limit": 1_000_000}),
            ("invalid", "set", {"id": "a"}),
            ("invalid", "set", {"id": "a", "data": "text"}),
            ("invalid", "set", {"id": "a", "data": {}, "url": "/etc/passwd"}),
            ("invalid", "set", {"id": "a", "data": {}, "if_stamp": "yesterday"}),
            ("invalid", "claim", {}),
            ("invalid", "claim", {"id": "lease/a"}),
            ("invalid", "claim", {"key": "x"}),
            ("invalid", "undo", {"stamp": "yesterday"}),
            ("conflict", "undo", {"stamp": "1@transactions"}),
            ("invalid", "release", {"id": "a"}),
            ("invalid", "changes", {"since": "yesterday"}),
            ("lease_lost", "release", {"id": "a", "key": "x"}),
        ]
        for code, tool, arguments in wrong:
            with pytest.raises(Refused) as refused:
                await call(tool, **arguments)
            assert refused.value.code == code, (tool, arguments, refused.value)
            assert refused.value.problem["next"]
        with pytest.raises(MCPError, match="there is no tool"):
            await call("drop_everything")

    play(tmp_path, mode, story)


def test_messages_have_the_name_of_the_store_and_not_its_place(tmp_path: Path, mode: str) -> None:
    async def story(call: Calls) -> None:
        with pytest.raises(Refused) as refused:
            await call("delete", id="b")
        assert refused.value.problem["message"] == "there is no document 'b' in board"

    play(tmp_path / "board", mode, story)


def test_documents_are_resources_and_nothing_else_is(tmp_path: Path, mode: str) -> None:
    async def story(call: Calls) -> None:
        await call("batch", ops=[{"op": "set", "id": id, "data": {"id": id}} for id in ("a", "ä/../b c?#%", "")])
        listed = (await call.client.list_resources()).resources
        assert [each.name for each in listed] == ["", "a", "ä/../b c?#%"]
        for each in listed:
            [contents] = (await call.client.read_resource(each.uri)).contents
            assert json.loads(contents.text)["data"] == {"id": each.name}  # type: ignore[union-attr]  # it is text
        for uri in (
            "file:///etc/passwd",
            "opslog:///documents/nobody",
            "opslog:///store.json",
            "opslog:///documents/%ff",
        ):
            with pytest.raises(MCPError) as error:
                await call.client.read_resource(uri)
            assert error.value.code in (-32002, -32602)
        [template] = (await call.client.list_resource_templates()).resource_templates
        assert template.uri_template == "opslog:///documents/{id}"

    play(tmp_path, mode, story)


def test_many_resources_come_in_pages(tmp_path: Path, mode: str) -> None:
    async def story(call: Calls) -> None:
        await call("batch", ops=[{"op": "set", "id": f"d{n:03d}", "data": {}} for n in range(250)])
        names: list[str] = []
        cursor = None
        while True:
            page = await call.client.list_resources(cursor=cursor)
            names += [each.name for each in page.resources]
            if (cursor := page.next_cursor) is None:
                break
        assert names == [f"d{n:03d}" for n in range(250)]

    play(tmp_path, mode, story)


def test_a_page_ends_before_it_is_too_long(tmp_path: Path, mode: str) -> None:
    async def story(call: Calls) -> None:
        await call("batch", ops=[{"op": "set", "id": f"d{n}", "data": {"text": "x" * 30_000}} for n in range(4)])
        found: list[str] = []
        cursor = None
        for _ in range(4):
            page = await call("find", cursor=cursor, order_by="-@id")
            assert len(page["items"]) == 1
            found.append(page["items"][0]["id"])
            cursor = page["cursor"]
        assert (found, cursor) == (["d3", "d2", "d1", "d0"], None)

    play(tmp_path, mode, story)


def test_a_server_that_only_reads_offers_nothing_else(tmp_path: Path, mode: str) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["a"] = {}

    async def story(call: Calls) -> None:
        tools = (await call.client.list_tools()).tools
        assert {tool.name for tool in tools} == {"describe", "find", "get", "count", "history", "changes"}
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        assert (await call("describe"))["agent"] is None
        assert (await call("changes"))["reset"]
        with pytest.raises(MCPError):
            await call("set", id="a", data={})

    play(tmp_path, mode, story, read_only=True)


def test_only_the_tools_that_are_allowed(tmp_path: Path, mode: str) -> None:
    async def story(call: Calls) -> None:
        assert [tool.name for tool in (await call.client.list_tools()).tools] == ["find", "claim"]
        with pytest.raises(MCPError):
            await call("delete", id="a")
        with pytest.raises(MCPError):
            await call.client.read_resource("opslog:///documents/a")

    play(tmp_path, mode, story, tools=["claim", "find"])
    for wrong in ({"tools": ["rm"]}, {"tools": ["set"], "read_only": True}):
        with pytest.raises(opslog.UsageError):
            play(tmp_path, mode, story, **wrong)


def test_every_tool_is_described(tmp_path: Path, mode: str) -> None:
    async def story(call: Calls) -> None:
        for tool in (await call.client.list_tools()).tools:
            assert tool.description
            assert tool.title
            assert tool.input_schema["type"] == "object"
            assert tool.output_schema is not None
            assert ":ivar" not in json.dumps([tool.input_schema, tool.output_schema])
            for name, field in tool.input_schema["properties"].items():
                assert field.get("description"), (tool.name, name)
            assert tool.annotations is not None
            assert tool.annotations.open_world_hint is False

    play(tmp_path, mode, story)


def test_hostile_arguments_are_refused_or_kept_exactly(tmp_path: Path, mode: str) -> None:
    async def story(call: Calls) -> None:
        hostile = {"\u0000": "\u0000", "../../etc/passwd": 2**64 - 1, "<script>": -(2**63), "": 1.0, "n": [None, {}]}
        for id in ("../../../etc/passwd", "\u0000", "\n", "x" * 10_000, "lease", "\U0001f680"):
            await call("set", id=id, data=hostile)
            entry = await call("get", id=id)
            assert json.dumps(entry["data"]) == json.dumps(hostile)
            assert (await call("find", where={"@id": id}))["items"] == [entry]
        with pytest.raises(Refused) as refused:
            await call("set", id="a", data={"n": 2**64})
        assert refused.value.code == "invalid"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["locks", "manifests", "ops", "store.json"]

    play(tmp_path, mode, story)


def test_a_write_or_claim_of_a_document_nested_too_deep_is_done_and_says_so(tmp_path: Path, mode: str) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        document: dict[str, Any] = {}
        for _ in range(250):
            document = {"inner": document}
        store["deep"] = {"status": "open"} | document

    async def story(call: Calls) -> None:
        modified = await call("modify", id="deep", changes={"n": 1})
        assert set(modified) == {"id", "stamp", "note"}
        assert modified["stamp"] == (await call("get", id="deep", fields=["n"]))["stamp"]
        claimed = await call("claim", where="status = open", seconds=60)
        assert (claimed["claimed"], claimed["id"], claimed["seconds"]) == (True, "deep", 60)
        assert "data" not in claimed
        assert "deeper than 150 levels" in claimed["note"]
        other = await call("claim", id="deep")
        assert (other["claimed"], other["holder"], other["note"]) == (False, claimed["holder"], claimed["note"])
        assert (await call("claim", id="deep", key=claimed["key"], seconds=90))["seconds"] == 90
        await call("release", id="deep", key=claimed["key"], changes={"status": "done"})
        assert (await call("get", id="deep", fields=["status", "n"]))["data"] == {"status": "done", "n": 1}
        shallow = await call("modify", id="shallow", changes={"n": 1})
        assert shallow == {"id": "shallow", "stamp": shallow["stamp"], "data": {"n": 1}}

    play(tmp_path, mode, story)


def test_documents_nested_too_deep_for_clients_are_refused_and_not_sent(tmp_path: Path, mode: str) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        for levels in (140, 250):
            document: dict[str, Any] = {"title": "x"}
            for _ in range(levels):
                document = {"title": "x", "inner": document}
            store[f"d{levels}"] = document

    async def story(call: Calls) -> None:
        assert (await call("get", id="d140"))["data"]["title"] == "x"
        for tool, arguments in (("get", {"id": "d250"}), ("find", {}), ("history", {"id": "d250"})):
            with pytest.raises(Refused) as refused:
                await call(tool, **arguments)
            assert refused.value.code == "unreadable"
        assert (await call("get", id="d250", fields=["title"]))["data"] == {"title": "x"}
        [contents] = (await call.client.read_resource("opslog:///documents/d250")).contents
        assert len(contents.text) > 250  # type: ignore[union-attr]  # it is text

    play(tmp_path, mode, story)


def test_twenty_parallel_writes_keep_twenty(tmp_path: Path, mode: str) -> None:
    async def story(call: Calls) -> None:
        await asyncio.gather(*(call("modify", id="a", changes={f"n{n}": n}) for n in range(20)))
        assert len((await call("get", id="a"))["data"]) == 20

    play(tmp_path, mode, story)
