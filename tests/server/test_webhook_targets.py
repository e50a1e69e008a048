"""Webhooks cannot reach the server's own network, whatever the form of the URL and whatever its name resolves to."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import ip_address

import httpx
import pytest

from opslog.server.subscriptions.subscription import SubscriptionRefused
from opslog.server.subscriptions.webhook_delivery import Delivery
from opslog.server.subscriptions.webhook_targets import Address, parse_target

PRIVATE = [
    "0.0.0.0",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.1.2.3",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.8",
    "192.0.0.9",
    "192.0.0.170",
    "192.0.2.1",
    "192.88.99.1",
    "198.51.100.1",
    "203.0.113.1",
    "239.255.255.255",
    "0.1.2.3",
    "100.127.255.255",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:192.0.0.8",
    "::ffff:0:8.8.8.8",
    "2002:c000:8::1",
    "64:ff9b::192.0.0.8",
    "64:ff9b:1::808:808",
    "100::1",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "3fff::1",
    "5f00::1",
    "fec0::1",
    "4000::1",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::a00:1",
    "2002:7f00:1::",
    "2001:db8::1",
    "fc00::1",
    "fe80::1",
    "ff02::1",
]
PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "100.63.255.255",
    "100.128.0.1",
    "172.15.0.1",
    "172.32.0.1",
    "192.0.1.1",
    "192.167.0.1",
    "198.17.0.1",
    "198.20.0.1",
    "223.255.255.254",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2a00::1",
    "3ffe::1",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
    "2002:808:808::1",
]


def in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


class Names:
    """A resolver that returns the next of its answers each time. The last answer repeats for ever."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)

    async def __call__(self, host: str, port: int) -> list[Address]:
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if not answer:
            raise OSError("no such name")
        return [ip_address(text) for text in answer]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_refused_as_they_are_and_behind_a_name(address: str) -> None:
    with pytest.raises(SubscriptionRefused) as refused:
        parse_target(f"https://{in_url(address)}/hook", allow_loopback=False)
    assert refused.value.code == "WEBHOOK_URL_REJECTED"

    async def attempted() -> None:
        delivery = Delivery(allow_loopback=False, resolve=Names(["8.8.8.8", address]))
        with pytest.raises(SubscriptionRefused, match="not on the public internet"):
            await delivery.check("https://hooks.example/")
        with pytest.raises(SubscriptionRefused, match="not on the public internet"):
            await delivery.post("https://hooks.example/", b"{}", "")
        await delivery.close()

    asyncio.run(attempted())


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_taken(address: str) -> None:
    assert parse_target(f"https://{in_url(address)}:8443/hook?x=1", allow_loopback=False).port == 8443


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example/",
        "http://localhost/",
        "http://8.8.8.8/",
        "ftp://hooks.example/",
        "https://",
        "https:///path",
        "https://user:secret@hooks.example/",
        "https://hooks.example:99999/",
        "https://hooks.example:0/",
        "https://hooks.example/\r\nX: y",
        "https://[::1/",
        "https://fe80::1%25eth0/",
        "hooks.example",
        pytest.param("https://hooks.example/" + "a" * 8000, id="too long"),
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(SubscriptionRefused):
        parse_target(url, allow_loopback=False)


@pytest.mark.parametrize("url", ["http://localhost:9/", "http://127.0.0.1/", "https://localhost/", "http://[::1]/"])
def test_loopback_is_allowed_by_an_option_only(url: str) -> None:
    parse_target(url, allow_loopback=True)
    for private in ("http://10.0.0.1/", "https://192.168.0.1/", "http://hooks.example/"):
        with pytest.raises(SubscriptionRefused):
            parse_target(private, allow_loopback=True)


def test_a_name_that_changes_after_it_was_resolved_leads_nowhere() -> None:
    async def attempted() -> None:
        delivery = Delivery(allow_loopback=False, resolve=Names(["8.8.8.8"], ["127.0.0.1"]))
        await delivery.check("https://hooks.example/")
        with pytest.raises(SubscriptionRefused, match=r"hooks\.example is 127\.0\.0\.1"):
            await delivery.post("https://hooks.example/", b"{}", "")
        await delivery.close()

    asyncio.run(attempted())


def test_a_name_that_cannot_be_resolved_now_may_be_later() -> None:
    async def attempted() -> None:
        delivery = Delivery(allow_loopback=False, resolve=Names([]))
        await delivery.check("https://hooks.example/")
        with pytest.raises(OSError, match="no such name"):
            await delivery.post("https://hooks.example/", b"{}", "")
        await delivery.close()

    asyncio.run(attempted())


@contextmanager
def receiver(status: int, answer: bytes, location: str = "") -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A web server that gives one answer; and the requests that it got."""
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.append({"path": self.path, "body": body.decode(), **{k.lower(): v for k, v in self.headers.items()}})
            self.send_response(status)
            content = answer
            if "gzip" in self.headers.get("accept-encoding", ""):  # as many web servers do
                content = gzip.compress(answer)
                self.send_header("Content-Encoding", "gzip")
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def posted(url: str) -> bool:
    async def post() -> bool:
        delivery = Delivery(allow_loopback=True, resolve=Names(["127.0.0.1"]))
        try:
            return await delivery.post(url, b'{"wake":1}', "t=1,kid=k,ed25519=s")
        finally:
            await delivery.close()

    return asyncio.run(post())


def test_the_requests_that_are_posted() -> None:
    with receiver(200, json.dumps({"done": True}).encode()) as (url, asked):
        assert posted(f"{url}/hook?a=b"), "the answer is understood"
    (request,) = asked
    assert (request["path"], request["body"]) == ("/hook?a=b", '{"wake":1}')
    assert request["host"] == url.removeprefix("http://"), "the name, though the connection went to an address"
    assert request["webhook-signature"] == "t=1,kid=k,ed25519=s"
    assert request["content-type"] == "application/json"
    assert request["accept-encoding"] == "identity"


ANSWERS = {
    "empty": b"",
    "text": b"thanks",
    "array": b"[]",
    "not yet": b'{"done":false}',
    "too long": b'{"done":true,"x":"' + b"y" * 70_000 + b'"}',
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_answers_that_do_not_say_done(answer: bytes) -> None:
    with receiver(200, answer) as (url, _):
        assert not posted(url)


def test_redirects_are_not_followed() -> None:
    with (
        receiver(200, b"") as (inner, reached),
        receiver(307, b"", location=inner) as (url, asked),
        pytest.raises(httpx.HTTPError, match="307"),
    ):
        posted(url)
    assert len(asked) == 1
    assert not reached


def test_receivers_that_do_not_answer_delay_no_other_webhook() -> None:
    async def attempted() -> None:
        end = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"POST /hangs "):
                await end.wait()
            else:
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        delivery = Delivery(allow_loopback=True)
        hanging = [asyncio.create_task(delivery.post(f"{url}/hangs", b"{}", "")) for _ in range(150)]
        await asyncio.sleep(0)  # they have begun, and come first
        assert not await delivery.post(f"{url}/answers", b"{}", "")
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        end.set()
        await delivery.close()
        server.close()

    asyncio.run(attempted())
