"""Subscriptions at work: with streams, timers and restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from opslog.doors.access import Receive, Scope, Send
from opslog.environment import REAL, Environment
from opslog.server.http import requests
from opslog.server.http.budget import Budget
from opslog.server.http.subscription_routes import SubscriptionRoutes, route_of
from opslog.server.options import Options
from opslog.server.protocol.creation import Create
from opslog.server.storage.memory import MemoryStorage
from opslog.server.streams import Streams
from opslog.server.subscriptions import store as subscription_store
from opslog.server.subscriptions.service import Subscriptions
from opslog.server.subscriptions.subscription import Config, Subscription
from opslog.server.subscriptions.webhook_delivery import Delivery
from tests.support.asgi import Caller

ROOT = "http://here/v1/stream/__ds/subscriptions"


class Hook(Delivery):
    """Receives webhooks.

    :ivar bodies: the bodies of the webhooks that came.
    :ivar outcomes: what becomes of each, the last one for ever: done, taken, or an error.
    """

    def __init__(self, *outcomes: bool | Exception) -> None:
        super().__init__(allow_loopback=True)
        self.bodies: list[dict[str, Any]] = []
        self.outcomes = list(outcomes)

    async def post(self, url: str, body: bytes, signature: str) -> bool:
        self.bodies.append(json.loads(body))
        outcome = self.outcomes[0] if len(self.outcomes) == 1 else self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Slow(Hook):
    """Answers no webhook before it may.

    :ivar may_answer: set this.
    :ivar ended: how many posts were ended before their answer.
    """

    def __init__(self, *outcomes: bool | Exception) -> None:
        super().__init__(*outcomes)
        self.may_answer = asyncio.Event()
        self.ended = 0

    async def post(self, url: str, body: bytes, signature: str) -> bool:
        done = await super().post(url, body, signature)
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.ended += 1
            raise
        return done


class Here:
    """A server without a network: its streams, and a client for the paths below ``__ds``."""

    def __init__(self, storage: MemoryStorage, hook: Delivery, environment: Environment) -> None:
        self.streams = Streams(storage, environment)
        self.service = Subscriptions(self.streams, hook, environment)
        options = Options()
        routes = SubscriptionRoutes(self.service, options, environment.time, Budget(2**20))

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await routes(route_of(scope, options.root), None, scope, receive, send)

        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url=f"{ROOT}/")

    async def create(self, path: str, *messages: object) -> None:
        await self.streams.create(Create(path=path, content_type="application/json"))
        for message in messages:
            await self.append(path, message)

    async def append(self, path: str, message: object) -> None:
        given = {b"content-type": "application/json"}
        await self.streams.append(requests.append_of(path, given, json.dumps([message]).encode()))

    async def messages(self, path: str) -> list[Any]:
        stream = self.streams.stream(path)
        records = self.streams.storage.shards[0].records(stream.id, 0, stream.tail, 1 << 20)
        return [json.loads(record.rstrip(b",")) for _, record in records]

    async def tail(self, path: str) -> int:
        return self.streams.stream(path).tail

    async def put(self, id: str, **body: object) -> httpx.Response:
        return await self.http.put(f"{ROOT}/{id}", json=body)

    async def webhook(self, id: str = "s", **body: object) -> httpx.Response:
        return await self.put(id, **{"type": "webhook", "webhook": {"url": "http://127.0.0.1:9/"}, **body})

    async def post(self, action: str, token: str = "", id: str = "s", **body: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return await self.http.post(f"{ROOT}/{id}/{action}", json=body, headers=headers)

    async def links(self, id: str = "s") -> dict[str, tuple[str, str]]:
        shown = (await self.http.get(f"{ROOT}/{id}")).json()
        return {link["path"]: (link["link_type"], link["acked_offset"]) for link in shown["streams"]}

    async def status(self, id: str = "s") -> str:
        return str((await self.http.get(f"{ROOT}/{id}")).json()["status"])


@asynccontextmanager
async def running(
    hook: Delivery | None = None, storage: MemoryStorage | None = None, environment: Environment = REAL
) -> AsyncIterator[Here]:
    here = Here(storage or MemoryStorage(), hook or Hook(False), environment)
    await here.streams.start()
    await here.service.start()
    try:
        yield here
    finally:
        await here.service.stop()
        await here.streams.stop()
        await here.http.aclose()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def settled(here: Here) -> None:
    """Wait until nothing is under way."""
    await until(lambda: not here.service._background.tasks)


def case(story: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Runs a test that is a coroutine."""

    def test() -> None:
        asyncio.run(story())  # type: ignore[arg-type]  # they are coroutines

    test.__name__ = story.__name__
    test.__doc__ = story.__doc__
    return test


