"""Sending responses, with the headers that all of them have."""

from __future__ import annotations

from opslog.doors.access import Send
from opslog.server.protocol.refusals import Headers, Refused

_EXPOSED = (
    b"Stream-Next-Offset, Stream-Cursor, Stream-Up-To-Date, Stream-Closed, Stream-TTL, Stream-Expires-At, "
    b"Stream-Earliest-Offset, Stream-SSE-Data-Encoding, Producer-Epoch, Producer-Seq, Producer-Expected-Seq, "
    b"Producer-Received-Seq, ETag, Opslog-Author, Opslog-Ts, Idempotency-Until, "
    b"Idempotency-Replayed, Location, Retry-After, Content-Encoding, Vary, X-Request-Id"
)
# On every response: browsers must not guess the type of a stream, and pages of any origin may read it. Only `begin` and
# `refusal` add them, because a browser ignores an ``Access-Control-Allow-Origin`` that comes twice.
_COMMON: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"cross-origin"),
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", _EXPOSED),
]

# A stream has the type that its writer chose, and the origin of the page and of the stores. This policy keeps a browser
# that opens a stream from running its scripts, and gives the stream no origin.
CONTENT_POLICY = b"default-src 'none'; sandbox"
_POLICY_NAME = b"content-security-policy"

METHODS = b"GET, HEAD, POST, PUT, DELETE, OPTIONS"
_PREFLIGHT: Headers = [
    (
        b"access-control-allow-headers",
        b"Content-Type, Authorization, If-Match, If-None-Match, Idempotency-Key, Opslog-Agent, "
        b"X-Request-Id, Traceparent, "
        b"Stream-Seq, Stream-TTL, Stream-Expires-At, Stream-Closed, "
        b"Producer-Id, Producer-Epoch, Producer-Seq, "
        b"Stream-Forked-From, Stream-Fork-Offset, Stream-Fork-Sub-Offset",
    ),
    (b"access-control-max-age", b"86400"),
]
PREFLIGHT: Headers = [(b"access-control-allow-methods", METHODS), *_PREFLIGHT]
# Stores have one more method.
STORE_PREFLIGHT: Headers = [(b"access-control-allow-methods", b"%b, PATCH" % METHODS), *_PREFLIGHT]
NO_STORE = (b"cache-control", b"no-store")
TEXT = (b"content-type", b"text/plain; charset=utf-8")


async def begin(send: Send, status: int, headers: Headers, policy: bytes = CONTENT_POLICY) -> None:
    """Send the head of a response: the headers of all responses, and `headers`.

    :param policy: the Content-Security-Policy, for browsers that open the response as a page.
    """
    all_headers = [*_COMMON, (_POLICY_NAME, policy), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})


async def reply(
    send: Send, status: int, headers: Headers, body: bytes = b"", *, head: bool = False, policy: bytes = CONTENT_POLICY
) -> int:
    """Send a whole response, and return its status. `headers` come in addition to the headers of all responses.

    :param head: leave out the body, but send its length.
    :param policy: see `begin`.
    """
    length = [] if status in {204, 304} else [(b"content-length", b"%d" % len(body))]
    await begin(send, status, [*headers, *length], policy)
    await send({"type": "http.response.body", "body": b"" if head else body})
    return status


def refusal(refused: Refused) -> tuple[int, Headers, bytes]:
    """The status, all headers and the body of the response."""
    body = str(refused).encode() + b"\n"
    headers = [
        *_COMMON,
        (_POLICY_NAME, CONTENT_POLICY),
        TEXT,
        NO_STORE,
        *refused.headers,
        (b"content-length", b"%d" % len(body)),
    ]
    return refused.status, headers, body


async def refuse(send: Send, refused: Refused, *, head: bool = False) -> int:
    status, headers, body = refusal(refused)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else body})
    return status
