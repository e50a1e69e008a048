"""`opslog serve` as a process of its own."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import httpx

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without it, each request would load the certificates of the system."""


def http(method: str, url: str, **options: Any) -> httpx.Response:
    """A request on a connection of its own."""
    return httpx.request(method, url, **{"verify": _NO_TLS, "timeout": 60, **options})


class Follower(Thread):
    """Reads an answer to its end, in a thread.

    :ivar status: the status of the answer.
    :ivar text: the part of it that has come.
    """

    def __init__(self, url: str, **params: str) -> None:
        super().__init__()
        self.status = 0
        self._chunks: list[str] = []
        self._url, self._params = url, params
        self.start()

    @property
    def text(self) -> str:
        return "".join(self._chunks)

    def run(self) -> None:
        with httpx.stream("GET", self._url, params=self._params, timeout=60, verify=_NO_TLS) as answer:
            self.status = answer.status_code
            for text in answer.iter_text():
                self._chunks.append(text)


class Server:
    """A running server.

    :ivar url: the URL of its stream root, without the slash at the end.
    :ivar logs: the lines that it has logged.
    """

    def __init__(self, *options: str) -> None:
        self.logs: list[dict[str, Any]] = []
        self.said: list[str] = []
        command = [sys.executable, "-W", "error", "-m", "opslog", "serve", "--json", *options]
        if "--port" not in options:
            command += ["--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.url = self._hear()
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _hear(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{"):
                self.logs.append(json.loads(line))
                if self.logs[-1].get("message") == "serving":
                    return str(self.logs[-1]["url"]).rstrip("/")
            else:
                self.said.append(line)
        raise AssertionError(f"the server ended with exit code {self.process.wait()}: {self.logs} {self.said}")

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{"):
                self.logs.append(json.loads(line))
            else:
                self.said.append(line)

    @property
    def root(self) -> str:
        """The URL of the server itself."""
        return self.url.removesuffix("/v1/stream")

    @property
    def port(self) -> int:
        return int(self.root.rpartition(":")[2])

    def kill(self) -> None:
        """End it like a crash."""
        self.process.kill()
        self._end()

    def stop(self) -> int:
        """Stop it as an administrator would. Returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> int:
        code = self.process.wait(timeout=60)
        self._thread.join(timeout=60)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


class Restarting:
    """A server that is killed now and then, and restarted at the same address.

    :ivar root: its URL.
    """

    def __init__(self, *options: str) -> None:
        self._options = options
        self._server = Server(*options)
        self.root, self._port = self._server.root, str(self._server.port)

    def restart(self) -> None:
        """Restart it. Returns when it serves again."""
        self._server.kill()
        self._server = Server("--port", self._port, *self._options)

    def kill(self) -> None:
        """Kill it for good."""
        self._server.kill()


@contextmanager
def serving(*options: str) -> Iterator[Server]:
    server = Server(*options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