@case
async def test_existing_messages_count_as_processed() -> None:
    hook = Hook(True)
    async with running(hook) as here:
        await here.create("a/old", 1, 2)
        await here.create("b/other", 1)
        assert (await here.webhook(pattern="a/*", streams=["b/other", "b/not-yet"])).status_code == 201
        end = f"{'0' * 16}_{await here.tail('a/old'):016}"
        links = await here.links()
        assert links["a/old"] == ("glob", end)
        assert links["b/not-yet"] == ("explicit", f"{'0' * 16}_{'0' * 16}")
        await settled(here)
        assert not hook.bodies
        await here.create("a/new", "x")
        await here.append("b/other", "y")
        await until(lambda: bool(hook.bodies))
        await settled(here)
        notified = [stream["path"] for body in hook.bodies for stream in body["streams"] if stream["has_pending"]]
        assert sorted(notified) == ["a/new", "b/other"]


@case
async def test_work_that_arrives_during_a_wake_is_a_wake_of_its_own() -> None:
    hook = Hook(False)
    async with running(hook) as here:
        await here.webhook(pattern="a/*")
        await here.create("a/x", 1)
        await until(lambda: bool(hook.bodies))
        await here.append("a/x", 2)
        await settled(here)
        (body,) = hook.bodies
        (stream,) = body["streams"]
        wake = {"wake_id": body["wake_id"], "generation": body["generation"]}
        acks = [{"stream": "a/x", "offset": stream["tail_offset"]}]
        answer = await here.post("callback", body["callback_token"], **wake, acks=acks, done=True)
        assert answer.json() == {"ok": True, "next_wake": True}
        await until(lambda: len(hook.bodies) == 2)
        assert hook.bodies[1]["generation"] == body["generation"] + 1
        stale = await here.post("callback", body["callback_token"], **wake, done=True)
        assert (stale.status_code, stale.json()["error"]["code"]) == (409, "FENCED")


@case
async def test_a_lease_that_is_over_wakes_again() -> None:
    hook = Hook(False, True)
    async with running(hook) as here:
        await here.webhook(pattern="a/*", lease_ttl_ms=1000)
        await here.create("a/x", 1)
        await until(lambda: len(hook.bodies) == 2)
        assert hook.bodies[0]["wake_id"] != hook.bodies[1]["wake_id"]
        await settled(here)
        assert (await here.links())["a/x"][1] == hook.bodies[1]["streams"][0]["tail_offset"]


@case
async def test_a_webhook_whose_lease_is_over_is_not_posted_any_longer() -> None:
    """Its answer does not count any more. If many receivers do not answer, no subscription has two connections."""
    hook = Slow(True)
    async with running(hook) as here:
        await here.webhook(pattern="a/*", lease_ttl_ms=1000)
        await here.create("a/x", 1)
        await until(lambda: len(hook.bodies) == 2)
        hook.may_answer.set()
        await settled(here)
        assert (len(hook.bodies), hook.ended) == (2, 1)
        assert (await here.links())["a/x"][1] == hook.bodies[1]["streams"][0]["tail_offset"]


