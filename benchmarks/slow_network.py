"""A proxy in front of a server that delays every response, as a network would.

Servers on the machine itself answer within a millisecond or two; Amazon S3 takes ten times as long, and clients
differ in how many requests they have under way meanwhile. Runs as a process of its own, and ends with its standard
input.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_CHUNK = 64 * 1024


@contextmanager
def slower(endpoint: str, milliseconds: float) -> Iterator[str]:
    """The endpoint of a proxy for `endpoint`."""
    place = urlsplit(endpoint)
    command = [sys.executable, "-m", "benchmarks.slow_network", str(place.hostname), str(place.port), str(milliseconds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


async def serve(host: str, port: int, delay: float) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(host, port)
        with suppress(asyncio.CancelledError):  # the end of the program
            await asyncio.gather(pass_on(reader, server_writer, 0), pass_on(server_reader, writer, delay))

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, delay: float) -> None:
    """Each part arrives so many seconds after it was sent; the parts overtake nothing and wait for nothing else."""
    loop = asyncio.get_running_loop()
    coming: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read() -> None:
        data = b"first"
        while data:
            data = b""
            with suppress(ConnectionError):
                data = await source.read(_CHUNK)
            coming.put_nowait((loop.time() + delay, data))

    reading = asyncio.create_task(read())
    with suppress(ConnectionError):
        while True:
            due, data = await coming.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                break
            target.write(data)
            await target.drain()
    await reading
    target.close()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) / 1000))
