"""Subscriptions (sections 6 and 7 of the protocol), without I/O: the requests to one, and the meaning of the responses.

A subscription is a set of cursors, one for each of its streams. When one of the streams has more, a worker is woken by
a webhook, or by an event in a stream that workers follow; one of them then claims the work. The holder of a wake
acknowledges offsets, which moves the cursors. A newer wake fences the holder of the one before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn, TypedDict, TypeVar
from urllib.parse import quote

from opslog.errors import UsageError
from opslog.server.client import arguments, errors
from opslog.server.client.answers import detail_of, refuse, senseless
from opslog.server.client.arguments import is_offset
from opslog.server.client.messages import JSON, Reply, Request, decoded, stream_url
from opslog.server.client.retrying import Retrying, Steps, call

T = TypeVar("T")

Kind = Literal["webhook", "pull-wake"]


class LinkedStream(NamedTuple):
    """:ivar path: relative to the address of the client.
    :ivar link_type: "explicit"; or "glob", if only the pattern matches it.
    :ivar acked_offset: everything before it was processed.
    """

    path: str
    link_type: str
    acked_offset: str


class PendingStream(NamedTuple):
    """A stream in a wake: read it from `acked_offset`, and acknowledge what you have processed.

    :ivar tail_offset: its end when the wake was made.
    :ivar has_pending: there is data after `acked_offset`.
    """

    path: str
    link_type: str
    acked_offset: str
    tail_offset: str
    has_pending: bool


class SubscriptionInfo(NamedTuple):
    """The state of a subscription (section 6.3).

    :ivar created_at: RFC 3339.
    :ivar status: "failed" while a webhook waits for its next attempt, else "active".
    """

    id: str
    type: Kind
    pattern: str | None
    streams: tuple[LinkedStream, ...]
    webhook_url: str | None
    wake_stream: str | None
    lease_seconds: float
    status: str
    created_at: str
    description: str | None


@dataclass(frozen=True, slots=True)
class Wake:
    """A worker's right to acknowledge, until the lease ends or a newer wake comes.

    :ivar generation: the newest wake has the greatest.
    :ivar lease_seconds: how long it is held without a request; None for a webhook: see the subscription.
    :ivar token: a secret, shown with each acknowledgement.
    """

    subscription_id: str
    wake_id: str
    generation: int
    streams: tuple[PendingStream, ...]
    type: Kind
    lease_seconds: float | None
    token: str = field(repr=False)


class Subscribing:
    """The calls on one subscription.

    :param root: the address of the server's stream root.
    :raises UsageError: the id is invalid.
    """

    def __init__(self, root: str, id: object, policy: Retrying) -> None:
        if not isinstance(id, str) or not id or not id.isprintable() or id in {".", ".."}:
            raise UsageError(f"{id!r} is not the id of a subscription: it is printable, and not empty")
        self.id = id
        self.url = f"{root}/__ds/subscriptions/{quote(id, safe='')}"
        self.policy = policy

    def create(
        self,
        *,
        pattern: str | None = None,
        streams: Sequence[str] = (),
        webhook_url: str | None = None,
        wake_stream: str | None = None,
        lease_seconds: float | None = None,
        description: str | None = None,
    ) -> Steps[SubscriptionInfo]:
        """Create the subscription, or confirm that it exists with the same configuration (section 6.2).

        :param pattern: of paths: ``*`` is one segment, ``**`` any number. For existing streams the subscription begins
            at their end.
        :param streams: paths of streams, which need not exist yet.
        :param webhook_url: the address to which the server posts wakes.
        :param wake_stream: in place of a webhook, the path of a JSON stream that you create. The server writes an event
            into it for each wake, for workers that `claim`.
        :param lease_seconds: how long a worker may be silent, from 1 to 600; None: 30.
        :raises SubscriptionConflictError: it exists with another configuration.
        """
        if (webhook_url is None) == (wake_stream is None):
            raise UsageError("a subscription wakes by a webhook_url or by a wake_stream: give one of them")
        if pattern is None and not streams:
            raise UsageError("a subscription is about streams: give a pattern, or streams, or both")
        config: dict[str, Any] = {"type": "webhook" if wake_stream is None else "pull-wake"}
        if pattern is not None:
            config["pattern"] = _path("pattern", pattern)
        if streams:
            config["streams"] = _paths(streams)
        if webhook_url is not None:
            config["webhook"] = {"url": webhook_url}
        if wake_stream is not None:
            config["wake_stream"] = _path("wake_stream", wake_stream)
        if lease_seconds is not None:
            arguments.seconds("lease_seconds", lease_seconds, above_zero=True)
            if not 1 <= lease_seconds <= 600:
                raise UsageError(f"lease_seconds is from 1 to 600, not {lease_seconds!r}")
            config["lease_ttl_ms"] = round(lease_seconds * 1000)
        if description is not None:
            config["description"] = description
        return (yield from self._call(_asking("PUT", self.url, config), _info))

    def get(self) -> Steps[SubscriptionInfo]:
        """:raises SubscriptionNotFoundError: there is none."""
        return (yield from self._call(Request("GET", self.url), _info))

    def delete(self) -> Steps[None]:
        """Delete it, whether it exists or not. The holder of a wake loses the wake."""
        return (yield from self._call(Request("DELETE", self.url), _nothing))

    def add(self, *paths: str) -> Steps[None]:
        """Link streams explicitly, at their present end (section 6.4)."""
        if not paths:
            raise UsageError("give at least one path of a stream")
        return (yield from self._call(_asking("POST", f"{self.url}/streams", {"streams": _paths(paths)}), _nothing))

    def remove(self, path: str) -> Steps[None]:
        """Undo `add`. If the pattern matches the path, the stream stays linked."""
        url = f"{self.url}/streams/{quote(_path('path', path), safe='')}"
        return (yield from self._call(Request("DELETE", url), _nothing))

    def claim(self, worker: object) -> Steps[Holding]:
        """Take the pending work (section 7.2). This can be repeated: if the response to a claim is lost, its lease
        ends."""
        if not isinstance(worker, str) or not worker:
            raise UsageError(f"a worker is a name, not {worker!r}")

        def claimed(request: Request, reply: Reply) -> Wake:
            found = _object(request, reply)
            lease = _seconds(request, reply, found)
            return wake(self.id, "pull-wake", found, _text(request, reply, found, "token"), lease, request, reply)

        held = yield from self._call(_asking("POST", f"{self.url}/claim", {"worker": worker}), claimed)
        return Holding(self, held)

    def _call(self, request: Request, meaning: Callable[[Request, Reply], T]) -> Steps[T]:
        return (yield from call(request, meaning, self.policy, repeatable=True, refused=refused))


class Holding:
    """The calls of a wake's holder.

    :ivar ended: the wake was given back, by acknowledging it as done or by `release`.
    """

    def __init__(self, subscription: Subscribing, wake: Wake) -> None:
        self.wake = wake
        self.ended = False
        self._subscription = subscription

    def acknowledge(self, offsets: Mapping[str, str] | None = None, *, done: bool = False) -> Steps[bool]:
        """Move cursors, and keep the wake, or with `done` give it back (sections 7.1 and 7.2). Without arguments, this
        only renews the lease. Returns whether there is more work, for which workers are woken again.

        :param offsets: by path, the end of the processed part of each stream.
        :raises WakeLostError: the lease ended, or a newer wake came.
        :raises OutcomeUnknownError: a response was lost, and the lease is over: the offsets may or may not have been
            acknowledged. `Subscription.get` shows which.
        """
        offsets = offsets or {}
        for path, offset in offsets.items():
            _path("a path", path)
            arguments.offset("what is acknowledged", offset)
        body: dict[str, Any] = {"acks": [{"stream": path, "offset": offset} for path, offset in offsets.items()]}
        if done:
            body["done"] = True
        action = "ack" if self.wake.type == "pull-wake" else "callback"

        def acknowledged(request: Request, reply: Reply) -> bool:
            found = _object(request, reply)
            if found.get("ok") is not True or not isinstance(found.get("next_wake", False), bool):
                senseless(request, reply.status, "without ok and next_wake", _ADVICE)
            return bool(found.get("next_wake", False))

        more = yield from self._call(action, body, acknowledged)
        self.ended = self.ended or done
        return more

    def finish(self) -> Steps[bool]:
        """Acknowledge everything in the wake, as done."""
        offsets = {stream.path: stream.tail_offset for stream in self.wake.streams if stream.has_pending}
        return (yield from self.acknowledge(offsets, done=True))

    def release(self) -> Steps[None]:
        """Give a claim back without acknowledging; another worker is woken (section 7.2). This can be repeated: after a
        release the caller no longer holds the wake."""
        if self.wake.type != "pull-wake":
            raise UsageError("only a claim can be released: answer a webhook with an error, or acknowledge it as done")

        def gone(reply: Reply) -> bool:
            return _error(reply).get("code") == "FENCED"

        yield from self._call("release", {}, _nothing, gone)
        self.ended = True

    def leave(self, error: BaseException | None) -> Steps[None]:
        """Release what is still held at the end of a block.

        :param error: the error that ended the block; a failure to release is noted there.
        """
        if self.ended or self.wake.type != "pull-wake":
            return
        try:
            yield from self.release()
        except errors.StreamError as failure:
            if error is None:
                raise
            error.add_note(f"and then: {failure}")

    def _call(
        self,
        action: str,
        body: Mapping[str, Any],
        meaning: Callable[[Request, Reply], T],
        done_anyway: Callable[[Reply], bool] = lambda reply: False,
    ) -> Steps[T]:
        held = {"wake_id": self.wake.wake_id, "generation": self.wake.generation}
        request = _asking("POST", f"{self._subscription.url}/{action}", {**held, **body}, self.wake.token)
        policy = self._subscription.policy
        return (yield from call(request, meaning, policy, repeatable=True, done_anyway=done_anyway, refused=refused))


class Held:
    """The part of a claim that is known without a request."""

    _core: Holding

    @property
    def wake(self) -> Wake:
        """The held wake."""
        return self._core.wake

    @property
    def ended(self) -> bool:
        """Whether the wake was given back, by acknowledging it as done or by `release`."""
        return self._core.ended

    @property
    def streams(self) -> tuple[PendingStream, ...]:
        """The streams of the subscription; those with `has_pending` have more."""
        return self._core.wake.streams


def wake(  # noqa: PLR0917  (what one is made of)
    id: str, type: Kind, found: Mapping[str, Any], token: str, lease: float | None, request: Request, reply: Reply
) -> Wake:
    """The wake in the response to a claim, or in a webhook."""
    streams = found.get("streams")
    if not isinstance(streams, list):
        senseless(request, reply.status, "without streams", _ADVICE)
    generation = found.get("generation")
    if isinstance(generation, bool) or not isinstance(generation, int):
        senseless(request, reply.status, "without generation", _ADVICE)
    wake_id = _text(request, reply, found, "wake_id")
    return Wake(id, wake_id, generation, tuple(_pending(request, reply, one) for one in streams), type, lease, token)


class _Known(TypedDict):
    code: str
    status: int
    url: str
    detail: str


def refused(request: Request, reply: Reply, uncertain: bool) -> NoReturn:
    """Raise the error for a subscription's refusal.

    :param uncertain: an earlier attempt of the request may have been carried out.
    """
    error = _error(reply)
    code = error.get("code")
    did = f"{request.method} {request.url}"
    message = error.get("message")
    detail = message if isinstance(message, str) else detail_of(reply)
    known: _Known = {"code": str(code), "status": reply.status, "url": request.url, "detail": detail}
    match code:
        case "SUBSCRIPTION_NOT_FOUND":
            raise errors.SubscriptionNotFoundError(f"{did}: no such subscription; create it first", **known)
        case "SUBSCRIPTION_ALREADY_EXISTS":
            advice = "it exists with another configuration; delete it, or take another id"
            raise errors.SubscriptionConflictError(f"{did}: {advice}", **known)
        case "NO_PENDING_WORK":
            raise errors.NoPendingWorkError(f"{did}: everything is processed; wait for the next wake", **known)
        case "ALREADY_CLAIMED":
            holder = str(error.get("current_holder", ""))
            perhaps = " (perhaps by this worker: an earlier answer was lost)" if uncertain else ""
            advice = "wait for the next wake"
            raise errors.AlreadyClaimedError(
                f"{did}: it is claimed by {holder!r}{perhaps}; {advice}", holder=holder, **known
            )
        case "FENCED" | "TOKEN_INVALID" | "TOKEN_EXPIRED" if uncertain:
            advice = "an answer was lost before, so it may or may not be acknowledged: the subscription says what is"
            raise errors.OutcomeUnknownError(
                f"{did}: {code}, and {advice}", status=reply.status, url=request.url, detail=detail
            )
        case "FENCED" | "TOKEN_INVALID" | "TOKEN_EXPIRED":
            advice = "the lease ended, or a newer wake came: stop, and wait for the next one"
            raise errors.WakeLostError(f"{did}: {code}: {advice}", **known)
        case str():
            said = f"refused with {reply.status} {code} ({detail})"
            raise errors.RequestRefusedError(
                f"{did}: {said}; fix the request", status=reply.status, url=request.url, detail=detail
            )
    refuse(request, reply)


_ADVICE = "is that the address of the stream root of a server with subscriptions?"


def _asking(method: str, url: str, body: Mapping[str, Any], token: str | None = None) -> Request:
    headers = {"Content-Type": JSON}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        return Request(method, url, headers, json.dumps(body).encode())
    except (TypeError, ValueError) as error:
        raise UsageError(f"that cannot be written as JSON: {error}") from None


def _path(name: str, path: object) -> str:
    """The path of a stream, or a pattern of paths."""
    if not isinstance(path, str):
        raise UsageError(f"{name} is a path, as names/separated/by/slashes, not {path!r}")
    stream_url("", path)
    return path


def _paths(paths: Sequence[str]) -> list[str]:
    if isinstance(paths, str):
        raise UsageError("streams are a list of paths, not one string")
    return [_path("a stream", path) for path in paths]


def _error(reply: Reply) -> Mapping[str, Any]:
    """The error that a response describes; empty if the response is not from a server with subscriptions."""
    try:
        found = decoded(reply.content)
    except ValueError:
        return {}
    error = found.get("error") if isinstance(found, dict) else None
    return error if isinstance(error, dict) else {}


def _object(request: Request, reply: Reply) -> dict[str, Any]:
    try:
        found = decoded(reply.content)
    except ValueError as error:
        senseless(request, reply.status, f"with {len(reply.content)} bytes that are not JSON ({error})", _ADVICE)
    if not isinstance(found, dict):
        senseless(request, reply.status, "with no JSON object", _ADVICE)
    return found


def _nothing(request: Request, reply: Reply) -> None:
    if reply.status != 204 and not _error(reply):
        senseless(request, reply.status, "instead of 204", _ADVICE)


def _info(request: Request, reply: Reply) -> SubscriptionInfo:
    found = _object(request, reply)
    kind = found.get("type")
    streams = found.get("streams", [])
    webhook = found.get("webhook")
    if kind not in {"webhook", "pull-wake"} or not isinstance(streams, list):
        senseless(request, reply.status, "without type and streams", _ADVICE)
    return SubscriptionInfo(
        _text(request, reply, found, "id"),
        kind,
        _text_or_none(request, reply, found, "pattern"),
        tuple(_linked(request, reply, one) for one in streams),
        _text_or_none(request, reply, webhook if isinstance(webhook, dict) else {}, "url"),
        _text_or_none(request, reply, found, "wake_stream"),
        _seconds(request, reply, found),
        _text(request, reply, found, "status"),
        _text(request, reply, found, "created_at"),
        _text_or_none(request, reply, found, "description"),
    )


def _linked(request: Request, reply: Reply, found: Any) -> LinkedStream:
    if not isinstance(found, dict) or not is_offset(found.get("acked_offset")):
        senseless(request, reply.status, "with a stream without acked_offset", _ADVICE)
    path, link_type = (_text(request, reply, found, name) for name in ("path", "link_type"))
    return LinkedStream(path, link_type, found["acked_offset"])


def _pending(request: Request, reply: Reply, found: Any) -> PendingStream:
    linked = _linked(request, reply, found)
    if not is_offset(found.get("tail_offset")) or not isinstance(found.get("has_pending"), bool):
        senseless(request, reply.status, "with a stream without tail_offset and has_pending", _ADVICE)
    return PendingStream(*linked, found["tail_offset"], found["has_pending"])


def _seconds(request: Request, reply: Reply, found: Mapping[str, Any]) -> float:
    lease = found.get("lease_ttl_ms")
    if isinstance(lease, bool) or not isinstance(lease, int) or not 0 < lease < 1e12:
        senseless(request, reply.status, "without lease_ttl_ms", _ADVICE)
    return lease / 1000


def _text(request: Request, reply: Reply, found: Mapping[str, Any], name: str) -> str:
    text = found.get(name)
    if not isinstance(text, str) or not text:
        senseless(request, reply.status, f"without {name}", _ADVICE)
    return text


def _text_or_none(request: Request, reply: Reply, found: Mapping[str, Any], name: str) -> str | None:
    return None if found.get(name) is None else _text(request, reply, found, name)