@case
async def test_done_acknowledges_nothing_of_a_stream_that_took_the_path_meanwhile() -> None:
    hook = Slow(True)
    async with running(hook) as here:
        await here.webhook(pattern="a/*")
        await here.create("a/x", "a long message of the first stream")
        await until(lambda: bool(hook.bodies))
        await here.streams.delete("a/x")
        await here.create("a/x", "short")
        hook.may_answer.set()
        await settled(here)
        _, body = hook.bodies
        end = f"{'0' * 16}_{await here.tail('a/x'):016}"
        (stream,) = body["streams"]
        assert (stream["acked_offset"], stream["tail_offset"], stream["has_pending"]) == ("-1", end, True)
        assert (await here.links())["a/x"] == ("glob", end)


@case
async def test_a_webhook_that_fails_is_tried_again_as_the_same_wake_with_what_came_since() -> None:
    hook = Hook(OSError("refused"), True)
    async with running(hook) as here:
        await here.webhook(pattern="a/*")
        await here.create("a/x", 1)
        await until(lambda: bool(hook.bodies))
        await settled(here)
        assert await here.status() == "failed"
        await here.append("a/x", 2)
        await until(lambda: len(hook.bodies) == 2)
        await settled(here)
        first, second = hook.bodies
        assert first["wake_id"] == second["wake_id"]
        assert second["streams"][0]["tail_offset"] > first["streams"][0]["tail_offset"]
        assert await here.status() == "active"
        assert (await here.links())["a/x"][1] == second["streams"][0]["tail_offset"]


@case
async def test_a_callback_while_a_retry_is_due_ends_the_retries() -> None:
    """The receiver accepted the wake; only its answer was lost."""
    hook = Hook(OSError("reset"))
    async with running(hook) as here:
        await here.webhook(pattern="a/*")
        await here.create("a/x", 1)
        await until(lambda: bool(hook.bodies))
        await settled(here)
        body = hook.bodies[0]
        acks = [{"stream": "a/x", "offset": body["streams"][0]["tail_offset"]}]
        wake = {"wake_id": body["wake_id"], "generation": body["generation"]}
        answer = await here.post("callback", body["callback_token"], **wake, acks=acks, done=True)
        assert answer.json() == {"ok": True, "next_wake": False}
        assert await here.status() == "active"
        assert here.service.get("s").timer is None


@case
async def test_a_restart_keeps_cursors_keys_leases_and_retries() -> None:
    storage, hook = MemoryStorage(), Hook(False)
    async with running(hook, storage) as here:
        await here.webhook(pattern="a/*", lease_ttl_ms=600_000)
        await here.create("a/x", 1)
        await until(lambda: bool(hook.bodies))
        await settled(here)
        kid, before = here.service.keys.kid(REAL.time()), here.service.get("s").subscription
        await here.webhook("r", pattern="r/*")
        hook.outcomes = [OSError("refused")]
        await here.create("r/x", 1)
        await until(lambda: len(hook.bodies) == 2)
        await settled(here)
        retry = here.service.get("r").subscription
    hook = Hook(True)
    async with running(hook, storage) as here:
        assert here.service.keys.kid(REAL.time()) == kid
        assert here.service.get("s").subscription == before
        assert here.service.get("r").subscription == retry
        assert retry.next_attempt_at is not None
        assert (await here.webhook(pattern="a/*", lease_ttl_ms=600_000)).status_code == 200
        body: dict[str, Any] = {"wake_id": before.wake_id, "generation": before.generation, "done": True}
        token = here.service.keys.token("s", before.generation, REAL.time())
        answer = await here.post("callback", token, **body)
        assert answer.json() == {"ok": True, "next_wake": True}
        await until(lambda: {body["subscription_id"] for body in hook.bodies} == {"r", "s"})


@case
async def test_appends_that_a_crash_kept_from_being_announced_are_found_at_the_start() -> None:
    storage, hook = MemoryStorage(), Hook(True)
    async with running(hook, storage) as here:
        await here.create("a/old", 1)
        await here.create("a/gone", 1)
        await here.webhook(pattern="a/*", streams=["b/again"])
        await here.create("b/again", 1)
        await until(lambda: bool(hook.bodies))
        await settled(here)
    # A server without subscriptions behaves like one with subscriptions that crashed right after each commit.
    streams = Streams(storage)
    here = Here(storage, hook, REAL)
    await streams.start()
    here.streams = streams
    await here.create("a/new", 1)
    await here.append("a/old", 2)
    await streams.delete("a/gone")
    await streams.delete("b/again")
    await here.create("b/again", "another stream")
    await streams.stop()
    hook = Hook(True)
    async with running(hook, storage) as here:
        await until(lambda: bool(hook.bodies))
        await settled(here)
        pending = {stream["path"] for body in hook.bodies for stream in body["streams"] if stream["has_pending"]}
        assert pending == {"a/new", "a/old", "b/again"}
        assert "a/gone" not in await here.links()


