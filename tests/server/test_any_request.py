"""The server answers any request as the protocol says, and never with a fault of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opslog.server import Options, app
from tests.support.asgi import Caller

ZERO = f"{0:016}_{0:016}"
paths = st.sampled_from(["a", "b", "a/b", "%41", "__ds/x", "__registry__", "a//b", "%00", "ä", "x" * 600, "..%2f"])
offsets = st.sampled_from(["-1", "now", ZERO, f"{0:016}_{3:016}", f"{7:016}_{3:016}", "", "x", "0_0", ZERO + "\u0660"])
numbers = st.sampled_from(["0", "1", "2", "-1", "01", "1.5", "9007199254740991", "9" * 5000, "", "x", "1e3"])
types = st.sampled_from(
    ["application/json", "text/plain", "TEXT/plain; charset=x", "application/x", "", "nonsense", ";"]
)
times = st.sampled_from(["2099-01-01T00:00:00Z", "2001-01-01T00:00:00Z", "9999-99-99T00:00:00Z", ""])
sources = st.sampled_from(["/v1/stream/a", "/v1/stream/b", "/a", "", "/v1/stream/", "/v1/stream/%00"])
headers = st.fixed_dictionaries(
    {},
    optional={
        "content-type": types,
        "stream-ttl": numbers,
        "stream-expires-at": st.sampled_from(
            ["2099-01-01T00:00:00Z", "2001-01-01T00:00:00Z", "9999-99-99T00:00:00Z", ""]
        ),
        "stream-closed": st.sampled_from(["true", "TRUE", "false", ""]),
        "stream-seq": st.sampled_from(["", "1", "2", "b", "\x7f"]),
        "producer-id": st.sampled_from(["", "p", "q", "p" * 3000]),
        "producer-epoch": numbers,
        "producer-seq": numbers,
        "stream-forked-from": st.sampled_from(
            ["/v1/stream/a", "/v1/stream/b", "/a", "", "/v1/stream/", "/v1/stream/%00"]
        ),
        "stream-fork-offset": offsets.filter(str.isascii),
        "stream-fork-sub-offset": numbers,
        "if-none-match": st.sampled_from(["*", '"x"', "W/", '"', ","]),
        "accept-encoding": st.sampled_from(["gzip", "deflate;q=0", "*;q=x", ";", "gzip;q="]),
    },
)
params = st.fixed_dictionaries(
    {},
    optional={
        "offset": offsets,
        "live": st.sampled_from(["long-poll", "sse", "", "x"]),
        "cursor": st.sampled_from(["", "0", "99999999999", "9" * 40, "x", "-1"]),
        "other": st.just("1"),
    },
)
bodies = st.sampled_from([b"", b"[]", b"[1,2]", b'{"a":1.0}', b"x", b"\xff", b"[[", b"x" * 2000])
requests = st.tuples(st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE"]), paths, headers, params, bodies)
ANSWERS = {200, 201, 204, 304, 400, 403, 404, 405, 409, 410}


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    options = Options(long_poll_seconds=0.001, sse_seconds=0.001, registry=True)
    opened = Caller(app(options=options))
    yield opened
    opened.close()


@settings(max_examples=80, deadline=None)
@given(asked=st.lists(requests, min_size=1, max_size=8))
def test_any_requests(caller: Caller, asked: list[tuple[str, str, dict[str, str], dict[str, str], bytes]]) -> None:
    for method, path, given_headers, given_params, body in asked:
        answer = caller.request(method, path, headers=given_headers, params=given_params, content=body)
        assert answer.status_code in ANSWERS, (answer.status_code, answer.text)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
        if method == "HEAD" or answer.status_code in {204, 304}:
            assert answer.content == b""
        if answer.status_code in {400, 403, 404, 405, 409, 410} and method != "HEAD":
            assert answer.text.strip(), "a refusal says why"
        if method == "GET" and answer.status_code == 200 and answer.headers["content-type"] == "application/json":
            assert isinstance(answer.json(), list)
