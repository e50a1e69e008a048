"""The server at standard input and output, with a client that sends lines of its own: signals, lines that cannot be
read, and clients that are silent, or gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

import opslog
from tests.support.mcp_clients import COMMAND
from tests.support.waiting import until

ABOUT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


class Lines:
    """A client that sends lines, and reads the answers to them.

    :ivar process: the server.
    """

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        assert process.stdin is not None
        self.process, self.input, self._output, self._errors = process, process.stdin, process.stdout, errors

    @property
    def output(self) -> IO[bytes]:
        assert self._output is not None
        return self._output

    def send(self, line: bytes) -> None:
        self.input.write(line + b"\n")
        self.input.flush()

    def ask(self, number: int, method: str, **params: Any) -> None:
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self.send(json.dumps(message).encode())

    def answer(self) -> dict[str, Any]:
        answer = json.loads(self.output.readline())
        assert isinstance(answer, dict)
        return answer

    def begin(self) -> None:
        self.ask(0, "initialize", **ABOUT)
        assert self.answer()["id"] == 0
        self.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')

    def errors(self) -> str:
        """What the server has printed on stderr so far."""
        return os.pread(self._errors.fileno(), 1 << 24, 0).decode()


@contextmanager
def served(store: Path, *options: str, output: int = subprocess.PIPE) -> Iterator[Lines]:
    command = [*COMMAND, "--store", str(store), *options]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=errors) as process,
    ):
        try:
            yield Lines(process, errors)
        finally:
            process.kill()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_the_server_while_its_client_is_silent(tmp_path: Path, sent: int, code: int) -> None:
    with served(tmp_path / "store") as client:
        client.begin()
        client.ask(1, "tools/call", name="set", arguments={"id": "a", "data": {}})
        assert client.answer()["id"] == 1
        client.process.send_signal(sent)
        assert (client.process.wait(60), client.errors()) == (code, "")
    with opslog.open(tmp_path / "store", read_only=True) as store:
        assert list(store) == ["a"]


@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="only Linux says how much a pipe holds")
def test_an_interrupt_ends_the_server_while_its_client_does_not_read(tmp_path: Path) -> None:
    with opslog.open(tmp_path / "store", agent="a") as store:
        store["a"] = {"text": "x" * 1_000_000}
    with served(tmp_path / "store") as client:
        client.begin()
        client.ask(1, "tools/call", name="get", arguments={"id": "a"})
        pipe = client.output.fileno()
        until(lambda: _waiting(pipe) == fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ))
        client.process.send_signal(signal.SIGINT)
        assert (client.process.wait(60), client.errors()) == (130, "")


def _waiting(pipe: int) -> int:
    """How many bytes are in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0\0\0\0"), "little")


def _set(data: bytes, id: bytes = b"7") -> bytes:
    call = b'"method":"tools/call","params":{"name":"set","arguments":{"id":"a","data":%s}}' % data
    return b'{"jsonrpc":"2.0","id":%s,%s}' % (id, call)


def test_a_message_that_cannot_be_read_is_answered_and_logged(tmp_path: Path) -> None:
    """Also before the first request. The log has no part of the message, and later messages are served as always."""
    unreadable: list[tuple[bytes, int | str | None, int]] = [
        (_set(b'{"x":"\\ud83d"}'), 7, -32700),  # half of a surrogate pair
        (_set(b'{"x":"\\ud83d"}', b'"seven"'), "seven", -32700),
        (_set(b'{"a":' * 200 + b"1" + b"}" * 200), 7, -32700),
        (_set(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), None, -32700),
        (_set(b'{"n":%s}' % (b"9" * 5000)), 7, -32700),
        (_set(b'{"x":"\xff"}'), 7, -32700),  # not UTF-8
        (_set(b"{}", b'"\\ud83d"'), None, -32700),  # an id that no answer can have
        (_set(b'{"x":"\\ud83d"}', b"9" * 5000), None, -32700),
        (b'{"jsonrpc":"2.0","id":7,"result":{"x":"\\ud83d"}}', None, -32700),  # a response, not a request
        (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":[1]}', 7, -32600),
        (b'[{"jsonrpc":"2.0","id":7,"method":"ping"}]', None, -32600),
        (b"{", None, -32700),
    ]
    lines = [unreadable[0], *unreadable]
    with served(tmp_path / "store", "--json") as client:
        reasons = []
        for number, (line, id, code) in enumerate(lines):
            client.send(line)
            answer = client.answer()
            assert (answer["id"], answer["error"]["code"]) == (id, code), line[:100]
            reasons.append(answer["error"]["message"].removeprefix("the message cannot be read: "))
            if number == 0:
                client.begin()
            client.send(b"")
            client.ask(number, "tools/call", name="describe", arguments={})
            assert client.answer()["result"]["structuredContent"]["documents"] == 0
        client.input.close()
        assert client.process.wait(60) == 0
        logged = [json.loads(each) for each in client.errors().splitlines()]
    for each in logged:
        assert (each.pop("level"), each.pop("logger"), len(each.pop("ts"))) == ("warning", "opslog.mcp", 27)
    message = "a message of the client cannot be read"
    assert logged == [
        {"message": message, "reason": reason, "bytes": len(line)}
        for reason, (line, _, _) in zip(reasons, lines, strict=True)
    ]


def test_a_client_that_is_gone_ends_the_server_quietly(tmp_path: Path) -> None:
    """Here it has closed only the end from which it reads, so that the server finds out by its answer."""
    with served(tmp_path / "store") as client:
        client.begin()
        client.output.close()
        client.ask(1, "tools/call", name="set", arguments={"id": "a", "data": {}})
        assert (client.process.wait(60), client.errors()) == (0, "")
    with opslog.open(tmp_path / "store", read_only=True) as store:
        assert list(store) == ["a"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
def test_output_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full, served(tmp_path / "store", output=full.fileno()) as client:
        client.ask(0, "initialize", **ABOUT)
        assert client.process.wait(60) == 3
        assert client.errors() == "opslog: cannot read or write: No space left on device\n"


def test_the_last_line_needs_no_end_and_may_come_in_parts(tmp_path: Path) -> None:
    line = _set(b'{"x":"\\ud83d"}')
    with served(tmp_path / "store") as client:
        client.begin()
        for part in (line[:10], line[10:]):
            client.input.write(part)
            client.input.flush()
        client.input.close()
        assert client.answer()["id"] == 7
        assert client.process.wait(60) == 0
