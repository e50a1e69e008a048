"""Parsing server-sent events that arrive in chunks. This is the parser of the WHATWG specification, as far as this
protocol needs it. The one difference: text that is not UTF-8 is an error, where a browser shows a replacement
character."""

from __future__ import annotations

import codecs
from typing import NamedTuple


class Event(NamedTuple):
    kind: str
    data: str


class EventParser:
    """Takes text in chunks of any size, and returns whole events. It never returns an unfinished event."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._line: list[str] = []
        self._after_return = False
        self._kind = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """:raises UnicodeDecodeError: the chunk is not UTF-8."""
        text = self._decoder.decode(chunk)
        if self._after_return and text:
            # The second half of a CRLF whose first half ended the chunk before.
            text = text.removeprefix("\n")
            self._after_return = False
        self._after_return = text.endswith("\r") or (self._after_return and not text)
        *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        events = []
        for line in lines:
            whole = "".join((*self._line, line))
            self._line.clear()
            if (event := self._take(whole)) is not None:
                events.append(event)
        if rest:
            self._line.append(rest)
        return events

    def _take(self, line: str) -> Event | None:
        if not line:
            event = Event(self._kind or "message", "\n".join(self._data)) if self._data else None
            self._kind, self._data = "", []
            return event
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._kind = value
        return None
