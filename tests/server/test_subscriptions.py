"""Each step of a subscription, without a server: the transitions, and what is refused."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from opslog.server.protocol.offsets import format_offset
from opslog.server.subscriptions import globs
from opslog.server.subscriptions import subscription as subscriptions
from opslog.server.subscriptions.subscription import Ack, Config, End, Link, Subscription, SubscriptionRefused
from opslog.server.subscriptions.webhook_keys import JWKS_SECONDS, TOKEN_SECONDS, Keys, Secret, rotated

CONFIG = Config("webhook", "a/*", (), "https://hooks.example/", None, 2000, None)
PULL = Config("pull-wake", "a/*", (), None, "wakes", 2000, None)
NEW = Subscription("s", CONFIG, "2026-11-20T12:00:00Z", "http://here/")
ENDS = {"a/x": format_offset(10)}


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("events/*", "events/a", True),
        ("events/*", "events/a/b", False),
        ("events/*", "events", False),
        ("**", "a/b/c", True),
        ("a/**", "a", True),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/z", "a/b/c", False),
        ("**/**/x", "x", True),
        ("a/%2A", "a/*", True),
        ("a/%2a", "a/b", False),
        ("a.c", "abc", False),
        ("a*", "ab", False),
        ("%2A%2a", "**", True),
        ("**/a/" * 100 + "b", "/".join("a" * 250), False),
        ("**/*/" * 100 + "a", "/".join("a" * 250), True),
    ],
)
def test_patterns(pattern: str, path: str, expected: bool) -> None:
    assert globs.matches(pattern, path) is expected


def naive(pattern: list[str], path: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return naive(pattern[1:], path) or (any(path[:1]) and naive(pattern, path[1:]))
    one = path[:1] == pattern[:1] or (pattern[0] == "*" and any(path[:1]))
    return one and naive(pattern[1:], path[1:])


@given(
    st.lists(st.sampled_from(["*", "**", "a", "b", ""]), min_size=1, max_size=6),
    st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=1, max_size=6),
)
def test_patterns_mean_what_the_definition_says(pattern: list[str], path: list[str]) -> None:
    assert globs.matches("/".join(pattern), "/".join(path)) is naive(pattern, path)


def test_a_wake_is_a_new_generation_with_a_lease() -> None:
    woken = subscriptions.wake(NEW, "w_1", ENDS, now=100.0)
    assert (woken.generation, woken.wake_id, woken.due) == (1, "w_1", 102.0)
    again = subscriptions.wake(subscriptions.released(woken), "w_2", ENDS, now=200.0)
    assert (again.generation, again.wake_id) == (2, "w_2")


def test_a_pull_wake_has_its_lease_from_the_claim() -> None:
    subscription = Subscription("s", PULL, "", "")
    woken = subscriptions.wake(subscription, "w_1", ENDS, now=100.0)
    assert woken.due is None
    claimed = subscriptions.claimed(woken, "worker", now=150.0)
    assert (claimed.holder, claimed.due) == ("worker", 152.0)
    with pytest.raises(SubscriptionRefused) as refused:
        subscriptions.claimed(claimed, "other", now=151.0)
    assert (refused.value.code, refused.value.known) == (
        "ALREADY_CLAIMED",
        {"current_holder": "worker", "generation": 1},
    )


def test_a_new_process_posts_again_what_may_not_have_arrived() -> None:
    posting = subscriptions.wake(NEW, "w_1", ENDS, now=100.0)
    again = subscriptions.taken_up(posting, now=101.0)
    assert (again.wake_id, again.next_attempt_at, again.lease_until) == ("w_1", 101.0, None)
    for known in (
        NEW,
        subscriptions.delivered(posting),
        subscriptions.failed(posting, 100.0, 0.5),
        subscriptions.claimed(subscriptions.wake(Subscription("s", PULL, "", ""), "w_1", ENDS, 0.0), "worker", 100.0),
    ):
        assert subscriptions.taken_up(known, now=101.0) == known


def test_only_pull_wakes_wait_for_a_claim() -> None:
    named = replace(NEW, config=replace(CONFIG, wake_stream="wakes"))
    assert not subscriptions.wake(named, "w_1", ENDS, 0.0).waits_for_claim
    woken = subscriptions.wake(Subscription("s", PULL, "", ""), "w_1", ENDS, 0.0)
    assert woken.waits_for_claim
    assert not subscriptions.claimed(woken, "worker", 0.0).waits_for_claim


def test_retries_double_up_to_a_minute_and_vary_by_a_fifth() -> None:
    subscription = subscriptions.wake(NEW, "w_1", ENDS, now=0.0)
    middle: list[float] = []
    least: list[float] = []
    most: list[float] = []
    for _ in range(9):
        for chance, delays in ((0.5, middle), (0.0, least), (1.0, most)):
            delays.append(subscriptions.failed(subscription, 0.0, chance).next_attempt_at or 0.0)
        subscription = subscriptions.failed(subscription, 0.0, 0.5)
    assert middle == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert least == pytest.approx([0.8 * delay for delay in middle])
    assert most == pytest.approx([1.2 * delay for delay in middle])
    assert subscription.status == "failed"
    assert subscription.lease_until is None, "nobody has it, so no lease may end the wait"
    assert subscriptions.delivered(subscription).status == "active"


def test_only_the_holder_of_the_current_wake_is_accepted() -> None:
    woken = subscriptions.wake(NEW, "w_1", ENDS, now=0.0)
    subscriptions.check_fence(woken, 1, 1, "w_1")
    for token_generation, generation, wake_id in ((0, 1, "w_1"), (1, 0, "w_1"), (1, 1, "w_0"), (1, 1, None)):
        with pytest.raises(SubscriptionRefused, match="this wake is over"):
            subscriptions.check_fence(woken, token_generation, generation, wake_id)
    with pytest.raises(SubscriptionRefused):
        subscriptions.check_fence(subscriptions.released(woken), 1, 1, None)


@pytest.mark.parametrize(
    ("acks", "problem"),
    [
        ([Ack("b", format_offset(1))], "not a stream of this subscription"),
        ([Ack("a/x", "-1")], "not an offset"),
        ([Ack("a/x", format_offset(4))], "acknowledged up to"),
        ([Ack("a/x", format_offset(11))], "ends at"),
        ([Ack("a/x", format_offset(9)), Ack("a/x", format_offset(8))], "acknowledged up to"),
        ([Ack("a/x", format_offset(7)), Ack("b", format_offset(1))], "not a stream of this subscription"),
    ],
)
def test_impossible_acks_are_refused_as_a_whole(acks: list[Ack], problem: str) -> None:
    links = {"a/x": Link("a/x", False, True, format_offset(5), 1)}
    with pytest.raises(SubscriptionRefused, match=problem) as refused:
        subscriptions.acknowledged(links, {"a/x": End(1, ENDS["a/x"])}, acks, {"a/x": 1})
    assert refused.value.code == "INVALID_OFFSET"


def test_acks_move_cursors() -> None:
    links = {"a/x": Link("a/x", False, True, "-1", 1)}
    ends = {"a/x": End(1, ENDS["a/x"])}
    for sent in ({"a/x": 1}, {"a/x": 0}, {}):
        moved = subscriptions.acknowledged(links, ends, [Ack("a/x", format_offset(10))], sent)
        assert moved["a/x"].acked_offset == format_offset(10)
    assert subscriptions.behind("-1", format_offset(1))
    assert not subscriptions.behind("-1", format_offset(0)), "an empty stream has nothing"


def test_links_change_with_their_streams() -> None:
    assert subscriptions.refreshed(None, "a/x", matched=False, stream_id=7) is None
    found = subscriptions.refreshed(None, "a/x", matched=True, stream_id=7)
    assert found == Link("a/x", explicit=False, glob=True, acked_offset="-1", stream_id=7)
    assert subscriptions.refreshed(found, "a/x", matched=True, stream_id=None) is None
    read = Link("a/x", True, True, format_offset(9), 7)
    assert subscriptions.refreshed(read, "a/x", matched=True, stream_id=7) == read
    gone = subscriptions.refreshed(read, "a/x", matched=True, stream_id=None)
    assert gone == Link("a/x", True, False, format_offset(0), 0), "an explicit link outlives its stream"
    again = subscriptions.refreshed(gone, "a/x", matched=False, stream_id=8)
    assert again == Link("a/x", True, False, "-1", 8), "a feed has no offset 0"
    anew = subscriptions.refreshed(read, "a/x", matched=True, stream_id=8)
    assert anew == Link("a/x", True, True, "-1", 8), "of another stream under its path nothing is processed"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"type": "email"}, "type is"),
        ({"pattern": 7}, "pattern is a string"),
        ({"pattern": None}, "a pattern, or streams"),
        ({"pattern": "*/" * 750 + "ab"}, "at most 1500 characters"),
        ({"streams": "a"}, "streams is an array"),
        ({"streams": ["/"]}, "streams is an array"),
        ({"lease_ttl_ms": 999}, "lease_ttl_ms"),
        ({"lease_ttl_ms": 600_001}, "lease_ttl_ms"),
        ({"lease_ttl_ms": True}, "lease_ttl_ms"),
        ({"lease_ttl_ms": 2000.0}, "lease_ttl_ms"),
        ({"webhook": "https://x"}, "has a webhook.url"),
        ({"type": "pull-wake"}, "has a wake_stream"),
    ],
)
def test_configurations_that_make_no_sense(change: dict[str, object], problem: str) -> None:
    body = {"type": "webhook", "pattern": "a/*", "webhook": {"url": "https://hooks.example/"}, **change}
    with pytest.raises(SubscriptionRefused, match=problem) as refused:
        subscriptions.parse_config(body)
    assert (refused.value.status, refused.value.code) == (400, "INVALID_REQUEST")


def test_the_order_of_streams_and_slashes_around_them_make_no_other_configuration() -> None:
    one, other = (
        subscriptions.parse_config({"type": "pull-wake", "streams": streams, "wake_stream": "w"})
        for streams in (["/b", "a", "a"], ["a/", "b"])
    )
    assert one == other


def test_signatures_and_tokens() -> None:
    keys = Keys([Secret(b"s" * 32, 1000.0)])
    assert Keys([Secret(b"s" * 32, 0.0)]).kid(1.0) == keys.kid(1000.0)
    signature = dict(part.split("=", 1) for part in keys.signature(b"body", 1234.9).split(","))
    (jwk,) = keys.jwks(1000.0)["keys"]
    assert (signature["t"], signature["kid"]) == ("1234", jwk["kid"])
    raw = (base64.urlsafe_b64decode(text + "==") for text in (jwk["x"], signature["ed25519"]))
    Ed25519PublicKey.from_public_bytes(next(raw)).verify(next(raw), b"1234.body")
    token = keys.token("s", 3, 1000.0)
    assert keys.generation(token, "s", 1000.0 + TOKEN_SECONDS) == 3
    forged = base64.urlsafe_b64encode(json.dumps({"sub": "s", "generation": 9, "exp": 9e9}).encode()).decode()
    for bad, id, now, code in (
        (token, "s", 1001.0 + TOKEN_SECONDS, "TOKEN_EXPIRED"),
        (token, "t", 1000.0, "TOKEN_INVALID"),
        (f"{forged}.{token.partition('.')[2]}", "s", 1000.0, "TOKEN_INVALID"),
        ("é.ü", "s", 1000.0, "TOKEN_INVALID"),
        (Keys([Secret(b"t" * 32, 0.0)]).token("s", 3, 1000.0), "s", 1000.0, "TOKEN_INVALID"),
    ):
        with pytest.raises(SubscriptionRefused) as refused:
            keys.generation(bad, id, now)
        assert (refused.value.status, refused.value.code) == (401, code)


def test_a_rotation_publishes_a_key_before_it_signs_and_for_an_hour_after() -> None:
    start, begun = 10_000.0, 10_000.0 + JWKS_SECONDS
    first = rotated((), b"1" * 32, 500.0)
    secrets = rotated(first, b"2" * 32, start)
    keys = Keys(secrets)
    old, new = Keys(first).kid(start), Keys(secrets[1:]).kid(begun)

    def published(now: float) -> list[str]:
        return [jwk["kid"] for jwk in keys.jwks(now)["keys"]]

    def signing(now: float) -> str:
        assert f"kid={keys.kid(now)}," in keys.signature(b"", now)
        return keys.kid(now)

    gone = begun + TOKEN_SECONDS + 1
    times = (400.0, start, begun - 1, begun, gone - 1, gone)
    assert [signing(now) for now in times] == [old, old, old, new, new, new]
    assert [published(now) for now in times] == [[old, new]] * 5 + [[new]]
    last = keys.token("s", 3, begun - 1)
    assert keys.generation(last, "s", begun - 1 + TOKEN_SECONDS) == 3, "a token outlives the key that it was made with"
    assert keys.generation(keys.token("s", 4, begun), "s", begun) == 4
    with pytest.raises(SubscriptionRefused):
        keys.generation(last, "s", gone)


def test_at_most_two_keys_are_in_use() -> None:
    secrets = rotated(rotated((), b"1" * 32, 0.0), b"2" * 32, 1000.0)
    end = 1000.0 + JWKS_SECONDS + TOKEN_SECONDS
    assert rotated(secrets, b"3" * 32, end) == secrets
    assert [secret.seed[:1] for secret in rotated(secrets, b"3" * 32, end + 1)] == [b"2", b"3"]
