"""An idempotent producer (section 5.2.1), without I/O: what to send next, what each response means, and the conditions
that appending and sending threads wait for.

Messages are gathered into numbered batches, and several batches are under way at once. If the response to a batch is
lost, the batch is sent again under its number, and the server drops it if it already has it. So every message is
appended exactly once, in order. Requests can overtake each other, so a batch may arrive before its predecessor. The
server refuses it then, and it is sent again when the predecessor is settled.

The protocol leaves two more rules to clients:

- A number that the server has already seen, on a batch that was sent for the first time, means that another producer
  used this id and epoch before. The server calls that a success and drops the data; here it is an error.
- The first batch goes alone. Until it is accepted nothing else depends on the epoch. So a producer that may claim its
  id can start over with the next epoch, as long as no attempt of that batch can have been carried out.

The calls and the workers of a producer are generators, as in `retrying`, and share one state. Their driver runs one of
them at a time. Others run only while it waits `Until` a condition holds, or for the reply to a `Request`. Then the
driver also checks the conditions that others wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeVar

from opslog.errors import UsageError
from opslog.server.client import arguments, messages
from opslog.server.client.answers import detail_of, is_closed, next_offset, refuse, senseless, whole_number
from opslog.server.client.arguments import INTEGER_MAX
from opslog.server.client.calls import Calls
from opslog.server.client.errors import OutcomeUnknownError, ProducerFencedError, SequenceGapError, StreamError
from opslog.server.client.messages import Content, Reply, Request
from opslog.server.client.retrying import OVERLOADED, Lost, Steps, Tries, asked_pause, give_up

# The most epochs that are tried in a row. If none is accepted, another process keeps claiming the id, or the server
# raises the epoch by itself.
_CLAIMS_MAX = 10

T = TypeVar("T")


class Until(NamedTuple):
    """:ivar seconds: the longest wait; None: without end."""

    condition: Callable[[], bool]
    seconds: float | None = None


Waiting = Generator[Request | Until, Any, T]


@dataclass(frozen=True)
class Options:
    """How a producer works, checked before anything is sent.

    :ivar id: the same each time the producer is started.
    :ivar epoch: greater each time the producer is started.
    :ivar claim: if others used the id before, shut them out with a newer epoch instead of failing.
    :ivar max_in_flight: how many batches are under way at once.
    :ivar max_batch_bytes: the most bytes of messages in a batch; a larger message has a batch of its own.
    :ivar max_buffered_bytes: `append` waits while this much is gathered and not yet acknowledged.
    """

    id: str
    epoch: int = 0
    claim: bool = False
    max_in_flight: int = 5
    max_batch_bytes: int = 1 << 20
    max_buffered_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        """:raises UsageError: one of them is invalid."""
        arguments.header_value("the id of a producer", self.id)
        arguments.whole_number("epoch", self.epoch, 0)
        arguments.whole_number("max_in_flight", self.max_in_flight, 1)
        arguments.whole_number("max_batch_bytes", self.max_batch_bytes, 1)
        arguments.whole_number("max_buffered_bytes", self.max_buffered_bytes, 1)


@dataclass(eq=False)
class Sending:
    """A batch under way.

    :ivar number: counted from 0 in each epoch.
    :ivar size: bytes of its messages.
    :ivar uncertain: an attempt to send it may have been carried out.
    :ivar last: the number of its last message, as `Producing` counts them.
    :ivar first: all its predecessors were settled when it was last sent.
    :ivar waits: its predecessors must be settled first.
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
    """The state of one producer.

    :ivar options: how it works.
    :ivar failed: the error that ended this producer.
    :ivar closed: no more appends will come, so workers stop once there is nothing to send.
    """

    def __init__(self, calls: Calls, options: Options) -> None:
        self.options = options
        self.epoch = options.epoch
        self.failed: BaseException | None = None
        self.closed = False
        self._calls = calls
        self._content_type = ""  # until `begin`
        self._added = 0  # messages; the end of the stream counts as one
        self._taken = 0
        self._acknowledged = 0
        self._next_offset: str | None = None
        self._waiting: deque[bytes] = deque()
        self._unsettled_bytes = 0
        self._flying: deque[Sending] = deque()
        self._number = 0
        self._established = False
        self._ending = False
        self._end_sent = False

    def begin(self) -> Steps[None]:
        """Find out the content type of the stream. Must be called before all else."""
        self._content_type = yield from self._calls.typed()

    def append(self, *contents: Content) -> Waiting[None]:
        """Add messages. Returns at once, unless too much is unacknowledged; then it waits. `flush` returns when the
        messages are durable."""
        self._check_open()
        for body in self._encoded(contents):
            yield Until(lambda: self._unsettled_bytes < self.options.max_buffered_bytes or self.failed is not None)
            self._add(body)

    def flush(self) -> Waiting[str | None]:
        """Wait until everything that was appended before this call is acknowledged, but not for what others append
        meanwhile. Returns the end of the stream; None: nothing was appended."""
        added = self._added
        if not self._content_type or self._acknowledged < added:
            self._check_open()
        yield Until(lambda: self._acknowledged >= added or self.failed is not None)
        self._raise_failure()
        return self._next_offset

    def end(self) -> Waiting[str | None]:
        """Close the stream after everything appended, and wait until it is closed."""
        self._check_open()
        self._raise_failure()
        self._added += 0 if self._ending else 1
        self._ending = True
        return (yield from self.flush())

    def work(self) -> Waiting[None]:
        """Run one worker: take a batch, send it until it is settled, and take the next one, as long as there are
        any."""
        try:
            while True:
                yield Until(lambda: self._can_take or self._over)
                if not self._can_take:
                    return
                yield from self._deliver(self._take())
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001  (raised where somebody appends or flushes)
            self.failed = self.failed or error

    @property
    def _is_json(self) -> bool:
        return messages.media_type(self._content_type) == messages.JSON

    @property
    def _over(self) -> bool:
        return self.closed or self.failed is not None

    def _check_open(self) -> None:
        if not self._content_type:
            raise UsageError("enter a producer before you use it: async with stream.producer(...) as producer")
        if self.closed and self.failed is None:
            raise UsageError("this producer is closed: make another one, with a greater epoch or claim=True")

    def _raise_failure(self) -> None:
        if self.failed is not None:
            raise self.failed

    def _encoded(self, contents: Iterable[Content]) -> list[bytes]:
        """:raises UsageError: one of them cannot be appended to this stream."""
        found = [messages.encoded(content, is_json=self._is_json) for content in contents]
        bodies = [body[1:-1] if self._is_json else body for body in found]
        if not all(bodies):
            raise UsageError("there is nothing to append: an empty message cannot be stored")
        return bodies

    def _add(self, body: bytes) -> None:
        self._raise_failure()
        if self._ending:
            raise UsageError("this producer has ended the stream: nothing can follow")
        self._waiting.append(body)
        self._unsettled_bytes += len(body)
        self._added += 1

    @property
    def _can_take(self) -> bool:
        free = len(self._flying) < (self.options.max_in_flight if self._established else 1)
        return self.failed is None and free and (bool(self._waiting) or self._can_end)

    @property
    def _can_end(self) -> bool:
        # The close is sent alone: a closed stream refuses even repeated batches, so all batches must be settled before.
        return self._ending and not (self._end_sent or self._waiting or self._flying)

    def _take(self) -> Sending:
        parts: list[bytes] = []
        size = 0
        while self._waiting and (not parts or size + len(self._waiting[0]) <= self.options.max_batch_bytes):
            parts.append(self._waiting.popleft())
            size += len(parts[-1])
        ends = self._can_end
        body = b"[" + b",".join(parts) + b"]" if self._is_json and parts else b"".join(parts)
        self._taken += len(parts) + (1 if ends else 0)
        sending = Sending(self._number, body, size, self._taken, ends, self._calls.policy.tries())
        self._number += 1
        self._end_sent = self._end_sent or ends
        self._flying.append(sending)
        return sending

    def _deliver(self, sending: Sending) -> Waiting[None]:
        while not sending.settled:
            if sending.waits:
                yield Until(lambda: self._flying[0] is sending or self._over)
            if sending.pause:  # responses to other batches do not shorten the pause
                yield Until(lambda: self._over, sending.pause)
            if self.failed is not None or (self.closed and sending.attempts > 0):
                return
            try:
                reply = yield self._request(sending)
            except Lost as lost:
                sending.uncertain = sending.uncertain or lost.sent
                self._again(sending, None, str(lost))
            else:
                self._judge(sending, reply)

    def _request(self, sending: Sending) -> Request:
        """The request for a batch. It is made anew for every attempt, because the epoch may have changed."""
        base = messages.append(self._calls.url, self._content_type, sending.body, close=sending.ends)
        triple = {
            "Producer-Id": self.options.id,
            "Producer-Epoch": str(self.epoch),
            "Producer-Seq": str(sending.number),
        }
        sending.request = base._replace(headers={**base.headers, **triple})
        sending.attempts += 1
        sending.first = self._flying[0] is sending
        sending.waits, sending.pause = False, 0.0
        return sending.request

    def _judge(self, sending: Sending, reply: Reply) -> None:
        match reply.status:
            case 200:
                self._settle(sending, reply)
            case 204 if sending.uncertain or not sending.body:  # 204 is also the response to closing without content
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
        """Raise the error for a refusal after an earlier attempt whose response was lost. For example, others closed or
        deleted the stream, either before this attempt or before the earlier one."""
        try:
            refuse(sending.request, reply)
        except StreamError as error:
            raise OutcomeUnknownError(
                f"{error}; and an answer was lost before: batch {sending.number} may or may not be appended; read the "
                "stream before you repeat it",
                status=reply.status,
                url=self._calls.url,
                detail=detail_of(reply),
            ) from error

    def _settle(self, sending: Sending, reply: Reply) -> None:
        request = sending.request
        # Only a server that knows producers returns these headers; the page of a proxy does not have them.
        number = whole_number(request, reply, "Producer-Seq")
        if whole_number(request, reply, "Producer-Epoch") != self.epoch or (number or 0) < sending.number:
            senseless(request, reply.status, "without this epoch and batch in Producer-Epoch and Producer-Seq")
        if sending.ends and not is_closed(reply):
            senseless(request, reply.status, "without Stream-Closed", "this server does not close streams")
        if "stream-next-offset" in reply.headers:  # some servers leave it out of a 204
            self._next_offset = next_offset(request, reply)
        sending.settled = True
        self._established = True
        self._unsettled_bytes -= sending.size
        while self._flying and self._flying[0].settled:
            self._acknowledged = self._flying.popleft().last

    def _restart(self, sending: Sending, reply: Reply, why: str) -> None:
        """Begin the next epoch. This is possible only before anything of the current epoch was accepted."""
        epoch = whole_number(sending.request, reply, "Producer-Epoch")
        if epoch is None or epoch < self.epoch or (reply.status == 403 and epoch == self.epoch):
            senseless(sending.request, reply.status, "without a Producer-Epoch that explains it")
        may_claim = self.options.claim and not self._established and not sending.uncertain
        if may_claim and sending.attempts <= _CLAIMS_MAX and epoch < INTEGER_MAX:
            self.epoch = epoch + 1
            return
        known = {"url": self._calls.url, "detail": detail_of(reply)}
        did = f"producer {self.options.id!r} in epoch {self.epoch} on {self._calls.url}"
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
            # The batch overtook a predecessor, which may be settled by now.
            sending.waits = True
            return
        raise SequenceGapError(
            f"producer {self.options.id!r} on {self._calls.url}: the server expects batch {expected}, all before "
            f"{sending.number} were acknowledged: the stream was made anew or lost data; read it before you go on "
            "with a new epoch",
            expected=expected,
            received=sending.number,
            url=self._calls.url,
        )

    def _again(self, sending: Sending, reply: Reply | None, reason: str) -> None:
        pause = sending.tries.again(asked_pause(reply, self._calls.policy.environment))
        if pause is None:
            give_up(sending.request, reply, reason, uncertain=sending.uncertain)
        sending.pause = pause.seconds
