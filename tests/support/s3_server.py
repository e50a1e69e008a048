"""An S3 server inside this process, with faults on request.

It knows what a store needs: put, put-if-absent (in the words of Google Cloud Storage, too), get with ranges, listings
with pages, deletion of one and of many. It is atomic and its listings are consistent, as those of S3 are. `fault` is
asked before every request and may have it answered with an error, dropped before or after it was carried out, or
carried out late.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

PAGE = 1000


class Request(NamedTuple):
    """A client's request: the method and key, and whether the put is conditional."""

    number: int
    method: str
    key: str
    conditional: bool


class Fault(NamedTuple):
    """What becomes of a request.

    :ivar status: the status of the answer. 0: no answer, and the connection is dropped; -1: no answer, and it stays
        open.
    :ivar done: whether the request is carried out all the same, before the answer.
    :ivar late: after how many further requests it is carried out instead.
    """

    status: int
    done: bool = False
    late: int = 0


class S3Server:
    """Serve with `with S3Server() as server:`; `server.url` is the endpoint.

    :ivar objects: maps a key (with the bucket) to (bytes, time).
    :ivar requests: the requests so far.
    :ivar honours_conditions: whether it knows put-if-absent.
    :ivar refuses_conditions: whether it answers 501 to put-if-absent.
    """

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.requests: list[Request] = []
        self.headers: list[Message] = []
        """The headers of the requests."""
        self.fault: Callable[[Request], Fault | None] = lambda request: None
        self.honours_conditions = True
        self.refuses_conditions = False
        self.over = threading.Event()
        self._late: list[tuple[int, Callable[[], object]]] = []
        self.mutex = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> S3Server:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def failing(self, fault: Callable[[Request], Fault | None]) -> Iterator[None]:
        self.fault = fault
        try:
            yield
        finally:
            self.fault = lambda request: None

    def carry_out_late(self, number: int, work: Callable[[], object] | None = None) -> None:
        """Carry out what is due by the request with this number. With `work`, record that work for later."""
        with self.mutex:
            if work is not None:
                self._late.append((number, work))
                return
            due = [late for at, late in self._late if at <= number]
            self._late = [(at, late) for at, late in self._late if at > number]
        for late in due:
            late()

    def options(self) -> dict[str, Any]:
        """For s3fs."""
        return {
            "endpoint_url": self.url,
            "key": "key",
            "secret": "secret",
            "client_kwargs": {"region_name": "us-east-1"},
        }