@case
async def test_workers_share_a_pull_wake() -> None:
    async with running() as here:
        await here.create("wakes")
        await here.put("s", type="pull-wake", pattern="**", wake_stream="wakes", lease_ttl_ms=1000)
        nothing = await here.post("claim", worker="one")
        assert nothing.json()["error"]["code"] == "NO_PENDING_WORK"
        await here.create("a/x", 1)
        await settled(here)
        (event,) = await here.messages("wakes")
        assert (event["type"], event["subscription_id"], event["stream"]) == ("wake", "s", "a/x")
        assert "wakes" not in await here.links(), "its own wake events do not wake it"
        claimed = (await here.post("claim", worker="one")).json()
        busy = await here.post("claim", worker="two")
        assert busy.status_code == 409
        assert busy.json()["error"]["current_holder"] == "one"
        # A worker gives up by doing nothing: when its lease is over, the workers are notified again.
        await until(lambda: here.service.get("s").subscription.generation == 2)
        await settled(here)
        assert len(await here.messages("wakes")) == 2
        again = (await here.post("claim", worker="two")).json()
        assert again["generation"] == claimed["generation"] + 1
        wake = {"wake_id": claimed["wake_id"], "generation": claimed["generation"]}
        late = await here.post("ack", claimed["token"], **wake)
        assert late.json()["error"]["code"] == "FENCED"
        wake = {"wake_id": again["wake_id"], "generation": again["generation"]}
        acks = [{"stream": "a/x", "offset": again["streams"][0]["tail_offset"]}]
        assert (await here.post("ack", again["token"], **wake, acks=acks)).json() == {"ok": True, "next_wake": False}
        assert here.service.get("s").subscription.holder == "two", "an ack without done keeps the lease"
        assert (await here.post("release", again["token"], **wake)).status_code == 204
        assert here.service.get("s").subscription.holder is None


@case
async def test_an_ack_of_a_part_of_a_message_is_refused() -> None:
    async with running() as here:
        await here.put("s", type="pull-wake", pattern="a/*", wake_stream="wakes")
        await here.create("a/x")
        given = {b"content-type": "application/json"}
        await here.streams.append(requests.append_of("a/x", given, b'["one", "two"]'))
        claimed = (await here.post("claim", worker="one")).json()
        wake = {"wake_id": claimed["wake_id"], "generation": claimed["generation"]}
        statuses = []
        for position in (3, len('"one",'), len('"one",') + 2, len('"one","two",')):
            acks = [{"stream": "a/x", "offset": f"{'0' * 16}_{position:016}"}]
            answer = await here.post("ack", claimed["token"], **wake, acks=acks)
            statuses.append((answer.status_code, answer.json().get("error", {}).get("code")))
        assert statuses == [(409, "INVALID_OFFSET"), (200, None)] * 2


@case
async def test_a_pattern_of_many_stars_delays_nothing() -> None:
    async with running() as here:
        await here.webhook(pattern="**/a/" * 8 + "b")
        await here.create("/".join("a" * 200), 1)
        assert await here.links() == {}


