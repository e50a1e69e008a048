"""Requests and responses as values, and the making of requests. Section numbers are those of the protocol's
specification. `opslog.server.client.answers` has the meaning of responses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote, urlencode, urlsplit

from opslog.errors import UsageError
from opslog.server.client import errors

# The offset before the first byte (section 8).
START = "-1"

# The offset of the end of the stream when the server gets the request (section 8).
NOW = "now"

JSON = "application/json"

# The content of an append: bytes, or for a JSON stream any value that `json.dumps` takes.
Content = Any


class Request(NamedTuple):
    method: str
    url: str
    headers: dict[str, str] = {}  # noqa: RUF012  (nobody changes it)
    content: bytes = b""


class Reply(NamedTuple):
    """:ivar headers: the values by lower-case name."""

    status: int
    headers: Mapping[str, str]
    content: bytes = b""


class Metadata(NamedTuple):
    """A stream's metadata (section 5.5).

    :ivar next_offset: the end of the stream, where the next append begins.
    :ivar ttl: seconds without use after which the server deletes it.
    :ivar expires_at: the time at which the server deletes it, in RFC 3339.
    """

    content_type: str
    next_offset: str
    closed: bool
    ttl: int | None
    expires_at: str | None


class Appended(NamedTuple):
    """:ivar next_offset: the end of the stream after the append.
    :ivar closed: nothing can be appended any more.
    """

    next_offset: str
    closed: bool


class UnreadableMessages(ValueError):
    """Valid JSON that this Python cannot represent: numbers with thousands of digits, or arrays nested a thousand
    deep."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The contents of one response or event of a stream.

    :ivar data: the bytes; for a JSON stream the text of an array. Empty if there was nothing new.
    :ivar next_offset: where the next batch begins. A reader remembers it once it is done with this batch.
    :ivar up_to_date: there was no more data when the response was made.
    :ivar closed: there will never be more data.
    """

    data: bytes
    content_type: str
    next_offset: str
    up_to_date: bool
    closed: bool
    _url: str = field(default="", repr=False, compare=False)
    _messages: list[Any] | UnreadableMessages | None = field(default=None, repr=False, compare=False)

    @property
    def messages(self) -> list[Any]:
        """The values in a batch of a JSON stream, decoded when it arrived.

        :raises UsageError: the stream has another content type.
        :raises ProtocolError: Python cannot represent one of them; `data` has them all.
        """
        if media_type(self.content_type) != JSON:
            raise UsageError(f"a stream of {self.content_type} has no messages, only bytes: use .data")
        if isinstance(self._messages, UnreadableMessages):
            what = f"the messages of {self._url} before {self.next_offset} cannot be decoded: {self._messages}"
            raise errors.ProtocolError(f"{what}; .data has their bytes", url=self._url)
        return self._messages or []


def decoded(data: bytes) -> Any:
    """The value of JSON text in UTF-8. Integers of any size stay exact.

    :raises UnreadableMessages: Python cannot represent the value.
    :raises ValueError: it is not JSON.
    """
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise UnreadableMessages("they are nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError, _NoConstant):
        raise
    except ValueError as error:  # int() takes at most some thousand digits: its time grows with their square
        raise UnreadableMessages(str(error)) from None


class _NoConstant(ValueError):
    pass


def _refuse_constant(text: str) -> NoReturn:
    raise _NoConstant(f"{text} is a number in JavaScript, but not in JSON")


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def stream_url(base: str, path: object) -> str:
    """The address of the stream at `path`, whose segments may have any characters.

    :raises UsageError: a segment is empty, ``.`` or ``..``, which proxies would resolve to other streams.
    """
    if not isinstance(path, str) or any(segment in {"", ".", ".."} for segment in path.split("/")):
        raise UsageError(f"{path!r} is not the path of a stream: write it as names/separated/by/slashes")
    try:
        return f"{base}/{quote(path, safe='/')}"
    except UnicodeEncodeError:
        raise UsageError(f"{path!r} is not the path of a stream: it has half of a character in it") from None


def encoded(content: Content, *, is_json: bool) -> bytes:
    """The body that appends one message.

    :raises UsageError: the content is bytes and the stream is JSON, or it is not bytes and the stream is not JSON.
    """
    if is_json:
        # Put it into an array: the server takes an array as a list of messages (section 9.1.2).
        return encoded_many([content])
    if not isinstance(content, bytes | bytearray | memoryview):
        raise UsageError(f"a stream that is not {JSON} takes bytes, not {type(content).__name__}: encode it first")
    return bytes(content)


def encoded_many(messages: Iterable[Content]) -> bytes:
    try:
        return json.dumps(list(messages), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"that cannot be written as JSON: {error}") from error


def create(
    url: str,
    *,
    content_type: str | None,
    content: bytes = b"",
    ttl: int | None = None,
    expires_at: str | None = None,
    closed: bool = False,
    fork: Mapping[str, str] | None = None,
) -> Request:
    """The request that creates a stream (section 5.1)."""
    headers = {
        "Content-Type": content_type,
        "Stream-TTL": None if ttl is None else str(ttl),
        "Stream-Expires-At": expires_at,
        "Stream-Closed": "true" if closed else None,
        **(fork or {}),
    }
    return Request("PUT", url, {name: value for name, value in headers.items() if value is not None}, content)


def fork_headers(source_url: str, at: str | None, sub_offset: int) -> dict[str, str]:
    """The headers that create a stream as a fork (section 4.2)."""
    headers = {"Stream-Forked-From": urlsplit(source_url).path}
    if at is not None:
        headers["Stream-Fork-Offset"] = at
    if sub_offset:
        headers["Stream-Fork-Sub-Offset"] = str(sub_offset)
    return headers


def append(url: str, content_type: str, content: bytes, *, seq: str | None = None, close: bool = False) -> Request:
    """The request that appends content (section 5.2), or without content closes the stream (section 5.3)."""
    headers = {"Content-Type": content_type} if content else {}
    if seq is not None:
        headers["Stream-Seq"] = seq
    if close:
        headers["Stream-Closed"] = "true"
    return Request("POST", url, headers, content)


def read(url: str, offset: str, *, live: str | None = None, cursor: str | None = None) -> Request:
    """The request that reads (sections 5.6 to 5.8). Its parameters are in alphabetical order, so that caches see one
    address (section 10.1)."""
    parameters = {"cursor": cursor, "live": live, "offset": offset}
    return Request("GET", f"{url}?{urlencode({name: value for name, value in parameters.items() if value})}")
