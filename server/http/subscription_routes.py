"""The reserved part of the address space, ``__ds``: subscriptions and the keys of webhooks (sections 6 and 7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from opslog.doors.access import Receive, Scope, Send
from opslog.doors.tokens import Token
from opslog.server.http import requests
from opslog.server.http.admission import check
from opslog.server.http.budget import Budget
from opslog.server.http.replies import NO_STORE, reply
from opslog.server.http.requests import Fields
from opslog.server.options import Options
from opslog.server.protocol.refusals import Headers, Refused
from opslog.server.subscriptions import subscription as subscriptions
from opslog.server.subscriptions.service import Subscriptions
from opslog.server.subscriptions.subscription import PULL_WAKE, WEBHOOK, SubscriptionRefused, invalid
from opslog.server.subscriptions.webhook_keys import JWKS_SECONDS

RESERVED = "__ds"
_JSON = (b"content-type", b"application/json")
_BODY_BYTES_MAX = 1024 * 1024
_ID_CHARACTERS_MAX = 256

Answer = tuple[int, dict[str, Any] | None]


class Route(NamedTuple):
    """What an address below ``__ds`` stands for.

    :ivar action: ``jwks.json``, or what follows the id of a subscription: nothing for the subscription itself,
        ``streams``, ``claim``, ``callback``, ``ack`` or ``release``.
    :ivar id: the id of the subscription.
    :ivar path: the path of the one stream that it is about.
    """

    action: str
    id: str = ""
    path: str | None = None

    @property
    def carries_own_token(self) -> bool:
        """Whether its requests need no token of the server's users: workers show the token of their wake, and everyone
        may read the public keys."""
        return self.action == _KEYS or self.action in _OF_WORKERS


_KEYS = "jwks.json"
_OF_WORKERS = {"callback", "ack", "release"}
_ACTIONS = {"streams", "claim", *_OF_WORKERS}


def route_of(scope: Scope, root: str) -> Route | None:
    """The route of a request; None: there is nothing at its address.

    It is found in the path as it was sent, because an id or a stream's path may have slashes. They are encoded, and end
    no segment. What a request does, and whether it needs a token, must both follow from this one reading.
    """
    reserved, *parts = scope["raw_path"].decode("latin-1").removeprefix(quote(root)).split("/")
    if unquote(reserved) != RESERVED:
        return None
    match parts:
        case [name] if name == _KEYS:
            return Route(_KEYS)
        case ["subscriptions", id, "streams", *path] if id and path:
            return Route("streams", unquote(id), subscriptions.normalised(unquote("/".join(path))))
        case ["subscriptions", id] if id:
            return Route("", unquote(id))
        case ["subscriptions", id, action] if id and action in _ACTIONS:
            return Route(action, unquote(id))
    return None


class SubscriptionRoutes:
    """Answers every request below ``__ds``.

    :param now: seconds since 1970.
    :param budget: counts the bytes of requests in memory.
    """

    def __init__(self, service: Subscriptions, options: Options, now: Callable[[], float], budget: Budget) -> None:
        self._budget = budget
        self._service = service
        self._options = options
        self._now = now

    async def __call__(
        self, route: Route | None, token: Token | None, scope: Scope, receive: Receive, send: Send
    ) -> int:
        """Answer the request, and return the status of the answer.

        :param token: the token of the request, if the server requires one for it.
        """
        try:
            given = requests.fields(scope["headers"])
            if route is None:
                raise SubscriptionRefused(404, "SUBSCRIPTION_NOT_FOUND", "there is nothing at this address")
            if route.action == _KEYS:
                _only(scope, "GET")
                headers: Headers = [
                    (b"content-type", b"application/jwk-set+json"),
                    (b"cache-control", b"public, max-age=%d" % JWKS_SECONDS),
                ]
                return await reply(send, 200, headers, msgspec.json.encode(self._service.keys.jwks(self._now())))
            status, answer = await self._subscription(route, token, scope, given, receive)
        except SubscriptionRefused as refused:
            error = {"code": refused.code, "message": str(refused), **refused.known}
            return await _answer(send, refused.status, {"error": error})
        except Refused as refused:
            headers = [_JSON, NO_STORE, *refused.headers]
            error = {"code": "INVALID_REQUEST", "message": str(refused)}
            return await reply(send, refused.status, headers, msgspec.json.encode({"error": error}))
        return await _answer(send, status, answer)

    async def _subscription(
        self, route: Route, token: Token | None, scope: Scope, given: Fields, receive: Receive
    ) -> Answer:
        id = route.id
        if len(id) > _ID_CHARACTERS_MAX or not id.isprintable():
            raise invalid(f"an id has at most {_ID_CHARACTERS_MAX} characters, all printable")
        match route.action:
            case "streams" if route.path is not None:
                _only(scope, "DELETE")
                await self._service.remove_stream(id, route.path)
                return 204, None
            case "streams":
                _only(scope, "POST")
                body = await self._body(given, receive)
                await self._service.add_streams(id, subscriptions.parse_paths(body.get("streams")))
                return 204, None
            case "claim":
                _only(scope, "POST")
                return await self._claim(id, await self._body(given, receive))
            case "callback" | "ack":
                _only(scope, "POST")
                body = await self._body(given, receive)
                woken = await self._service.acknowledge(id, _token(given), body, pull_wake=route.action == "ack")
                return 200, {"ok": True, "next_wake": woken}
            case "release":
                _only(scope, "POST")
                await self._service.release(id, _token(given), await self._body(given, receive))
                return 204, None
        return await self._itself(id, token, scope, given, receive)

    async def _itself(self, id: str, token: Token | None, scope: Scope, given: Fields, receive: Receive) -> Answer:
        _only(scope, "GET", "PUT", "DELETE")
        if scope["method"] == "DELETE":
            await self._service.delete(id)
            return 204, None
        base = self._base(scope, given)
        if scope["method"] == "GET":
            return 200, self._shown(id, base)
        config = subscriptions.parse_config(await self._body(given, receive))
        if token is not None and config.wake_stream is not None:
            check(token, config.wake_stream, "write")  # the server writes its events there for whoever made it
        _, created = await self._service.create(id, config, base)
        return 201 if created else 200, self._shown(id, base)

    async def _claim(self, id: str, body: Mapping[str, object]) -> Answer:
        worker = body.get("worker")
        if not isinstance(worker, str) or not worker:
            raise invalid("worker is a name, a string that is not empty")
        subscription, token, streams = await self._service.claim(id, worker)
        return 200, {
            "wake_id": subscription.wake_id,
            "generation": subscription.generation,
            "token": token,
            "streams": streams,
            "lease_ttl_ms": subscription.config.lease_ttl_ms,
        }

    def _shown(self, id: str, base: str) -> dict[str, Any]:
        entry = self._service.get(id)
        subscription, config = entry.subscription, entry.subscription.config
        signing = {"alg": "ed25519", "kid": self._service.keys.kid(self._now()), "jwks_url": f"{base}__ds/jwks.json"}
        webhook = {"url": config.webhook_url, "signing": signing} if config.type == WEBHOOK else None
        streams = [
            {"path": link.path, "link_type": link.link_type, "acked_offset": link.acked_offset}
            for link in sorted(entry.links.values(), key=lambda link: link.path)
        ]
        return {
            "id": id,
            "subscription_id": id,
            "type": config.type,
            "pattern": config.pattern,
            "streams": streams,
            "webhook": webhook,
            "wake_stream": config.wake_stream if config.type == PULL_WAKE else None,
            "lease_ttl_ms": config.lease_ttl_ms,
            "created_at": subscription.created_at,
            "status": subscription.status,
            "description": config.description,
        }

    def _base(self, scope: Scope, given: Fields) -> str:
        """Where clients reach the stream root, with a slash at the end."""
        origin = self._options.public_url or f"{scope['scheme']}://{given.get(b'host', 'localhost')}"
        return origin.rstrip("/") + self._options.root

    async def _body(self, given: Fields, receive: Receive) -> dict[str, object]:
        with self._budget.holding() as holding:
            data = await requests.body(receive, given, _BODY_BYTES_MAX, self._options.body_seconds, holding)
        try:
            body = msgspec.json.decode(data or b"{}")
        except msgspec.DecodeError as error:
            raise invalid(f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise invalid("the body is not a JSON object")
        return body


def _only(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        allowed = [(b"allow", ", ".join(methods).encode())]
        raise Refused(405, f"{scope['method']} is not possible here", allowed)


def _token(given: Fields) -> str:
    scheme, _, token = given.get(b"authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise SubscriptionRefused(401, "TOKEN_INVALID", "send the token of the wake: Authorization: Bearer <token>")
    return token.strip()


async def _answer(send: Send, status: int, answer: dict[str, Any] | None) -> int:
    if answer is None:
        return await reply(send, status, [NO_STORE])
    return await reply(send, status, [_JSON, NO_STORE], msgspec.json.encode(answer))