def test_a_feed_gets_no_events_of_a_subscription_that_an_earlier_version_made(caplog: pytest.LogCaptureFixture) -> None:
    config = Config("pull-wake", "a/*", (), None, "stores/tasks", 30_000, None)
    made = Subscription("old", config, "2026-11-20T12:00:00Z", "http://here/v1/stream/")

    async def run() -> None:
        storage = MemoryStorage()
        async with running(storage=storage) as here:
            await here.streams.transact(lambda transaction: subscription_store.store(transaction, made, {}))
            await here.create("stores/tasks", "the feed")
        async with running(storage=storage) as here:
            await here.create("a/x", 1)
            await settled(here)
            assert here.service.get("old").subscription.waits_for_claim
            assert await here.messages("stores/tasks") == ["the feed"]
            assert (await here.post("claim", id="old", worker="one")).status_code == 200

    asyncio.run(run())
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "'old' has no events in its wake stream 'stores/tasks'" in said


@case
async def test_a_wake_stream_that_is_made_late_gets_its_event() -> None:
    async with running() as here:
        await here.put("s", type="pull-wake", pattern="a/*", wake_stream="wakes")
        await here.create("a/x", 1)
        await settled(here)
        await here.create("wakes")
        await settled(here)
        assert len(await here.messages("wakes")) == 1


@case
async def test_links_made_by_hand() -> None:
    async with running() as here:
        await here.create("a/b/c", 1)
        await here.webhook(pattern="a/**")
        assert (await here.links())["a/b/c"][0] == "glob"
        added = await here.http.post(f"{ROOT}/s/streams", json={"streams": ["a/b/c", "z"]})
        assert added.status_code == 204
        assert {path: kind for path, (kind, _) in (await here.links()).items()} == {
            "a/b/c": "explicit",
            "z": "explicit",
        }
        for path in ("a%2Fb%2Fc", "z", "never-there"):
            assert (await here.http.delete(f"{ROOT}/s/streams/{path}")).status_code == 204
        assert {path: kind for path, (kind, _) in (await here.links()).items()} == {"a/b/c": "glob"}


@case
async def test_a_deleted_subscription_leaves_nothing() -> None:
    storage, hook = MemoryStorage(), Hook(False)
    async with running(hook, storage) as here:
        await here.create("a/old", 1)
        await here.webhook(pattern="a/*")
        await here.create("a/x", 1)
        await until(lambda: bool(hook.bodies))
        await settled(here)
        body = hook.bodies[0]
        for _ in range(2):
            assert (await here.http.delete(f"{ROOT}/s")).status_code == 204
        wake = {"wake_id": body["wake_id"], "generation": body["generation"]}
        late = await here.post("callback", body["callback_token"], **wake, done=True)
        assert late.status_code == 404
        assert [key for key, _ in storage.shards[0].values(b"subscriptions/")] == [b"subscriptions/keys"]
        await here.webhook(pattern="a/*")
        late = await here.post("callback", body["callback_token"], **wake, done=True)
        assert late.json()["error"]["code"] == "FENCED", "a token of its predecessor"


