"""An idempotent producer (section 5.2.1), without I/O: what to send next, and what an answer to it means.

Messages are gathered into batches, each batch has a number, and several of them are under way at once. A batch whose
answer was lost is sent again under its number, and the server drops what it already has: every message is appended
exactly once, in order. Requests overtake each other, so a batch may arrive before its predecessor; the server refuses
it, and it is sent again when the predecessor is settled.

Two more things that this protocol leaves to clients:

- A number that the server has already seen, on a batch that was sent for the first time, means that another producer
  used this id and epoch before. The server calls that a success and drops the data; here it is an error.
- The first batch goes alone. Until it is accepted nothing else depends on the epoch, so a producer that may claim its
  id can start over with the next epoch, as long as no try of that batch can have been carried out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from opslog.errors import UsageError
from opslog.server.client import arguments, messages
from opslog.server.client.answers import detail_of, is_closed, next_offset, refuse, senseless, whole_number
from opslog.server.client.arguments import INTEGER_MAX
from opslog.server.client.errors import OutcomeUnknownError, ProducerFencedError, SequenceGapError, StreamError
from opslog.server.client.messages import Content, Reply, Request
from opslog.server.client.retrying import OVERLOADED, Retrying, Tries, asked_pause, give_up

# So many epochs in a row are tried: more than that, and another process claims as stubbornly, or the server counts by
# itself.
_CLAIMS_MAX = 10


@dataclass(frozen=True)
class Options:
    """How a producer works, checked before anything is sent.

    :ivar id: the same one each time the producer is started.
    :ivar epoch: greater each time.
    :ivar claim: if others used the id before, shut them out with a newer epoch instead of failing.
    :ivar max_in_flight: so many batches are under way at once.
    :ivar max_batch_bytes: of the messages in one; a larger message has a batch of its own.
    :ivar max_buffered_bytes: whoever appends waits while so much is gathered and not yet acknowledged.
    """

    id: str
    epoch: int = 0
    claim: bool = False
    max_in_flight: int = 5
    max_batch_bytes: int = 1 << 20
    max_buffered_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        """:raises UsageError: one of them cannot be."""
        arguments.header_value("the id of a producer", self.id)
        arguments.whole_number("epoch", self.epoch, 0)
        arguments.whole_number("max_in_flight", self.max_in_flight, 1)
        arguments.whole_number("max_batch_bytes", self.max_batch_bytes, 1)
        arguments.whole_number("max_buffered_bytes", self.max_buffered_bytes, 1)


@dataclass(eq=False)
class Sending:
    """A batch under way.

    :ivar number: from 0 in its epoch.
    :ivar size: bytes of its messages.
    :ivar uncertain: a try of it may have been carried out.
    :ivar last: of its messages, as `Producing.added` counts them.
    :ivar first: all its predecessors were settled when it was sent last.
    :ivar waits: they come first.
    :ivar pause: seconds before it is sent again.
    """

    number: int
    body: bytes
    size: int
    last: int
    ends: bool
    tries: Tries
    uncertain: bool = False
    attempts: int = 0
    settled: bool = False
    first: bool = False
    waits: bool = False
    pause: float = 0.0
    request: Request = field(default_factory=lambda: Request("POST", ""))


class Producing:
    """:ivar failed: what ended this producer.
    :ivar added: messages so far; the end of the stream counts as one.
    :ivar next_offset: the end of the stream after the last batch that was acknowledged, None before.
    """

    def __init__(self, url: str, content_type: str, options: Options, policy: Retrying) -> None:
        self.epoch = options.epoch
        self.failed: BaseException | None = None
        self.next_offset: str | None = None
        self._url = url
        self._content_type = content_type
        self._json = messages.media_type(content_type) == messages.JSON
        self._options = options
        self._policy = policy
        self.added = 0
        self._taken = 0
        self._acknowledged = 0
        self._waiting: deque[bytes] = deque()
        self._unsettled_bytes = 0
        self._flying: deque[Sending] = deque()
        self._number = 0
        self._established = False
        self._ending = False
        self._end_sent = False

    @property
    def full(self) -> bool:
        return self._unsettled_bytes >= self._options.max_buffered_bytes

    @property
    def idle(self) -> bool:
        """Everything that was added is acknowledged."""
        return self.reached(self.added)

    def reached(self, added: int) -> bool:
        """Whether as many messages are acknowledged."""
        return self._acknowledged >= added

    def encoded(self, contents: Iterable[Content]) -> list[bytes]:
        """What `add` takes.

        :raises UsageError: one of them cannot be appended to this stream.
        """
        found = [messages.encoded(content, is_json=self._json) for content in contents]
        bodies = [body[1:-1] if self._json else body for body in found]
        if not all(bodies):
            raise UsageError("there is nothing to append: an empty message cannot be stored")
        return bodies

    def add(self, body: bytes) -> None:
        """:raises UsageError: the stream was ended."""
        self._raise_failure()
        if self._ending:
            raise UsageError("this producer has ended the stream: nothing can follow")
        self._waiting.append(body)
        self._unsettled_bytes += len(body)
        self.added += 1

    def end(self) -> None:
        """Close the stream with the last batch."""
        self._raise_failure()
        self.added += 0 if self._ending else 1
        self._ending = True

    def _raise_failure(self) -> None:
        if self.failed is not None:
            raise self.failed

    def take(self) -> Sending | None:
        """The next batch to send, None if there is nothing to do at the moment."""
        if self.failed is not None or len(self._flying) >= (self._options.max_in_flight if self._established else 1):
            return None
        parts: list[bytes] = []
        size = 0
        while self._waiting and (not parts or size + len(self._waiting[0]) <= self._options.max_batch_bytes):
            parts.append(self._waiting.popleft())
            size += len(parts[-1])
        # The end goes alone: a closed stream refuses even what it has, so no batch before may have to be sent again.
        ends = self._ending and not self._end_sent and not self._waiting and not self._flying
        if not parts and not ends:
            return None
        body = b"[" + b",".join(parts) + b"]" if self._json and parts else b"".join(parts)
        self._taken += len(parts) + (1 if ends else 0)
        sending = Sending(self._number, body, size, self._taken, ends, self._policy.tries())
        self._number += 1
        self._end_sent = self._end_sent or ends
        self._flying.append(sending)
        return sending

    def request(self, sending: Sending) -> Request:
        """What to send: for every try anew, because the epoch may have changed."""
        base = messages.append(self._url, self._content_type, sending.body, close=sending.ends)
        triple = {
            "Producer-Id": self._options.id,
            "Producer-Epoch": str(self.epoch),
            "Producer-Seq": str(sending.number),
        }
        sending.request = base._replace(headers={**base.headers, **triple})
        sending.attempts += 1
        sending.first = self._flying[0] is sending
        sending.waits, sending.pause = False, 0.0
        return sending.request

    def ready(self, sending: Sending) -> bool:
        """Whether a batch that waits for its predecessors may be sent again."""
        return self.failed is not None or self._flying[0] is sending

    def fail(self, error: BaseException) -> None:
        """Something went wrong that is nobody's answer: a function of the caller, a client that was closed."""
        self.failed = self.failed or error

    def replied(self, sending: Sending, reply: Reply) -> None:
        """:raises StreamError: this producer is at its end; also kept in `failed`."""
        try:
            self._judge(sending, reply)
        except StreamError as error:
            self.failed = self.failed or error
            raise

    def lost(self, sending: Sending, reason: str, *, sent: bool) -> None:
        """:raises StreamError: for as long as the policy allows no answer came; also kept in `failed`."""
        sending.uncertain = sending.uncertain or sent
        self._again(sending, None, reason)

    def _judge(self, sending: Sending, reply: Reply) -> None:
        match reply.status:
            case 200:
                self._settle(sending, reply)
            case 204 if sending.uncertain or not sending.body:  # to close without content is answered so
                self._settle(sending, reply)
            case 204:
                self._restart(sending, reply, "the server has this batch from another producer with this id and epoch")
            case 403 if "producer-epoch" in reply.headers:
                self._restart(sending, reply, "another producer with this id began a newer epoch")
            case 409 if "producer-expected-seq" in reply.headers:
                self._gap(sending, reply)
            case status if status in OVERLOADED:
                self._again(sending, reply, "")
            case status if status >= 500 or status == 408:
                sending.uncertain = True
                self._again(sending, reply, "")
            case _ if sending.uncertain:
                self._refuse_after_a_lost_answer(sending, reply)
            case _:
                refuse(sending.request, reply)

    def _refuse_after_a_lost_answer(self, sending: Sending, reply: Reply) -> NoReturn:
        """The stream was closed or deleted by others, say, before this try of the batch, or before an earlier one."""
        try:
            refuse(sending.request, reply)
        except StreamError as error:
            raise OutcomeUnknownError(
                f"{error}; and an answer was lost before: batch {sending.number} may or may not be appended; read the "
                "stream before you repeat it",
                status=reply.status,
                url=self._url,
                detail=detail_of(reply),
            ) from error

    def _settle(self, sending: Sending, reply: Reply) -> None:
        request = sending.request
        # Only a server that knows producers repeats these; a page that some proxy shows instead does not.
        number = whole_number(request, reply, "Producer-Seq")
        if whole_number(request, reply, "Producer-Epoch") != self.epoch or (number or 0) < sending.number:
            senseless(request, reply.status, "without this epoch and batch in Producer-Epoch and Producer-Seq")
        if sending.ends and not is_closed(reply):
            senseless(request, reply.status, "without Stream-Closed", "this server does not close streams")
        if "stream-next-offset" in reply.headers:  # some servers leave it out of 204
            self.next_offset = next_offset(request, reply)
        sending.settled = True
        self._established = True
        self._unsettled_bytes -= sending.size
        while self._flying and self._flying[0].settled:
            self._acknowledged = self._flying.popleft().last

    def _restart(self, sending: Sending, reply: Reply, why: str) -> None:
        """Begin the next epoch, which is possible before anything of this one was accepted."""
        epoch = whole_number(sending.request, reply, "Producer-Epoch")
        if epoch is None or epoch < self.epoch or (reply.status == 403 and epoch == self.epoch):
            senseless(sending.request, reply.status, "without a Producer-Epoch that explains it")
        may_claim = self._options.claim and not self._established and not sending.uncertain
        if may_claim and sending.attempts <= _CLAIMS_MAX and epoch < INTEGER_MAX:
            self.epoch = epoch + 1
            return
        known = {"url": self._url, "detail": detail_of(reply)}
        did = f"producer {self._options.id!r} in epoch {self.epoch} on {self._url}"
        if sending.uncertain:
            raise OutcomeUnknownError(
                f"{did}: {why}, and an answer was lost before: batch {sending.number} may or may not be appended; "
                "read the stream before you repeat it",
                status=reply.status,
                **known,
            )
        advice = f"if that one is gone, start a producer with epoch={epoch + 1} or claim=True"
        raise ProducerFencedError(f"{did}: {why}; {advice}", epoch=epoch, status=reply.status, **known)

    def _gap(self, sending: Sending, reply: Reply) -> None:
        expected = whole_number(sending.request, reply, "Producer-Expected-Seq")
        if expected is None or expected >= sending.number:
            senseless(sending.request, reply.status, "without a Producer-Expected-Seq that explains it")
        if not sending.first:
            # It overtook a predecessor, which may be settled by now.
            sending.waits = True
            return
        raise SequenceGapError(
            f"producer {self._options.id!r} on {self._url}: the server expects batch {expected}, all before "
            f"{sending.number} were acknowledged: the stream was made anew or lost data; read it before you go on "
            "with a new epoch",
            expected=expected,
            received=sending.number,
            url=self._url,
        )

    def _again(self, sending: Sending, reply: Reply | None, reason: str) -> None:
        pause = sending.tries.again(asked_pause(reply, self._policy.environment))
        if pause is not None:
            sending.pause = pause.seconds
            return
        try:
            give_up(sending.request, reply, reason, uncertain=sending.uncertain)
        except StreamError as error:
            self.failed = self.failed or error
            raise
