"""The calls on a stream, as steps without I/O. The clients for threads and for asyncio derive their methods from this
one core."""

from __future__ import annotations

from typing import Literal

from opslog.errors import UsageError
from opslog.server.client import answers, arguments, messages
from opslog.server.client.following import Following, Live
from opslog.server.client.messages import (
    JSON,
    Appended,
    Content,
    Metadata,
    Reply,
    Request,
    encoded,
    encoded_many,
    media_type,
    stream_url,
)
from opslog.server.client.retrying import Retrying, Steps, call

_NOTHING = "there is nothing to append; to close the stream, call close()"


class Calls:
    """The calls on one stream.

    :param root: the address of the server's stream root.
    :ivar content_type: the stream's content type; "" until a response or the caller gives it.
    :raises UsageError: the path is invalid.
    """

    def __init__(self, root: str, path: str, policy: Retrying) -> None:
        self.url = stream_url(root, path)
        self.policy = policy
        self._root = root
        self.content_type = ""

    def create(
        self,
        content_type: str = "application/octet-stream",
        content: Content | None = None,
        *,
        ttl: int | None = None,
        expires_at: str | None = None,
        closed: bool = False,
    ) -> Steps[Metadata]:
        """Create the stream, or confirm that it exists with the same configuration.

        :param content: its first bytes; for a JSON stream, its first message.
        :param ttl: the server deletes it after so many seconds without use.
        :param expires_at: the time at which the server deletes it, in RFC 3339.
        :param closed: create it closed: nothing can be appended to it.
        :raises StreamConflictError: it exists with another configuration, or was deleted while forks need it.
        """
        arguments.content_type(content_type)
        arguments.lifetime(ttl, expires_at)
        body = b"" if content is None else encoded(content, is_json=media_type(content_type) == JSON)
        request = messages.create(
            self.url, content_type=content_type, content=body, ttl=ttl, expires_at=expires_at, closed=closed
        )
        created = yield from call(request, answers.metadata, self.policy, repeatable=True)
        self.content_type = created.content_type or content_type
        return created

    def fork(self, path: str, at: str | None, sub_offset: int, ttl: int | None, expires_at: str | None) -> Steps[Calls]:
        """Create a stream at `path` that begins with the contents of this one. The request can be repeated only if `at`
        is given, because the end of this one moves."""
        made = Calls(self._root, path, self.policy)
        if at is not None:
            arguments.offset("at", at)
        arguments.whole_number("sub_offset", sub_offset, 0)
        arguments.lifetime(ttl, expires_at)
        headers = messages.fork_headers(self.url, at, sub_offset)
        request = messages.create(made.url, content_type=None, ttl=ttl, expires_at=expires_at, fork=headers)
        found = yield from call(request, answers.metadata, self.policy, repeatable=at is not None)
        made.content_type = found.content_type
        return made

    def head(self) -> Steps[Metadata]:
        request = Request("HEAD", self.url)
        found = yield from call(request, answers.metadata, self.policy, repeatable=True)
        self.content_type = found.content_type
        return found

    def typed(self) -> Steps[str]:
        """The stream's content type, which appending and producing need."""
        if not self.content_type:
            yield from self.head()
        return self.content_type

    def append(
        self, *contents: Content, seq: str | None = None, close: bool = False, at_least_once: bool = False
    ) -> Steps[Appended]:
        """Append bytes, or messages of a JSON stream, all in one request. Durable on return.

        :param seq: must be greater than that of the append before, byte by byte.
        :param close: also close the stream.
        :param at_least_once: if the response is lost, or the server fails, send the request again. The content may then
            be appended twice; with `seq` the second attempt raises StreamConflictError instead. A `producer` appends
            exactly once.
        :raises OutcomeUnknownError: the response was lost: the content may or may not have been appended.
        """
        if seq is not None:
            arguments.header_value("seq", seq)
        if not contents:
            raise UsageError(_NOTHING)
        content_type = yield from self.typed()
        if media_type(content_type) == JSON:
            body = encoded_many(contents)
        else:
            body = b"".join(encoded(content, is_json=False) for content in contents)
        if not body:
            raise UsageError(_NOTHING)
        # Only the requests of a producer show the server that they are repeated.
        request = messages.append(self.url, content_type, body, seq=seq, close=close)
        return (yield from call(request, answers.appended, self.policy, repeatable=at_least_once))

    def close(self) -> Steps[Appended]:
        """Close the stream, so that nothing can be appended any more. Closing it twice has the same effect as once."""
        request = messages.append(self.url, "", b"", close=True)
        return (yield from call(request, answers.appended, self.policy, repeatable=True))

    def delete(self) -> Steps[None]:
        def gone(reply: Reply) -> bool:
            return reply.status in {404, 410}

        request = Request("DELETE", self.url)
        return (yield from call(request, answers.deleted, self.policy, repeatable=True, done_anyway=gone))

    def read(self, offset: str) -> Following:
        return Following(self.url, offset, None, self.policy)

    def follow(self, offset: str, live: Live | Literal["auto"]) -> Following:
        arguments.choice("live", live, ("auto", "sse", "long-poll"))
        return Following(self.url, offset, live, self.policy)