@case
async def test_these_requests_are_refused() -> None:
    async with running() as here:
        await here.webhook(pattern="a/*")
        other = await here.webhook(pattern="b/*")
        assert (other.status_code, other.json()["error"]["code"]) == (409, "SUBSCRIPTION_ALREADY_EXISTS")
        for answer, status, code in (
            (await here.http.get(f"{ROOT}/none"), 404, "SUBSCRIPTION_NOT_FOUND"),
            (await here.http.get("http://here/v1/stream/__ds"), 404, "SUBSCRIPTION_NOT_FOUND"),
            (await here.http.get("http://here/v1/stream/__ds/other"), 404, "SUBSCRIPTION_NOT_FOUND"),
            (await here.http.post(f"{ROOT}/s/other"), 404, "SUBSCRIPTION_NOT_FOUND"),
            (await here.http.put(f"{ROOT}/x", content=b"{"), 400, "INVALID_REQUEST"),
            (await here.http.put(f"{ROOT}/x", content=b"[]"), 400, "INVALID_REQUEST"),
            (await here.http.patch(f"{ROOT}/s"), 405, "INVALID_REQUEST"),
            (await here.http.post(f"{ROOT}/{'i' * 300}/claim"), 400, "INVALID_REQUEST"),
            (await here.post("claim", worker="w"), 400, "INVALID_REQUEST"),
            (await here.post("claim", worker=""), 400, "INVALID_REQUEST"),
            (await here.post("callback"), 401, "TOKEN_INVALID"),
            (await here.post("callback", "nonsense"), 401, "TOKEN_INVALID"),
            (await here.webhook("y", pattern="**", webhook={"url": "http://10.0.0.1/"}), 400, "WEBHOOK_URL_REJECTED"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.request.url
        keys = await here.http.get("http://here/v1/stream/__ds/jwks.json")
        assert keys.headers["cache-control"] == "public, max-age=300"
        assert keys.json() == here.service.keys.jwks(REAL.time())


@case
async def test_a_burst_of_appends_is_one_wake() -> None:
    hook = Hook(False)
    async with running(hook) as here:
        await here.webhook(pattern="**")
        await here.create("a/x")
        await asyncio.gather(*(here.append("a/x", number) for number in range(300)))
        await settled(here)
        assert len(hook.bodies) == 1


def claimed(client: Caller) -> tuple[dict[str, Any], Callable[..., httpx.Response]]:
    """Make a stream `a` that a subscription follows, and claim its wake. Returns the claim, and acknowledges by it."""
    config = {"type": "pull-wake", "streams": ["a"], "wake_stream": "wakes"}
    assert client.put("__ds/subscriptions/s", content=json.dumps(config).encode()).status_code == 201
    client.put("a", content=b"old data", headers={"content-type": "text/plain"})
    claim: dict[str, Any] = client.post("__ds/subscriptions/s/claim", content=b'{"worker":"w"}').json()

    def acknowledge(path: str, offset: str) -> httpx.Response:
        body = {"generation": claim["generation"], "wake_id": claim["wake_id"]}
        return client.post(
            "__ds/subscriptions/s/ack",
            content=json.dumps(body | {"acks": [{"stream": path, "offset": offset}]}).encode(),
            headers={"authorization": f"Bearer {claim['token']}"},
        )

    return claim, acknowledge


@pytest.mark.parametrize("path", ["", "b", "b" * 600])
def test_an_acknowledgement_of_a_stream_that_cannot_be_is_refused(client: Caller, path: str) -> None:
    claim, acknowledge = claimed(client)
    answer = acknowledge(path, claim["streams"][0]["tail_offset"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "INVALID_OFFSET")


def test_an_acknowledgement_is_for_the_stream_that_was_sent(client: Caller) -> None:
    claim, acknowledge = claimed(client)
    (sent,) = claim["streams"]
    client.delete("a")
    client.put("a", content=b"new data", headers={"content-type": "text/plain"})
    answer = acknowledge("a", sent["tail_offset"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "INVALID_OFFSET")
    assert "another stream has taken the path 'a'" in answer.json()["error"]["message"]
    (stream,) = client.get("__ds/subscriptions/s").json()["streams"]
    assert stream["acked_offset"] < sent["tail_offset"]


def test_an_acknowledgement_may_go_beyond_what_was_sent(client: Caller) -> None:
    _, acknowledge = claimed(client)
    answer = client.post("a", content=b", more", headers={"content-type": "text/plain"})
    assert acknowledge("a", answer.headers["stream-next-offset"]).status_code == 200
    (stream,) = client.get("__ds/subscriptions/s").json()["streams"]
    assert stream["acked_offset"] == answer.headers["stream-next-offset"]


@case
async def test_a_callback_is_for_the_stream_that_was_posted() -> None:
    hook = Hook(False)
    async with running(hook) as here:
        await here.webhook(pattern="a/*")
        await here.create("a/x", "old data")
        await until(lambda: bool(hook.bodies))
        await settled(here)
        (body,) = hook.bodies
        await here.streams.delete("a/x")
        await here.create("a/x", "new data")
        await settled(here)
        acks = [{"stream": "a/x", "offset": body["streams"][0]["tail_offset"]}]
        wake = {"wake_id": body["wake_id"], "generation": body["generation"]}
        answer = await here.post("callback", body["callback_token"], **wake, acks=acks)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "INVALID_OFFSET")
        assert (await here.links())["a/x"] == ("glob", "-1")
