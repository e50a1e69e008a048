"""What a stream can be asked, as steps without I/O: the one core of the clients for threads and for asyncio."""

from __future__ import annotations

from opslog.errors import UsageError
from opslog.server.client import answers, arguments, messages
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
)
from opslog.server.client.retrying import Retrying, Steps, call

_NOTHING = "there is nothing to append; to close the stream, call close()"


class Calls:
    """The calls on one stream.

    :ivar content_type: of the stream, "" until an answer or the caller said it.
    """

    def __init__(self, url: str, policy: Retrying, content_type: str = "") -> None:
        self.url = url
        self.policy = policy
        self.content_type = content_type

    def create(
        self,
        content_type: str,
        content: Content | None,
        ttl: int | None,
        expires_at: str | None,
        *,
        closed: bool,
    ) -> Steps[Metadata]:
        arguments.content_type(content_type)
        arguments.lifetime(ttl, expires_at)
        body = b"" if content is None else encoded(content, is_json=media_type(content_type) == JSON)
        request = messages.create(
            self.url, content_type=content_type, content=body, ttl=ttl, expires_at=expires_at, closed=closed
        )
        created = yield from call(request, answers.metadata, self.policy, repeatable=True)
        self.content_type = created.content_type or content_type
        return created

    def fork(
        self, source: str, at: str | None, sub_offset: int, ttl: int | None, expires_at: str | None
    ) -> Steps[Metadata]:
        """Make this stream as a fork of the one at the URL `source`. Repeatable only if it says where, because the end
        of the source moves."""
        if at is not None:
            arguments.offset("at", at)
        arguments.whole_number("sub_offset", sub_offset, 0)
        arguments.lifetime(ttl, expires_at)
        headers = messages.fork_headers(source, at, sub_offset)
        request = messages.create(self.url, content_type=None, ttl=ttl, expires_at=expires_at, fork=headers)
        made = yield from call(request, answers.metadata, self.policy, repeatable=at is not None)
        self.content_type = made.content_type
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

    def append(self, contents: list[Content], seq: str | None, *, close: bool, at_least_once: bool) -> Steps[Appended]:
        """Not repeatable, unless it may be there twice: nothing in it tells the server that it has it already."""
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
        request = messages.append(self.url, content_type, body, seq=seq, close=close)
        return (yield from call(request, answers.appended, self.policy, repeatable=at_least_once))

    def close(self) -> Steps[Appended]:
        request = messages.append(self.url, "", b"", close=True)
        return (yield from call(request, answers.appended, self.policy, repeatable=True))

    def delete(self) -> Steps[None]:
        def gone(reply: Reply) -> bool:
            return reply.status in {404, 410}

        request = Request("DELETE", self.url)
        return (yield from call(request, answers.deleted, self.policy, repeatable=True, done_anyway=gone))