class _Handler(BaseHTTPRequestHandler):
    store: S3Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _begin(self) -> tuple[str, dict[str, list[str]], bytes, Fault | None]:
        parts = urlsplit(self.path)
        key = unquote(parts.path).lstrip("/")
        body = self._body()
        with self.store.mutex:
            request = Request(len(self.store.requests), self.command, key, self.headers.get("If-None-Match") == "*")
            self.store.requests.append(request)
            self.store.headers.append(self.headers)
        self.number = request.number
        self.store.carry_out_late(request.number)
        return key, parse_qs(parts.query, keep_blank_values=True), body, self.store.fault(request)

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" not in (self.headers.get("Content-Encoding") or ""):
            return body
        data = b""
        while body:
            size, _, body = body.partition(b"\r\n")
            length = int(size.partition(b";")[0], 16)
            if not length:
                break
            data, body = data + body[:length], body[length + 2 :]
        return data

    def _answer(self, fault: Fault | None, work: Callable[[], tuple[int, bytes, dict[str, str]]]) -> None:
        status, body = 0, b""
        headers: dict[str, str] = {}
        if fault is None or fault.done:
            status, body, headers = work()
        if fault is not None:
            if fault.late:
                self.store.carry_out_late(self.number + fault.late, work)
            if fault.status <= 0:
                if fault.status < 0:
                    self.store.over.wait()
                self.close_connection = True
                return
            status, body, headers = fault.status, _error("Injected", "a fault on request"), {}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        key, _, body, fault = self._begin()
        asked = self.headers.get("If-None-Match") == "*" or self.headers.get("x-goog-if-generation-match") == "0"
        conditional = asked and self.store.honours_conditions

        def put() -> tuple[int, bytes, dict[str, str]]:
            if asked and self.store.refuses_conditions:
                return 501, _error("NotImplemented", "conditions"), {}
            with self.store.mutex:
                if conditional and key in self.store.objects:
                    return 412, _error("PreconditionFailed", "exists"), {}
                self.store.objects[key] = (body, time.time())
            return 200, b"", {"ETag": f'"{md5(body).hexdigest()}"'}

        self._answer(fault, put)

    def do_GET(self) -> None:
        key, query, _, fault = self._begin()
        if "list-type" in query:
            self._answer(fault, lambda: self._list(key.rstrip("/"), query))
        else:
            self._answer(fault, lambda: self._get(key))

    do_HEAD = do_GET

    def _get(self, key: str) -> tuple[int, bytes, dict[str, str]]:
        with self.store.mutex:
            found = self.store.objects.get(key)
        if found is None:
            return 404, _error("NoSuchKey", "not here"), {}
        data, modified = found
        headers = {"Last-Modified": formatdate(modified, usegmt=True), "ETag": f'"{md5(data).hexdigest()}"'}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted is None:
            return 200, data, headers
        start = int(wanted[1])
        stop = min(int(wanted[2]) + 1 if wanted[2] else len(data), len(data))
        if start >= len(data):
            return 416, _error("InvalidRange", "past its end"), {}
        return 206, data[start:stop], {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}

    def _list(self, bucket: str, query: dict[str, list[str]]) -> tuple[int, bytes, dict[str, str]]:
        prefix = f"{bucket}/{query.get('prefix', [''])[0]}"
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        with self.store.mutex:
            keys = sorted(
                (key for key in self.store.objects if key.startswith(prefix) and key > f"{bucket}/{after}"),
                key=str.encode,
            )
            page = [(key, *self.store.objects[key]) for key in keys[:PAGE]]
        text = _encoded if "encoding-type" in query else escape
        items = "".join(
            f"<Contents><Key>{text(key.removeprefix(f'{bucket}/'))}</Key><Size>{len(data)}</Size><ETag>&quot;x&quot;</ETag>"
            f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(modified))}.{int(modified % 1 * 1000):03}Z"
            "</LastModified></Contents>"
            for key, data, modified in page
        )
        truncated = len(keys) > PAGE
        token = (
            f"<NextContinuationToken>{text(page[-1][0].removeprefix(f'{bucket}/'))}</NextContinuationToken>"
            if truncated
            else ""
        )
        kind = "<EncodingType>url</EncodingType>" if "encoding-type" in query else ""
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>{kind}'
            f"<IsTruncated>{str(truncated).lower()}</IsTruncated>{token}{items}</ListBucketResult>"
        )
        return 200, body.encode(), {"Content-Type": "application/xml"}

    def do_DELETE(self) -> None:
        key, _, _, fault = self._begin()

        def delete() -> tuple[int, bytes, dict[str, str]]:
            with self.store.mutex:
                return (404, b"", {}) if self.store.objects.pop(key, None) is None else (204, b"", {})

        self._answer(fault, delete)

    def do_POST(self) -> None:
        bucket, _, body, fault = self._begin()

        def delete() -> tuple[int, bytes, dict[str, str]]:
            keys = re.findall(r"<Key>(.*?)</Key>", body.decode(), re.DOTALL)
            with self.store.mutex:
                for key in keys:
                    self.store.objects.pop(f"{bucket.rstrip('/')}/{_plain(key)}", None)
            quiet = b"<Quiet>true</Quiet>" in body
            deleted = "" if quiet else "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            return 200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), {"Content-Type": "application/xml"}

        self._answer(fault, delete)


def _error(code: str, message: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>".encode()


def _encoded(key: str) -> str:
    """A key as a listing with url encoding shows it."""
    return quote(key, safe="/")


def _plain(text: str) -> str:
    return unescape(text, {"&quot;": '"', "&apos;": "'", "&#10;": "\n", "&#xA;": "\n"})
