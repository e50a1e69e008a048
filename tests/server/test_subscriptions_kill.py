"""The server is killed while subscriptions are in every state. The next server continues exactly there."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from opslog.server.storage.directory import DirectoryStorage
from opslog.server.subscriptions import store as subscription_store
from opslog.server.subscriptions.subscription import Link, Subscription
from tests.support.servers import Server, http, serving
from tests.support.waiting import until

JSON = {"content-type": "application/json"}
PULL_WAKE, WEBHOOK = ("claimed", "waiting"), ("taken", "refused", "held")
"""Subscriptions, each named after the state in which the kill finds it."""


class Post(NamedTuple):
    """A webhook that has come."""

    body: bytes
    signature: dict[str, str]

    @property
    def wake(self) -> dict[str, Any]:
        notified = json.loads(self.body)
        return {"wake_id": notified["wake_id"], "generation": notified["generation"]}

    @property
    def token(self) -> str:
        return str(json.loads(self.body)["callback_token"])


class Receiver:
    """Takes webhooks.

    :ivar posts: by subscription. :ivar answers: by subscription, a status and a body; where there is none, webhooks are
        not answered before `release`.
    """

    def __init__(self) -> None:
        self.posts: dict[str, list[Post]] = {id: [] for id in WEBHOOK}
        self.answers = {"taken": (200, b"{}"), "refused": (500, b"")}
        self._released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                id = self.path.strip("/")
                body = self.rfile.read(int(self.headers["content-length"]))
                signature = dict(part.split("=", 1) for part in self.headers["webhook-signature"].split(","))
                receiver.posts[id].append(Post(body, signature))
                if id not in receiver.answers:
                    receiver._released.wait()
                    return  # the server that sent it was killed long ago
                status, answer = receiver.answers[id]
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def release(self) -> None:
        self._released.set()


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.release()
        receiver.server.shutdown()
        thread.join()
        receiver.server.server_close()


def subscriptions(server: Server) -> str:
    return f"{server.url}/__ds/subscriptions"


def shown(server: Server) -> dict[str, Any]:
    """Everything that clients see of the subscriptions, and the published keys."""
    found = {id: http("GET", f"{subscriptions(server)}/{id}").json() for id in (*PULL_WAKE, *WEBHOOK)}
    return {**found, "keys": http("GET", f"{server.url}/__ds/jwks.json").json()}


def stored(data: Path) -> dict[str, tuple[Subscription, dict[str, Link]]]:
    """The state that the killed server has left."""
    storage = DirectoryStorage(data)
    try:
        return {found[0].id: found for found in subscription_store.load(storage.shards[0])}
    finally:
        storage.close()


def append(server: Server, path: str, message: object) -> str:
    """Append a message. Returns the offset after it."""
    answer = http("POST", f"{server.url}/{path}", json=message)
    assert answer.status_code == 204
    return answer.headers["stream-next-offset"]


def ask(server: Server, id: str, action: str, token: str = "", **body: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return http("POST", f"{subscriptions(server)}/{id}/{action}", json=body, headers=headers)


def notified(server: Server, id: str, generation: int) -> bool:
    events = http("GET", f"{server.url}/wakes").json()
    return any((event["subscription_id"], event["generation"]) == (id, generation) for event in events)


def verify(post: Post, keys: dict[str, Any]) -> None:
    (key,) = (key for key in keys["keys"] if key["kid"] == post.signature["kid"])
    public, signed = (base64.urlsafe_b64decode(f"{text}==") for text in (key["x"], post.signature["ed25519"]))
    Ed25519PublicKey.from_public_bytes(public).verify(signed, f"{post.signature['t']}.".encode() + post.body)


@pytest.mark.long
def test_a_killed_server_goes_on_with_every_subscription(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ("--data", str(data), "--webhook-loopback")
    server = Server(*options)
    port = ("--port", str(server.port))
    try:
        with receiving() as receiver:
            ends: dict[str, tuple[str, str]] = {}
            http("PUT", f"{server.url}/wakes", headers=JSON)
            for id in (*PULL_WAKE, *WEBHOOK):
                kind: dict[str, object] = {"type": "pull-wake", "wake_stream": "wakes"}
                if id in WEBHOOK:
                    kind = {"type": "webhook", "webhook": {"url": f"{receiver.url}/{id}"}}
                body = {"pattern": f"{id}/*", "lease_ttl_ms": 600_000, **kind}
                assert http("PUT", f"{subscriptions(server)}/{id}", json=body).status_code == 201
                http("PUT", f"{server.url}/{id}/x", headers=JSON)
                ends[id] = append(server, f"{id}/x", 1), append(server, f"{id}/x", 2)

            def half(id: str) -> list[dict[str, str]]:
                return [{"stream": f"{id}/x", "offset": ends[id][0]}]

            def whole(id: str) -> list[dict[str, str]]:
                return [{"stream": f"{id}/x", "offset": ends[id][1]}]

            # Worker one does half of the work. Worker two has claimed the rest.
            until(lambda: notified(server, "claimed", 1))
            one = ask(server, "claimed", "claim", worker="one").json()
            of_one = {"wake_id": one["wake_id"], "generation": one["generation"]}
            answer = ask(server, "claimed", "ack", one["token"], **of_one, acks=half("claimed"), done=True)
            assert answer.json() == {"ok": True, "next_wake": True}
            two = ask(server, "claimed", "claim", worker="two").json()
            of_two = {"wake_id": two["wake_id"], "generation": two["generation"]}
            # Nobody claims this.
            until(lambda: notified(server, "waiting", 1))
            # The worker has called back, and is working.
            until(lambda: bool(receiver.posts["taken"]))
            (taken,) = receiver.posts["taken"]
            assert ask(server, "taken", "callback", taken.token, **taken.wake, acks=half("taken")).status_code == 200
            # The first was refused, and is due again. The second is being posted.
            until(lambda: http("GET", f"{subscriptions(server)}/refused").json()["status"] == "failed")
            until(lambda: bool(receiver.posts["held"]))
            before = shown(server)
            first: dict[str, tuple[Subscription, dict[str, Link]]] = {}

            for _ in range(2):
                server.kill()
                left = stored(data)
                subscription = {id: found for id, (found, _) in left.items()}
                first = first or left
                for id in ("claimed", "waiting", "taken"):
                    assert left[id] == first[id]
                assert (subscription["claimed"].holder, subscription["claimed"].generation) == ("two", 2)
                assert subscription["claimed"].lease_until is not None
                assert subscription["refused"].retries > 0
                due, count = subscription["refused"].next_attempt_at, {id: len(receiver.posts[id]) for id in WEBHOOK}

                server = Server(*options, *port)
                assert shown(server) == before
                # Both are posted again as the same wake, long before their leases are over; one of them when it is due.
                until(lambda count=count: all(len(receiver.posts[id]) > count[id] for id in ("refused", "held")))  # type: ignore[misc]
                again = {id: receiver.posts[id][count[id]] for id in ("refused", "held")}
                assert due is None or int(again["refused"].signature["t"]) >= int(due)
                for id, post in again.items():
                    assert post.wake == {"wake_id": subscription[id].wake_id, "generation": 1}
                    verify(post, before["keys"])

            busy = ask(server, "claimed", "claim", worker="three")
            assert busy.json()["error"] | {"message": ""} == {
                "code": "ALREADY_CLAIMED",
                "message": "",
                "current_holder": "two",
                "generation": 2,
            }
            late = ask(server, "claimed", "ack", one["token"], **of_one, acks=whole("claimed"))
            assert (late.status_code, late.json()["error"]["code"]) == (409, "FENCED")
            answer = ask(server, "claimed", "ack", two["token"], **of_two, acks=whole("claimed"), done=True)
            assert answer.json() == {"ok": True, "next_wake": False}
            claimed = ask(server, "waiting", "claim", worker="one").json()
            assert (claimed["wake_id"], claimed["generation"]) == (first["waiting"][0].wake_id, 1)
            done = {"acks": whole("taken"), "done": True}
            answer = ask(server, "taken", "callback", taken.token, **taken.wake, **done)
            assert answer.json() == {"ok": True, "next_wake": False}
            assert len(receiver.posts["taken"]) == 1, "its worker was at it all the time"
            receiver.answers["refused"] = 200, b'{"done":true}'
            until(lambda: http("GET", f"{subscriptions(server)}/refused").json()["status"] == "active")
            (link,) = http("GET", f"{subscriptions(server)}/refused").json()["streams"]
            assert link["acked_offset"] == ends["refused"][1]
    finally:
        if server.process.poll() is None:
            server.kill()


def test_a_rotation_of_keys_survives_restarts(tmp_path: Path) -> None:
    def published(*options: str) -> tuple[list[str], str]:
        """The names of the public keys, and the name of the key that signs."""
        with serving("--data", str(tmp_path), "--webhook-loopback", *options) as server:
            keys = http("GET", f"{server.url}/__ds/jwks.json").json()["keys"]
            body = {"type": "webhook", "webhook": {"url": "http://127.0.0.1:9/"}, "pattern": "a/*"}
            shown = http("PUT", f"{subscriptions(server)}/s", json=body).json()
            return [key["kid"] for key in keys], shown["webhook"]["signing"]["kid"]

    (old,), signing = published()
    assert signing == old
    both, signing = published("--rotate-keys")
    assert len(set(both)) == 2
    assert both[0] == signing == old, "caches have the old key only, so it signs on"
    assert published() == published("--rotate-keys") == (both, old), "a rotation is under way"
