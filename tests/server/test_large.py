"""Streams that are larger than the memory that a server may take: it reads ranges, never a whole stream."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from opslog.server.protocol.appending import Append
from opslog.server.protocol.creation import Create, ForkOf
from opslog.server.storage.directory import DirectoryStorage
from opslog.server.streams import Streams
from tests.support.servers import serving

MIB = 2**20
BINARY = {"content-type": "application/octet-stream"}


def own_memory(pid: int) -> int:
    """Bytes of memory that belong to the process alone, so without mapped files."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("this system does not say how much memory a process has")
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize(
    "size", [48 * MIB, pytest.param(10 * 1024 * MIB, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_a_large_stream_is_read_in_bounded_memory(tmp_path: Path, size: int) -> None:
    chunk = bytes(range(256)) * 4096 * 8
    with serving("--data", str(tmp_path / "data")) as server, httpx.Client(timeout=120) as client:
        url, written, read = f"{server.url}/a", sha256(), sha256()
        client.put(url, headers=BINARY)
        for _ in range(size // len(chunk)):
            assert client.post(url, content=chunk, headers=BINARY).status_code == 204
            written.update(chunk)
        before, most, offset = own_memory(server.process.pid), 0, "-1"
        while True:
            answer = client.get(url, params={"offset": offset}, headers={"accept-encoding": "identity"})
            assert len(answer.content) <= MIB
            read.update(answer.content)
            offset = answer.headers["stream-next-offset"]
            most = max(most, own_memory(server.process.pid))
            if "stream-up-to-date" in answer.headers:
                break
        assert read.digest() == written.digest()
        assert most < before + 40 * MIB


@pytest.mark.parametrize("count", [10_000, pytest.param(500_000, marks=pytest.mark.slow)])
def test_many_small_messages_are_read_in_chunks(tmp_path: Path, count: int) -> None:
    async def scenario() -> None:
        storage = DirectoryStorage(tmp_path / "data")
        streams = Streams(storage)
        await streams.start()
        await streams.create(Create("a", "application/json"))
        for first in range(0, count, 1000):
            messages = [Append("a", "application/json", b"%d," % n) for n in range(first, min(count, first + 1000))]
            await asyncio.gather(*map(streams.append, messages))
        await streams.create(Create("fork", fork=ForkOf("a")))
        for path in ("a", "fork"):
            stream, position, found = streams.stream(path), 0, 0
            while position < stream.tail:
                read = streams.read(stream, position, 4096)
                assert sum(map(len, read.chunks)) < 4096 + 16
                for chunk in read.chunks:
                    assert chunk == b"%d," % found
                    found += 1
                position = read.stop
            assert found == count
        await streams.stop()
        storage.close()

    asyncio.run(scenario())
