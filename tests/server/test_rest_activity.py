"""Stores over HTTP: who did what recently, which writes lost, and figures over time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.doors.activity import Activity
from opslog.doors.operations import Operations
from tests.support.rest import Rest


def test_recent_activity_by_agent(rest: Rest, url: str) -> None:
    for number in range(3):
        rest.ask("PUT", "/documents/a", {"n": number}, opslog_agent="planner")
    rest.ask("POST", "/undo", opslog_agent="planner")
    found = rest.ask("GET", "/activity?limit=2").json()
    assert [(each["author"], each["op"], each["ids"]) for each in found["commits"]] == [
        ("planner", "undo", ["a"]),
        ("planner", "set", ["a"]),
    ]
    (agent,) = [each for each in found["agents"] if each["name"] == "planner"]
    assert (agent["commits"], agent["writes"], agent["undos"], agent["lost"]) == (4, 3, 1, 0)
    assert agent["ts"] == found["commits"][0]["ts"]
    assert (found["retained"], found["lost"]) == (4, [])
    with opslog.open(url, agent="ann") as ann, opslog.open(url, agent="bob") as bob:
        ann["b"] = {"by": "ann"}
        bob["b"] = {"by": "bob"}
    (lost,) = rest.ask("GET", "/activity").json()["lost"]
    assert (lost["id"], lost["author"], lost["to"]["author"]) == ("b", "ann", "bob")
    assert rest.ask("GET", "/documents/b").headers["opslog-author"] == "bob"


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("activity", "/activity"),
        ("history", "/history/a"),
        ("ops", "/ops"),
        ("archived", "/archives/old"),
        ("find", "/documents?as_of=1000"),
    ],
)
def test_many_requests_that_may_take_long_delay_nobody_else(
    rest: Rest, monkeypatch: pytest.MonkeyPatch, operation: str, path: str
) -> None:
    rest.ask("PUT", "/documents/a", {"n": 1})
    assert rest.ask("POST", "/archives", {"where": "n = 1", "period": "old"}).json() == {"documents": 1}
    may_go_on = threading.Event()
    real = getattr(Operations, operation)

    def waiting(*given: Any, **named: Any) -> Any:
        may_go_on.wait(60)
        return real(*given, **named)

    monkeypatch.setattr(Operations, operation, waiting)
    address = "http://test/v1/store/tasks"

    async def scenario() -> None:
        asking = [asyncio.ensure_future(rest.client.get(f"{address}{path}", timeout=None)) for _ in range(20)]
        for _ in range(100):  # turns of the loop, in which all of them reach the place where they wait
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(30):
                assert (await rest.client.put(f"{address}/documents/a", json={})).status_code == 200
                assert (await rest.client.get(f"{address}/documents/a")).status_code == 200
        finally:
            may_go_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}

    rest.run(scenario())


def test_recent_activity_is_read_once_for_all_callers(rest: Rest, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rest.ask("PUT", "/documents/a", {})
    read: list[int] = []
    activity = Operations.activity

    def counted(self: Operations, most: int) -> Activity:
        read.append(most)
        return activity(self, most)

    monkeypatch.setattr(Operations, "activity", counted)
    for _ in range(3):
        assert rest.ask("GET", "/activity").json()["retained"] == 1
    assert len(read) == 1
    with opslog.open(url, agent="beside") as beside:
        beside["a"] = {"n": 1}
    assert rest.ask("GET", "/activity").json()["retained"] == 2


def test_figures_over_time(tmp_path: Path) -> None:
    url = str(tmp_path / "tasks")
    with opslog.open(url, agent="beside", settings=opslog.Settings(undo_window=0)) as beside:
        rest = Rest(url)
        try:
            rest.ask("PUT", "/documents/a", {})
            stream = "http://test/v1/stream/stores/tasks?offset=-1"
            assert rest.get(stream).status_code == 200  # the feed has the commit, so a sample was taken
            last = rest.ask("GET", "/figures").json()["samples"][-1]
            assert (last["commits"], last["tail"], last["documents"]) == (1, 1, 1)
            beside.compact()
            rest.ask("PUT", "/documents/b", {})
            assert rest.get(stream).status_code == 200
            then = rest.ask("GET", "/figures").json()["samples"][-1]
            assert (then["commits"], then["documents"]) == (2, 2)
            assert then["tail"] < 2
            assert then["manifest"] > last["manifest"]
        finally:
            rest.close()
