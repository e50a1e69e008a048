"""Refusals of a client's request, with the status and the headers of the response."""

from __future__ import annotations

from opslog.errors import OpslogError
from opslog.server.protocol.model import Stream
from opslog.server.protocol.offsets import format_offset

# Of a response; the names in lower case, as ASGI requires.
Headers = list[tuple[bytes, bytes]]


class Refused(OpslogError):
    """The request cannot be carried out; nothing was changed.

    :ivar status: of the response; its text is the message.
    :ivar headers: of the response, beside the usual ones.
    """

    def __init__(self, status: int, message: str, headers: Headers | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or []


def not_found() -> Refused:
    return Refused(404, "there is no such stream")


def gone() -> Refused:
    return Refused(410, "the stream was deleted; its data stays only for the streams that were forked from it")


def closed(stream: Stream) -> Refused:
    """The stream is closed. The response has its end, so that clients need not parse the text."""
    headers = [(b"stream-closed", b"true"), (b"stream-next-offset", format_offset(stream.tail).encode())]
    return Refused(409, "the stream is closed", headers)
