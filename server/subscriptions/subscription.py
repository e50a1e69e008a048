"""Subscriptions: their state, and every step from one state to the next. Time, names and random numbers are passed in;
nothing is stored here.

A subscription has a cursor for each of its streams, and wakes a worker when one of them has more. It is in one of four
states:

    idle       there is nothing to do, or a wake is about to begin
    woken      `wake_id` is set, and no worker has the wake yet: its event is in the wake stream, or its webhook waits
               for the next attempt
    leased     `wake_id` and `lease_until` are set: a worker has the wake (`holder` names it, if it claimed the wake),
               or a webhook is being posted, and it is not known yet whether it arrived (`taken` is not set)
    deleted

Every wake has the next `generation`, which fences the holder of the wake before. A step never decreases `generation`,
and never moves a cursor back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from opslog.format.prepared import prepare
from opslog.server.protocol.offsets import format_offset, parse_offset
from opslog.server.protocol.refusals import Refused

LEASE_MS_DEFAULT, LEASE_MS_MIN, LEASE_MS_MAX = 30_000, 1000, 600_000
BEFORE_FIRST = "-1"
ZERO = format_offset(0)
# Three times as long as the path of a stream can be: each character of it may be a star, which is written %2A.
PATTERN_CHARACTERS_MAX = 1500
_RETRY_SECONDS_MAX = 60.0

WEBHOOK, PULL_WAKE = "webhook", "pull-wake"


class SubscriptionRefused(Refused):
    """:ivar code: the reason, as one word for programs.
    :ivar known: further fields of the error in the response.
    """

    def __init__(self, status: int, code: str, message: str, **known: object) -> None:
        super().__init__(status, message)
        self.code = code
        self.known = known


def invalid(message: str) -> SubscriptionRefused:
    return SubscriptionRefused(400, "INVALID_REQUEST", message)


class Config(msgspec.Struct, frozen=True):
    """The requested configuration. Creating a subscription again confirms it if both configurations are equal. For this
    comparison `streams` is sorted and has no duplicates."""

    type: Literal["webhook", "pull-wake"]
    pattern: str | None
    streams: tuple[str, ...]
    webhook_url: str | None
    wake_stream: str | None
    lease_ttl_ms: int
    description: str | None


class Link(msgspec.Struct, frozen=True):
    """A stream of a subscription, and how far it was processed.

    :ivar stream_id: the id of the stream that the cursor is for; 0: there is none. If another stream takes its path,
        the cursor begins anew.
    """

    path: str
    explicit: bool
    glob: bool
    acked_offset: str
    stream_id: int

    @property
    def link_type(self) -> str:
        return "explicit" if self.explicit else "glob"


class Subscription(msgspec.Struct, frozen=True):
    """:ivar created_at: RFC 3339.
    :ivar base_url: the address at which its creator reached this server.
    :ivar generation: the generation of the newest wake.
    :ivar wake_id: the id of the wake under way; None: there is none.
    :ivar snapshot: the ends of the pending streams when that wake began, or was claimed.
    :ivar taken: a worker is known to have the wake.
    :ivar holder: the worker that claimed the wake.
    :ivar lease_until, next_attempt_at: seconds since 1970.
    """

    id: str
    config: Config
    created_at: str
    base_url: str
    generation: int = 0
    wake_id: str | None = None
    snapshot: dict[str, str] = {}
    taken: bool = False
    holder: str | None = None
    lease_until: float | None = None
    retries: int = 0
    next_attempt_at: float | None = None

    @property
    def status(self) -> str:
        return "failed" if self.retries else "active"

    @property
    def waits_for_claim(self) -> bool:
        """Whether workers were notified of a wake that none of them has claimed."""
        return self.config.type == PULL_WAKE and self.wake_id is not None and self.holder is None

    @property
    def due(self) -> float | None:
        """The time at which it has to act by itself; None: never."""
        return self.lease_until if self.next_attempt_at is None else self.next_attempt_at


prepare(Link, Subscription)


class Ack(NamedTuple):
    path: str
    offset: str


class End(NamedTuple):
    """The end of a stream at some time.

    :ivar stream_id: 0: there was no stream.
    """

    stream_id: int
    offset: str


def behind(acked: str, tail: str) -> bool:
    """Whether there is data between the two. An empty stream has none, even for a subscription that has acknowledged
    nothing of it."""
    return tail > max(acked, ZERO)


def wake(subscription: Subscription, wake_id: str, snapshot: Mapping[str, str], now: float) -> Subscription:
    """Begin the wake of the next generation. The lease of a webhook begins now, that of a pull-wake worker when it
    claims the wake."""
    woken = replace(
        _idle(subscription), generation=subscription.generation + 1, wake_id=wake_id, snapshot=dict(snapshot)
    )
    return extended(woken, now) if subscription.config.type == WEBHOOK else woken


def extended(subscription: Subscription, now: float) -> Subscription:
    """The worker is alive: its lease begins anew, and no further delivery is needed."""
    until = now + subscription.config.lease_ttl_ms / 1000
    return replace(subscription, lease_until=until, next_attempt_at=None)


def released(subscription: Subscription) -> Subscription:
    """Return to the idle state. The count of retries stays; only a successful delivery resets it."""
    return replace(_idle(subscription), retries=subscription.retries)


def _idle(subscription: Subscription) -> Subscription:
    return replace(
        subscription, wake_id=None, snapshot={}, taken=False, holder=None, lease_until=None, next_attempt_at=None
    )


def claimed(subscription: Subscription, worker: str, now: float) -> Subscription:
    """Give the wake to a worker.

    :raises SubscriptionRefused: another worker has it.
    """
    if subscription.holder is not None:
        holder, generation = subscription.holder, subscription.generation
        message = f"{holder!r} has claimed generation {generation}"
        raise SubscriptionRefused(409, "ALREADY_CLAIMED", message, current_holder=holder, generation=generation)
    return replace(extended(subscription, now), taken=True, holder=worker)


def check_fence(subscription: Subscription, token_generation: int, generation: object, wake_id: object) -> None:
    """:raises SubscriptionRefused: the request names another wake than the one under way."""
    current = (subscription.generation, subscription.generation, subscription.wake_id)
    if subscription.wake_id is None or (token_generation, generation, wake_id) != current:
        raise SubscriptionRefused(409, "FENCED", "this wake is over: another generation is the current one")


def acknowledged(
    links: Mapping[str, Link], ends: Mapping[str, End], acks: Sequence[Ack], sent: Mapping[str, int]
) -> dict[str, Link]:
    """The links that `acks` move.

    :param ends: the present ends of the streams that `acks` name.
    :param sent: the ids of the streams that the worker was sent, by path; 0: there was no stream.
    :raises SubscriptionRefused: one of them is impossible, so none is carried out.
    """
    moved: dict[str, Link] = {}
    for path, offset in acks:
        link = moved.get(path) or links.get(path)
        if link is None:
            raise _impossible(f"{path!r} is not a stream of this subscription")
        if parse_offset(offset) is None:
            raise _impossible(f"{offset!r} is not an offset that this server gave out")
        end, sent_id = ends[path], sent.get(path, 0)
        if sent_id and end.stream_id and end.stream_id != sent_id:
            raise _impossible(f"another stream has taken the path {path!r}, and this wake is not for that one")
        if offset < link.acked_offset:
            raise _impossible(f"{path!r} is acknowledged up to {link.acked_offset} already")
        if offset > end.offset:
            raise _impossible(f"{path!r} ends at {end.offset}")
        moved[path] = replace(link, acked_offset=offset)
    return moved


def _impossible(message: str) -> SubscriptionRefused:
    return SubscriptionRefused(409, "INVALID_OFFSET", message)


def sent_acked(links: Mapping[str, Link], sent: Mapping[str, End]) -> dict[str, Link]:
    """The links that move if everything is acknowledged up to these ends, which a worker was sent. If another stream
    has taken the path of one meanwhile, nothing of it is: the worker was not sent any of it."""
    return {
        path: replace(link, acked_offset=sent[path].offset)
        for path, link in links.items()
        if path in sent and link.stream_id == sent[path].stream_id and link.acked_offset < sent[path].offset
    }


def delivered(subscription: Subscription) -> Subscription:
    """Note that a worker has the wake, because it has answered the webhook or called back."""
    return replace(subscription, taken=True, retries=0, next_attempt_at=None)


def failed(subscription: Subscription, now: float, chance: float) -> Subscription:
    """Note that the webhook was not accepted. It is tried again after 1 second, and after twice as long each further
    time, up to 60 seconds.

    :param chance: from 0 to 1; varies the time by up to a fifth.
    """
    delay = min(_RETRY_SECONDS_MAX, 2.0 ** min(subscription.retries, 10)) * (0.8 + 0.4 * chance)
    return replace(subscription, retries=subscription.retries + 1, lease_until=None, next_attempt_at=now + delay)


def taken_up(subscription: Subscription, now: float) -> Subscription:
    """The state with which a new process begins. A webhook that was being posted may or may not have arrived, so it is
    due again. Otherwise its worker would not be notified until the lease is over, up to ten minutes later."""
    webhook = subscription.config.type == WEBHOOK
    posting = webhook and subscription.lease_until is not None and not subscription.taken
    return replace(subscription, lease_until=None, next_attempt_at=now) if posting else subscription


def new_link(path: str, *, explicit: bool, stream_id: int, tail: str) -> Link:
    """A new link. The present contents of the stream count as processed."""
    return Link(path, explicit, not explicit, tail, stream_id)


def refreshed(known: Link | None, path: str, *, matched: bool, stream_id: int | None) -> Link | None:
    """The link after its stream was created, appended to, or deleted; None: there is no link any more.

    :param matched: the pattern matches this path.
    :param stream_id: None if there is no such stream now.
    """
    glob = matched and stream_id is not None
    if known is None:
        # The stream is new to the subscription, so everything in it is unprocessed.
        return Link(path, False, True, BEFORE_FIRST, stream_id) if glob and stream_id is not None else None
    if not (known.explicit or glob):
        return None
    if stream_id is None:
        return Link(path, known.explicit, False, ZERO, 0)
    if known.stream_id == stream_id:
        return replace(known, glob=glob)
    # A stream has come, or another one has taken the path. Its first offset need not be `ZERO`: a feed begins later.
    return Link(path, known.explicit, glob, BEFORE_FIRST, stream_id)


def normalised(path: str) -> str:
    return path.strip("/")


def parse_config(body: object) -> Config:
    """:raises SubscriptionRefused: the body is invalid."""
    if not isinstance(body, dict):
        raise invalid("the body is not a JSON object")
    kind = body.get("type")
    if kind not in (WEBHOOK, PULL_WAKE):
        raise invalid('type is "webhook" or "pull-wake"')
    pattern = normalised(_text(body, "pattern") or "") or None
    streams = parse_paths(body.get("streams", []))
    if pattern is not None and len(pattern) > PATTERN_CHARACTERS_MAX:
        raise invalid(f"a pattern has at most {PATTERN_CHARACTERS_MAX} characters")
    if pattern is None and not streams:
        raise invalid("a subscription has a pattern, or streams, or both")
    lease = body.get("lease_ttl_ms", LEASE_MS_DEFAULT)
    if type(lease) is not int or not LEASE_MS_MIN <= lease <= LEASE_MS_MAX:
        raise invalid(f"lease_ttl_ms is a whole number from {LEASE_MS_MIN} to {LEASE_MS_MAX}")
    webhook = body.get("webhook")
    url = _text(webhook, "url") if kind == WEBHOOK and isinstance(webhook, dict) else None
    if kind == WEBHOOK and not url:
        raise invalid("a webhook subscription has a webhook.url")
    wake_stream = normalised(_text(body, "wake_stream") or "") or None
    if kind == PULL_WAKE and wake_stream is None:
        raise invalid("a pull-wake subscription has a wake_stream")
    return Config(kind, pattern, streams, url, wake_stream, lease, _text(body, "description"))


def parse_paths(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(path, str) and normalised(path) for path in value):
        raise invalid("streams is an array of stream paths")
    return tuple(sorted({normalised(path) for path in value}))


def parse_acks(body: Mapping[str, object]) -> list[Ack]:
    acks = body.get("acks") or []
    if not isinstance(acks, list):
        raise invalid("acks is an array")
    return [_parse_ack(ack) for ack in acks]


def _parse_ack(ack: object) -> Ack:
    if isinstance(ack, dict):
        path, offset = ack.get("stream", ack.get("path")), ack.get("offset")
        if isinstance(path, str) and isinstance(offset, str):
            return Ack(normalised(path), offset)
    raise invalid('an ack is {"stream": path, "offset": offset}')


def _text(body: Mapping[str, object], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid(f"{name} is a string")
    return value


def infos(links: Iterable[Link], tails: Mapping[str, str]) -> list[dict[str, object]]:
    """The streams as they are described to a worker, in the order of their paths."""
    return [
        {
            "path": link.path,
            "link_type": link.link_type,
            "acked_offset": link.acked_offset,
            "tail_offset": tails.get(link.path, ZERO),
            "has_pending": behind(link.acked_offset, tails.get(link.path, ZERO)),
        }
        for link in sorted(links, key=lambda link: link.path)
    ]
