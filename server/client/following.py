"""Reading a stream, from an offset to its end: which request comes next, and what the pieces of its answer mean.

`Following` knows no network. Its driver asks for the `request`, tells it the answer's head (`opened`), each piece of
the body (`received`), and how the answer ended (`finished`, or `lost`), and passes on the batches that these give. It
is through when `ended` is true. Between two requests the driver waits for `pause` seconds.

A batch is given only together with the offset behind it, so whoever remembers the offset of the last batch and resumes
there sees every byte exactly once, however often the connection breaks.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any, Literal

from opslog.server.client.errors import ProtocolError, StreamError
from opslog.server.client.events import Event, EventParser
from opslog.server.client.messages import JSON, Batch, Reply, Request, is_closed, media_type, next_offset, read, refuse
from opslog.server.client.retrying import OVERLOADED, Retrying, asked_pause, give_up

Live = Literal["sse", "long-poll"]


class Following:
    """:param live: how to wait for more once everything there is was read; None: do not wait, end there.
    "auto" takes server-sent events, except for text, whose line ends do not survive them.
    :ivar offset: up to where batches were given. :ivar pause: seconds to wait before the next request.
    """

    def __init__(self, url: str, offset: str, live: Live | Literal["auto"] | None, policy: Retrying) -> None:
        self.offset = offset
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

    def request(self) -> Request | None:
        """What to ask next; None: this is through."""
        if self.ended:
            return None
        self._request = read(self._url, self.offset, live=self._live, cursor=self._cursor if self._live else None)
        self._body.clear()
        self._pending.clear()
        self._parser = None
        self.pause = 0.0
        return self._request

    def opened(self, status: int, headers: dict[str, str]) -> None:
        self._reply = Reply(status, headers)
        if status == 200 and self._live == "sse":
            if media_type(headers.get("content-type", "")) != "text/event-stream":
                raise ProtocolError(
                    f"GET {self._request.url} was not answered with events: use live='long-poll'",
                    status=status,
                    url=self._request.url,
                )
            self._parser = EventParser()

    def received(self, piece: bytes) -> Iterator[Batch]:
        if self._parser is None:
            self._body += piece
            return
        for event in self._parser.feed(piece):
            batch = self._event(event)
            if batch is not None:
                yield batch
            if self.ended:
                return

    def finished(self) -> Iterator[Batch]:
        """The answer ended as it should."""
        reply = self._reply._replace(content=bytes(self._body))
        if self._parser is not None:
            return  # servers end event streams every minute or so; the next request goes on
        if reply.status in OVERLOADED or reply.status >= 500 or reply.status == 408:
            self._try_again(reply, "")
        elif reply.status in {200, 204}:
            yield from self._answer(reply)
        else:
            refuse(self._request, reply)

    def lost(self, reason: str) -> None:
        """The connection could not be made, or broke.

        :raises UnavailableError: for as long as the policy allows nothing came.
        """
        self._try_again(None, reason)

    def _try_again(self, reply: Reply | None, reason: str) -> None:
        pause = self._tries.again(asked_pause(reply) if reply else 0.0)
        if pause is None:
            give_up(self._request, reply, reason, uncertain=reply is None or reply.status not in OVERLOADED)
        else:
            self.pause = pause.seconds

    def _answer(self, reply: Reply) -> Iterator[Batch]:
        self._tries = self._policy.tries()
        if self._live is None:
            self._content_type = reply.headers.get("content-type", "")
        closed = is_closed(reply)
        up_to_date = closed or reply.headers.get("stream-up-to-date", "").lower() == "true"
        self._cursor = reply.headers.get("stream-cursor", self._cursor)
        data = b"" if reply.content == b"[]" and self._is_json else reply.content
        new = data or closed or (up_to_date and self._live is None)
        offset = next_offset(self._request, reply)
        if not (new or offset != self.offset):
            self._guard_standstill(up_to_date)
        self.offset = offset
        self.ended = closed or (up_to_date and self._wanted is None)
        if up_to_date and self._wanted is not None:
            self._live = self._chosen()
        if new:
            yield Batch(data, self._content_type, offset, up_to_date, closed)

    def _guard_standstill(self, up_to_date: bool) -> None:
        if not up_to_date:
            raise ProtocolError(
                f"GET {self._request.url} brought nothing, and does not say that there is no more",
                status=self._reply.status,
                url=self._request.url,
            )

    @property
    def _is_json(self) -> bool:
        return media_type(self._content_type) == JSON

    def _chosen(self) -> Live:
        if self._wanted != "auto":
            assert self._wanted is not None
            return self._wanted
        return "long-poll" if media_type(self._content_type).startswith("text/") else "sse"

    def _event(self, event: Event) -> Batch | None:
        if event.kind == "data":
            self._pending.append(self._payload(event.data))
            return None
        if event.kind != "control":
            return None
        control = self._control(event.data)
        self._tries = self._policy.tries()
        self.offset = control["streamNextOffset"]
        self._cursor = control.get("streamCursor", self._cursor)
        self.ended = control.get("streamClosed") is True
        # A server may send several data events before it says how far they reach.
        data = _joined(self._pending) if self._is_json else b"".join(self._pending)
        self._pending.clear()
        if not (data or self.ended):
            return None
        up_to_date = self.ended or control.get("upToDate") is True
        return Batch(data, self._content_type, self.offset, up_to_date, self.ended)

    def _control(self, text: str) -> dict[str, Any]:
        try:
            control = json.loads(text)
            if isinstance(control, dict) and isinstance(control.get("streamNextOffset"), str):
                return control
        except ValueError:
            pass
        raise self._senseless(f"a control event that says {text[:200]!r}")

    def _payload(self, text: str) -> bytes:
        if self._reply.headers.get("stream-sse-data-encoding") != "base64":
            return text.encode()
        try:
            return base64.b64decode(text.replace("\n", ""), validate=True)
        except binascii.Error as error:
            raise self._senseless(f"a data event that is not base64 ({error})") from error

    def _senseless(self, what: str) -> StreamError:
        return ProtocolError(f"GET {self._request.url} brought {what}", status=200, url=self._request.url)


def _joined(arrays: list[bytes]) -> bytes:
    """The elements of several JSON arrays in one, without decoding them."""
    if len(arrays) == 1:
        return arrays[0]
    inner = [array.strip()[1:-1].strip() for array in arrays]
    return b"[" + b",".join(part for part in inner if part) + b"]" if inner else b""
