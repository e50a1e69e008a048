"""Hostile clients on a running server: they can take only limited resources, and other clients are served."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.servers import Server, http, serving
from tests.support.waiting import until

TEXT = {"content-type": "text/plain"}
MB = 10**6


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    tokens = tmp_path / "tokens.toml"
    hashed = sha256(b"secret").hexdigest()
    tokens.write_text(f'[[token]]\nname = "me"\nsha256 = "{hashed}"\nread = [""]\nwrite = [""]\n')
    with serving("--memory", "--tokens", str(tokens)) as running:
        yield running


def peak_bytes(server: Server) -> int:
    """The peak memory of the server."""
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    return int(kilobytes) * 1024


def figure(server: Server, name: str) -> float:
    found = re.findall(rf"^{re.escape(name)} (\S+)$", http("GET", f"{server.root}/metrics").text, re.MULTILINE)
    return float(found[0]) if found else 0.0


def refused(server: Server) -> float:
    return figure(server, 'opslog_server_requests_total{method="POST",status="503"}')


def send_for_ever(connection: socket.socket, chunk: bytes, most: int) -> int:
    """Send until the server closes the connection. Returns how much was sent."""
    sent = 0
    try:
        while sent < most:
            connection.sendall(chunk)
            sent += len(chunk)
    except (ConnectionResetError, BrokenPipeError):
        pass
    return sent


def status_of(connection: socket.socket) -> int:
    head = b""
    while b"\r\n" not in head and (chunk := connection.recv(65536)):
        head += chunk
    return int(head.split(b" ")[1]) if head else 0


CHUNKED = b"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "request line": (b"GET /", b"x" * 65536),
    "header": (b"GET / HTTP/1.1\r\nA: ", b"x" * 65536),
    "headers": (b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 10_000),
    "trailers": (CHUNKED + b"0\r\n", b"a: b\r\n" * 10_000),
    "blank lines": (b"", b"\r\n" * 30_000),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_endless_head_is_refused_before_its_token_and_takes_no_memory(server: Server, kind: str) -> None:
    before = peak_bytes(server)
    start, chunk = ENDLESS[kind]
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(start + chunk * 2)
        assert status_of(connection) == 431
        assert http("GET", f"{server.root}/healthz").status_code == 200
        send_for_ever(connection, chunk, 80 * MB)  # it reads on for a while, and discards what it reads
    assert peak_bytes(server) - before < 8 * MB
    metrics = http("GET", f"{server.root}/metrics", headers={"authorization": "Bearer secret"}).text
    assert 'opslog_server_requests_total{method="-",status="431"} 1.0' in metrics


def test_unfinished_bodies_have_one_limit_in_total() -> None:
    options = ("--max-body-bytes", str(MB), "--max-buffered-bytes", str(4 * MB))
    with serving("--memory", *options) as server, ExitStack() as stack:
        http("PUT", f"{server.url}/a", headers=TEXT)
        before = peak_bytes(server)
        for _ in range(40):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            head = (
                b"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 1000000\r\n\r\n"
            )
            connection.sendall(head + b"x" * 999_999)
        until(lambda: refused(server) + figure(server, "opslog_server_buffered_bytes") / 999_999 == 40)
        assert refused(server) >= 36
        assert http("POST", f"{server.url}/a", content=b"short", headers=TEXT).status_code == 204
        assert peak_bytes(server) - before < 30 * MB


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_client_that_sends_a_large_body_first_can_read_the_refusal(tls: bool, certificate: tuple[Path, Path]) -> None:
    file, key = certificate
    options = ("--tls-certificate", str(file), "--tls-key", str(key)) if tls else ()
    with serving("--memory", "--max-body-bytes", "1000", *options) as server:
        connection: socket.socket = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        if tls:
            trusting = ssl.create_default_context(cafile=file)
            trusting.check_hostname = False
            connection = trusting.wrap_socket(connection)
        with connection:
            size = 20 * MB
            head = (
                f"POST /v1/stream/a HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: {size}\r\n\r\n"
            )
            connection.sendall(head.encode())
            for _ in range(size // MB):
                connection.sendall(b"x" * MB)
            assert status_of(connection) == 413
