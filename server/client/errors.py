"""The errors of the client of streams, as one tree. All are subclasses of `OpslogError`.

StreamError                     `status` (None without an answer), `url`, `detail` (what the server wrote)
├── StreamNotFoundError         404: no such stream; create it, or ask for another
├── StreamGoneError             410: deleted while forks need it, or the offset is no longer kept; read from the start
├── StreamConflictError         409: exists with another configuration, other content type, Stream-Seq went back
│   └── StreamClosedError       no more can be appended; `next_offset` is its end
├── ProducerError               stop this producer: another one, or another stream, is in its place
│   ├── ProducerFencedError     403: another one with this id began a newer `epoch`; nothing of the batch was appended
│   └── SequenceGapError        409: the server `expected` an earlier batch, which it had acknowledged
├── SubscriptionError           a subscription refused the request; `code` is the server's word for the reason
│   ├── SubscriptionNotFoundError   404: no such subscription; create it
│   ├── SubscriptionConflictError   409: it exists with another configuration
│   ├── AlreadyClaimedError         409: `holder` has claimed it; wait for the next wake
│   ├── NoPendingWorkError          409: everything is processed; wait for the next wake
│   └── WakeLostError               409, 401: the lease ended, or a newer wake came; stop working on this one
├── WebhookError                a request claims to be a webhook of the server, but is not: refuse it
├── RequestRefusedError         400, 401, 403, 405, 413, …: fix the request
├── UnavailableError            nothing was changed: try again later
├── OutcomeUnknownError         the request may or may not have been carried out: read the stream, then decide
└── ProtocolError               the answer cannot be understood: damaged on the way, or not from a stream server
"""

from __future__ import annotations

from opslog.errors import OpslogError


class StreamError(OpslogError):
    """The root of the errors that a client raises for a response, or for a missing one.

    :ivar status: the status of the response; None: there was no response.
    :ivar url: the address of the request.
    :ivar detail: the text of the response.
    """

    def __init__(self, message: str, *, status: int | None = None, url: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.url = url
        self.detail = detail


class StreamNotFoundError(StreamError, KeyError):
    """No such stream."""


class StreamGoneError(StreamError):
    """The stream was deleted but forks still need it, or the requested data is no longer kept."""


class StreamConflictError(StreamError):
    """The request contradicts the state or the configuration of the stream."""


class StreamClosedError(StreamConflictError):
    """The stream is closed.

    :ivar next_offset: its end, "" if the server did not say.
    """

    def __init__(self, message: str, *, next_offset: str = "", url: str = "", detail: str = "") -> None:
        super().__init__(message, status=409, url=url, detail=detail)
        self.next_offset = next_offset


class ProducerError(StreamError):
    """This producer cannot go on."""


class ProducerFencedError(ProducerError):
    """Another producer with the same id took over.

    :ivar epoch: the epoch that the server knows now. A new producer may start with the next one.
    """

    def __init__(self, message: str, *, epoch: int, status: int = 403, url: str = "", detail: str = "") -> None:
        super().__init__(message, status=status, url=url, detail=detail)
        self.epoch = epoch


class SequenceGapError(ProducerError):
    """The server lacks a batch that it had acknowledged.

    :ivar expected: the number of the batch that the server waits for.
    :ivar received: the number of the batch that it got.
    """

    def __init__(self, message: str, *, expected: int, received: int, url: str = "", detail: str = "") -> None:
        super().__init__(message, status=409, url=url, detail=detail)
        self.expected = expected
        self.received = received


class SubscriptionError(StreamError):
    """A subscription refused a request.

    :ivar code: the server's word for the reason, for programs.
    """

    def __init__(self, message: str, *, code: str, status: int | None = None, url: str = "", detail: str = "") -> None:
        super().__init__(message, status=status, url=url, detail=detail)
        self.code = code


class SubscriptionNotFoundError(SubscriptionError, KeyError):
    """No such subscription."""


class SubscriptionConflictError(SubscriptionError):
    """The subscription exists with another configuration."""


class AlreadyClaimedError(SubscriptionError):
    """Another worker has claimed the work.

    :ivar holder: its name.
    """

    def __init__(
        self, message: str, *, holder: str, code: str, status: int | None = None, url: str = "", detail: str = ""
    ) -> None:
        super().__init__(message, code=code, status=status, url=url, detail=detail)
        self.holder = holder


class NoPendingWorkError(SubscriptionError):
    """There is nothing to do."""


class WakeLostError(SubscriptionError):
    """The caller no longer holds this wake. Nothing was acknowledged by this request."""


class WebhookError(StreamError):
    """A request claims to be a webhook, but is not from this server, or is too old. Nothing in it can be trusted."""


class RequestRefusedError(StreamError):
    """The server refuses the request, and repeating it does not help."""


class UnavailableError(StreamError):
    """The server could not be reached or had no capacity; nothing was changed."""


class OutcomeUnknownError(StreamError):
    """The response was lost, and the request cannot be repeated safely."""


class ProtocolError(StreamError):
    """The response cannot be understood: for example, its body was cut off or does not match its headers, a number in
    it is invalid, or it is the page of a proxy. The message shows the response. The caller got nothing of it, so a read
    can be repeated from the same offset. Only reading the stream shows whether something was appended."""
