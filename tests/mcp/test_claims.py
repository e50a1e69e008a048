"""Claims of clients that are gone, and of clients that are not: a key keeps a claim, and no connection does."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mcp import Client

from opslog.environment import REAL
from tests.support.documents import ROOT
from tests.support.mcp_clients import ERAS, Calls, Refused, http, inside

SECONDS = 60


@pytest.mark.parametrize("mode", ERAS)
def test_the_claim_of_a_client_that_is_gone_ends_after_its_seconds(tmp_path: Path, mode: str) -> None:
    async def run() -> None:
        async with inside(str(tmp_path), mode, environment=environment) as other:
            async with inside(str(tmp_path), mode, environment=environment) as gone:
                await gone("create", id="task", data={"status": "open"})
                key = (await gone("claim", id="task", seconds=SECONDS))["key"]
            for seconds, is_free in ((0, False), (SECONDS - 1, False), (2, True)):
                now[0] += seconds  # as the other one counts them, from when it saw the claim
                claimed = await other("claim", where="status = open", seconds=SECONDS)
                assert claimed["claimed"] == is_free, seconds
        async with inside(str(tmp_path), mode, environment=environment) as back:
            with pytest.raises(Refused) as lost:
                await back("release", id="task", key=key, changes={"status": "done"})
            assert lost.value.code == "lease_lost"
            assert (await back("get", id="task"))["data"] == {"status": "open"}

    now = [1000.0]
    environment = replace(REAL, monotonic=lambda: now[0])
    asyncio.run(run())


@pytest.mark.parametrize("mode", ERAS)
def test_the_claim_of_a_client_that_renews_it_stays_also_through_another_server(tmp_path: Path, mode: str) -> None:
    async def run() -> None:
        async with inside(str(tmp_path), mode, environment=environment) as other:
            await other("create", id="task", data={"status": "open"})
            key = None
            for _ in range(5):
                async with inside(str(tmp_path), mode, environment=environment) as living:
                    claimed = await living("claim", id="task", key=key, seconds=SECONDS)
                    key = claimed["key"]
                now[0] += SECONDS - 1
                assert not (await other("claim", id="task", seconds=SECONDS))["claimed"]
                assert not (await other("claim", where="status = open", seconds=SECONDS))["claimed"]
            async with inside(str(tmp_path), mode, environment=environment) as living:
                await living("release", id="task", key=key, changes={"status": "done"})
            assert (await other("get", id="task"))["data"] == {"status": "done"}

    now = [1000.0]
    environment = replace(REAL, monotonic=lambda: now[0])
    asyncio.run(run())


KILLED = """
import asyncio, json, os, signal, sys
from mcp import Client
from tests.support.mcp_clients import Calls

async def run(url, mode):
    keys = {}
    async with Client(url, mode=mode) as client:
        call = Calls(client)
        for id, seconds in (("kept", 600), ("left", 0.2)):
            await call("create", id=id, data={"status": "open"})
            keys[id] = (await call("claim", id=id, seconds=seconds))["key"]
        print(json.dumps(keys), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(run(*sys.argv[1:]))
"""


@pytest.mark.parametrize("mode", ERAS)
def test_over_http_the_end_of_a_client_neither_ends_a_claim_nor_keeps_it(tmp_path: Path, mode: str) -> None:
    async def run(url: str) -> None:
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, url, mode], cwd=ROOT, stdout=subprocess.PIPE, check=False
        )
        assert killed.returncode == -signal.SIGKILL
        keys = json.loads(killed.stdout)
        async with Client(url, mode=mode) as one, Client(url, mode=mode) as other:
            back, theirs = Calls(one), Calls(other)
            while not (await theirs("claim", id="left", seconds=600))["claimed"]:
                await asyncio.sleep(0.01)
            assert not (await theirs("claim", id="kept", seconds=600))["claimed"]
            assert (await back("claim", id="kept", key=keys["kept"], seconds=600))["claimed"]
            await back("release", id="kept", key=keys["kept"], changes={"status": "done"})
            with pytest.raises(Refused) as lost:
                await back("release", id="left", key=keys["left"], changes={"status": "done"})
            assert lost.value.code == "lease_lost"

    with http(str(tmp_path / "store")) as url:
        asyncio.run(run(url))
