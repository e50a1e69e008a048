"""Reading a stream from an offset to its end: which request comes next, and what the chunks of a response mean.

`Following` knows no network. Its driver takes the `request`, passes it the response's head (`opened`), each chunk of
the body (`received`), and how the response ended (`finished`, or `lost`), and passes on the batches that these return.
The read is done when `ended` is true. Between two requests the driver waits for `pause` seconds.

Each batch is returned together with the offset after it. So a reader that remembers the offset of the last batch and
resumes there sees every byte exactly once, however often the connection breaks.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from opslog.server.client import answers, arguments
from opslog.server.client.answers import refuse, senseless
from opslog.server.client.events import Event, EventParser
from opslog.server.client.messages import JSON, NOW, START, Batch, Reply, Request, UnreadableMessages, media_type, read
from opslog.server.client.retrying import OVERLOADED, Lost, Retrying, asked_pause, give_up, give_up_reading

Live = Literal["sse", "long-poll"]


# A live read that ends sooner than this, without data, has not waited for data.
_FRUITLESS_SECONDS = 0.05

# So many of such reads in a row are normal.
_FRUITLESS_FREE = 3


class Following:
    """:param live: how to wait for more once everything was read; None: do not wait, but end. "auto" means server-sent
        events, except for text, because they do not preserve its line ends.
    :ivar offset: the end of the batches returned so far.
    :ivar pause: seconds to wait before the next request.
    """

    def __init__(self, url: str, offset: str, live: Live | Literal["auto"] | None, policy: Retrying) -> None:
        self.offset = arguments.offset("offset", offset)
        self.ended = False
        self.pause = 0.0
        self._url = url
        self._wanted = live
        self._live: Live | None = None
        self._cursor: str | None = None
        self._content_type = ""
        self._policy = policy
        self._tries = policy.tries()
        self._request = read(url, offset)
        self._reply = Reply(0, {})
        self._body = bytearray()
        self._parser: EventParser | None = None
        self._pending: list[bytes] = []
        self._asked_at = 0.0
        self._brought = False
        self._fruitless = 0

    @property
    def is_live(self) -> bool:
        """Whether the current request waits for new data."""
        return self._live is not None

    def request(self) -> Request | None:
        """The next request; None: the read is done."""
        if self.ended:
            return None
        self._request = read(self._url, self.offset, live=self._live, cursor=self._cursor if self._live else None)
        self._body.clear()
        self._pending.clear()
        self._parser = None
        self.pause = 0.0
        self._asked_at = self._policy.environment.monotonic()
        self._brought = False
        return self._request

    def opened(self, status: int, headers: Mapping[str, str]) -> None:
        self._reply = Reply(status, headers)
        if status == 200 and self._live == "sse":
            found = headers.get("content-type", "")
            if media_type(found) != "text/event-stream":
                senseless(self._request, status, f"with {found!r} instead of events", _LONG_POLL)
            encoding = headers.get("stream-sse-data-encoding", "").lower()
            if encoding != ("" if self._is_text else "base64"):
                senseless(self._request, status, f"with events of {self._content_type} in {encoding!r}", _LONG_POLL)
            self._parser = EventParser()

    def received(self, chunk: bytes) -> Iterator[Batch]:
        if self._parser is None:
            self._body += chunk
            return
        try:
            events = self._parser.feed(chunk)
        except UnicodeDecodeError as error:
            senseless(self._request, 200, f"with events that are not UTF-8 ({error.reason})", _LONG_POLL)
        for event in events:
            batch = self._event(event)
            if batch is not None:
                yield batch
            if self.ended:
                return

    def finished(self) -> Iterator[Batch]:
        """The response ended normally."""
        reply = self._reply._replace(content=bytes(self._body))
        if self._parser is not None:
            self._rest()  # servers end event streams every minute or so; the next request continues the read
            return
        if reply.status in OVERLOADED or reply.status >= 500 or reply.status == 408:
            self._try_again(reply, "")
        elif reply.status == 200 or (reply.status == 204 and self._live == "long-poll"):
            yield from self._answer(reply)
            self._rest()
        else:
            refuse(self._request, reply)

    def lost(self, lost: Lost) -> None:
        """Called when there was no connection, or it broke.

        :raises UnavailableError: no data came for as long as the retry policy allows.
        :raises ProtocolError: a response came that cannot be read.
        """
        if lost.answered:
            give_up_reading(self._request, lost)
        self._try_again(None, str(lost))

    def _rest(self) -> None:
        """Send requests less often if responses come at once and without data. This happens with a cache that keeps too
        much, or a proxy that ends event streams."""
        if self.ended:
            return
        if self._brought or self._policy.environment.monotonic() - self._asked_at >= _FRUITLESS_SECONDS:
            self._fruitless = 0
            return
        self._fruitless += 1
        if self._fruitless > _FRUITLESS_FREE:
            doublings = min(self._fruitless - _FRUITLESS_FREE - 1, 60)
            self.pause = min(self._policy.longest, self._policy.first * 2**doublings)

    def _try_again(self, reply: Reply | None, reason: str) -> None:
        pause = self._tries.again(asked_pause(reply, self._policy.environment))
        if pause is None:
            give_up(self._request, reply, reason, uncertain=reply is None or reply.status not in OVERLOADED)
        else:
            self.pause = pause.seconds

    def _answer(self, reply: Reply) -> Iterator[Batch]:
        request = self._request
        if reply.status == 200:
            self._learn_content_type(answers.content_type(request, reply))
        offset = answers.next_offset(request, reply)
        closed = answers.is_closed(reply)
        up_to_date = closed or answers.is_up_to_date(reply)
        cursor = answers.checked_cursor(request, reply.status, reply.headers.get("stream-cursor"))
        data, messages = reply.content, None
        # Without new messages, some servers send no brackets either.
        if self._is_json and (data or offset != self.offset) and reply.status == 200:
            messages = answers.messages(request, reply.status, data)
            data = data if messages else b""
        new = bool(data or closed or (up_to_date and self._live is None))
        if not (new or up_to_date or offset != self.offset):
            senseless(request, reply.status, "with nothing, and not that there is no more")
        self._advance(offset, data)
        self._cursor = cursor or self._cursor
        self.ended = closed or (up_to_date and self._wanted is None)
        if up_to_date and self._wanted is not None:
            self._live = self._chosen()
        if new:
            yield self._batch(data, messages, up_to_date, closed)

    def _learn_content_type(self, found: str) -> None:
        if not self._content_type:
            self._content_type = found
        elif media_type(found) != media_type(self._content_type):
            advice = "another stream was made at this address; read it from the start"
            senseless(self._request, 200, f"with {found!r} after {self._content_type!r}", advice)

    def _advance(self, offset: str, data: bytes) -> None:
        """:raises ProtocolError: the next offset would be the one before."""
        if self.offset not in {START, NOW}:
            if offset < self.offset:
                advice = "another stream was made at this address; read it from the start"
                senseless(self._request, self._reply.status, f"with an end at {offset}, before this offset", advice)
            if data and offset == self.offset:
                senseless(self._request, self._reply.status, "with data, and the same offset behind it")
        self._brought = self._brought or offset != self.offset
        self.offset = offset
        self._tries = self._policy.tries()

    def _batch(
        self, data: bytes, messages: list[Any] | UnreadableMessages | None, up_to_date: bool, closed: bool
    ) -> Batch:
        return Batch(data, self._content_type, self.offset, up_to_date, closed, self._url, messages)

    @property
    def _is_json(self) -> bool:
        return media_type(self._content_type) == JSON

    @property
    def _is_text(self) -> bool:
        return self._is_json or media_type(self._content_type).startswith("text/")

    def _chosen(self) -> Live:
        if self._wanted != "auto":
            assert self._wanted is not None
            return self._wanted
        return "long-poll" if self._is_text and not self._is_json else "sse"

    def _event(self, event: Event) -> Batch | None:
        if event.kind == "data":
            self._pending.append(self._payload(event.data))
            return None
        if event.kind != "control":
            return None
        control = answers.control(self._request, event.data)
        # A server may send several data events before it sends their end offset.
        data, messages = self._gathered()
        self._advance(control["streamNextOffset"], data)
        self._cursor = control.get("streamCursor") or self._cursor
        self.ended = control.get("streamClosed", False)
        if not (data or self.ended):
            return None
        return self._batch(data, messages, self.ended or control.get("upToDate", False), self.ended)

    def _gathered(self) -> tuple[bytes, list[Any] | UnreadableMessages | None]:
        pending, self._pending = self._pending, []
        if not self._is_json:
            return b"".join(pending), None
        messages: list[Any] = []
        for array in pending:
            found = answers.messages(self._request, 200, array)
            if isinstance(found, UnreadableMessages):
                return _joined(pending), found
            messages += found
        return (_joined(pending), messages) if messages else (b"", None)

    def _payload(self, text: str) -> bytes:
        if self._is_text:
            return text.encode()
        try:
            return base64.b64decode(text.replace("\n", ""), validate=True)
        except ValueError as error:
            senseless(self._request, 200, f"with a data event that is not base64 ({error})", _LONG_POLL)


_LONG_POLL = "use live='long-poll'"


def _joined(arrays: list[bytes]) -> bytes:
    """One JSON array with the elements of several, made without decoding them."""
    if len(arrays) == 1:
        return arrays[0]
    inner = [array.strip()[1:-1].strip() for array in arrays]
    return b"[" + b",".join(part for part in inner if part) + b"]" if inner else b""
