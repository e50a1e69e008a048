"""Workers that a server wakes: subscriptions, claims and webhooks, against real servers, against a bad network, and
against strangers."""

from __future__ import annotations

import base64
import json
import math
import pickle
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Thread
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from opslog.environment import Environment
from opslog.errors import UsageError
from opslog.server.client import (
    AlreadyClaimedError,
    NoPendingWorkError,
    OutcomeUnknownError,
    PendingStream,
    ProtocolError,
    RequestRefusedError,
    Retrying,
    SubscriptionConflictError,
    SubscriptionNotFoundError,
    UnavailableError,
    WakeLostError,
    WebhookError,
)
from tests.server.client.driving import KINDS, connected
from tests.support.node_streams import reference_server
from tests.support.servers import serving


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["opslog", "reference"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "opslog":
        with serving("--memory", "--long-poll-seconds", "0.3", "--webhook-loopback") as server:
            yield server.url
        return
    with reference_server(longPollTimeout=300, webhooks=True) as url:
        yield f"{url}/v1/stream"


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A folder and an id for this test alone."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)


def woken(client: Any, path: str, offset: str) -> str:
    """Wait for the next event in a wake stream. Returns the offset after it."""
    for batch in client.stream(path).follow(offset, live="long-poll"):
        if batch.messages:
            return str(batch.next_offset)
    raise AssertionError("the stream ended")


def test_a_worker_claims_reads_and_finishes(kind: str, address: str, name: str) -> None:
    with connected(kind, address) as client, connected("threads", address) as other:
        client.stream(f"{name}/a").create("application/json")
        end = client.stream(f"{name}-wakes").create("application/json").next_offset
        subscription = client.subscription(f"{name}/ä")
        made = subscription.create(
            pattern=f"{name}/*", wake_stream=f"{name}-wakes", lease_seconds=60, description="a worker"
        )
        assert (made.id, made.type, made.pattern, made.status) == (f"{name}/ä", "pull-wake", f"{name}/*", "active")
        assert (made.wake_stream, made.webhook_url, made.lease_seconds) == (f"{name}-wakes", None, 60.0)
        assert [(stream.path, stream.link_type) for stream in made.streams] == [(f"{name}/a", "glob")]
        assert subscription.get() == made
        with pytest.raises(NoPendingWorkError):
            subscription.claim("w1")

        client.stream(f"{name}/a").append({"n": 1}, {"n": 2})
        end = woken(other, f"{name}-wakes", end)
        claim = subscription.claim("w1")
        (stream,) = claim.streams
        assert isinstance(stream, PendingStream)
        assert (stream.path, stream.has_pending) == (f"{name}/a", True)
        (batch,) = other.stream(stream.path).read(stream.acked_offset)
        assert batch.messages == [{"n": 1}, {"n": 2}]
        with pytest.raises(AlreadyClaimedError, match="'w1'") as raised:
            subscription.claim("w2")
        assert raised.value.holder == "w1"
        claim.acknowledge()
        assert claim.acknowledge({stream.path: batch.next_offset}) is False
        assert subscription.get().streams[0].acked_offset == batch.next_offset

        client.stream(f"{name}/a").append({"n": 3})
        assert claim.acknowledge(done=True) is True
        with pytest.raises(WakeLostError, match="stop, and wait for the next one"):
            claim.acknowledge()
        end = woken(other, f"{name}-wakes", end)
        with subscription.claim("w2") as second:
            assert second.wake.generation > claim.wake.generation
            assert second.finish() is False
        assert second.ended
        with pytest.raises(NoPendingWorkError):
            subscription.claim("w1")


def test_a_claim_that_is_left_is_released(kind: str, address: str, name: str) -> None:
    with connected(kind, address) as client, connected("threads", address) as other:
        client.stream(f"{name}/a").create("application/json")
        end = client.stream(f"{name}-wakes").create("application/json").next_offset
        subscription = client.subscription(name)
        subscription.create(streams=[f"{name}/a"], wake_stream=f"{name}-wakes")
        client.stream(f"{name}/a").append(1)
        end = woken(other, f"{name}-wakes", end)
        with pytest.raises(ZeroDivisionError), subscription.claim("w1"):
            1 / 0  # noqa: B018  (it raises)
        end = woken(other, f"{name}-wakes", end)
        claim = subscription.claim("w2")
        claim.release()
        with pytest.raises(WakeLostError):
            claim.release()
        woken(other, f"{name}-wakes", end)
        claim = subscription.claim("w3")
        subscription.delete()
        with pytest.raises(SubscriptionNotFoundError):
            claim.finish()


def test_the_life_of_a_subscription(kind: str, address: str, name: str) -> None:
    with connected(kind, address) as client:
        subscription = client.subscription(name)
        with pytest.raises(SubscriptionNotFoundError, match="create it first") as raised:
            subscription.get()
        assert (raised.value.status, raised.value.code) == (404, "SUBSCRIPTION_NOT_FOUND")
        assert vars(pickle.loads(pickle.dumps(raised.value))) == vars(raised.value)
        client.stream(f"{name}/a").create("application/json")
        subscription.create(streams=[f"{name}/a"], wake_stream=f"{name}/wakes")
        with pytest.raises(SubscriptionConflictError, match="another configuration"):
            subscription.create(streams=[f"{name}/b"], wake_stream=f"{name}/wakes")
        subscription.add(f"{name}/b", f"{name}/c d")
        subscription.add(f"{name}/b")
        subscription.remove(f"{name}/a")
        subscription.remove(f"{name}/nothing")
        found = subscription.get()
        assert {(stream.path, stream.link_type) for stream in found.streams} == {
            (f"{name}/b", "explicit"),
            (f"{name}/c d", "explicit"),
        }
        subscription.delete()
        subscription.delete()
        with pytest.raises(SubscriptionNotFoundError):
            subscription.add(f"{name}/b")
        with pytest.raises(RequestRefusedError, match="WEBHOOK_URL_REJECTED"):
            subscription.create(pattern="x", webhook_url="http://10.0.0.1/")


class Receiver:
    """Takes webhooks: `came` has their bodies and signatures."""

    def __init__(self) -> None:
        came: Queue[tuple[bytes, str]] = Queue()
        self.came = came

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                came.put((body, self.headers["Webhook-Signature"]))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_a_webhook_is_verified_and_acknowledged(kind: str, address: str, name: str, receiver: Receiver) -> None:
    with connected(kind, address) as client:
        client.stream(f"{name}/a").create("application/json")
        subscription = client.subscription(name)
        made = subscription.create(pattern=f"{name}/**", webhook_url=receiver.url)
        assert (made.type, made.webhook_url, made.wake_stream) == ("webhook", receiver.url, None)
        end = client.stream(f"{name}/a").append(1).next_offset
        body, signature = receiver.came.get(timeout=60)
        claim = client.verify_webhook(body, signature)
        assert (claim.wake.subscription_id, claim.wake.type, claim.wake.generation) == (name, "webhook", 1)
        assert [(stream.path, stream.tail_offset) for stream in claim.streams] == [(f"{name}/a", end)]
        assert claim.wake.token not in repr(claim.wake)
        for changed in (body.replace(b"generation", b"Generation"), body + b" ", b""):
            with pytest.raises(WebhookError, match="refuse it"):
                client.verify_webhook(changed, signature)
        with pytest.raises(UsageError, match="only a claim can be released"):
            claim.release()
        assert claim.acknowledge({f"{name}/a": end}) is False
        assert claim.finish() is False
        assert subscription.get().streams[0].acked_offset == end
        with pytest.raises(RequestRefusedError):
            subscription.claim("w")
        subscription.delete()


# -- keys, signatures and clocks

ROOT = "http://streams.example/v1/stream"
NOW = 1_800_000_000.0
BODY = json.dumps(
    {
        "subscription_id": "s/1",
        "wake_id": "w_1",
        "generation": 7,
        "streams": [
            {"path": "a", "link_type": "glob", "acked_offset": "-1", "tail_offset": "5", "has_pending": True},
            {"path": "b", "link_type": "glob", "acked_offset": "5", "tail_offset": "5", "has_pending": False},
        ],
        "callback_url": "http://elsewhere.example/steal",
        "callback_token": "t0ken",
    }
).encode()


def unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Signer:
    """A server that publishes keys.

    :ivar keys: by name, those that are published.
    """

    def __init__(self) -> None:
        self.keys = {"k1": Ed25519PrivateKey.generate()}
        self.requests: list[httpx.Request] = []
        self.answers: list[httpx.Response | Exception] = []
        self.now = NOW
        self.more: list[dict[str, str]] = []

    def sign(self, body: bytes = BODY, *, kid: str = "k1", key: Ed25519PrivateKey | None = None, at: int = 0) -> str:
        time = int(NOW) + at
        return f"t={time},kid={kid},ed25519={unpadded((key or self.keys[kid]).sign(b'%d.' % time + body))}"

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        assert request.url.path == "/v1/stream/__ds/jwks.json"
        public = {kid: unpadded(key.public_key().public_bytes_raw()) for kid, key in self.keys.items()}
        entries = [{"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x} for kid, x in public.items()]
        return httpx.Response(200, json={"keys": [{"kty": "RSA", "kid": "k1"}, *entries, *self.more]})

    @property
    def patience(self) -> Retrying:
        environment = Environment(time=lambda: self.now, monotonic=lambda: self.now, sleep=lambda seconds: None)
        return Retrying(seconds=1, first=0.001, longest=0.001, environment=environment)


@pytest.fixture
def signer() -> Signer:
    return Signer()


@pytest.fixture
def client(kind: str, signer: Signer) -> Iterator[Any]:
    with connected(kind, ROOT, signer.transport, retrying=signer.patience, token="mine") as client:
        yield client


def test_keys_are_asked_for_once_in_five_minutes(client: Any, signer: Signer) -> None:
    for _ in range(3):
        assert client.verify_webhook(BODY, signer.sign()).wake.wake_id == "w_1"
    assert len(signer.requests) == 1
    signer.now += 299
    client.verify_webhook(BODY, signer.sign())
    assert len(signer.requests) == 1
    signer.now += 1
    del signer.keys["k1"]
    signer.keys["k2"] = Ed25519PrivateKey.generate()
    client.verify_webhook(BODY, signer.sign(kid="k2"))
    assert len(signer.requests) == 2
    with pytest.raises(WebhookError, match="signed by 'k1'"):
        client.verify_webhook(BODY, signer.sign(kid="k1", key=Ed25519PrivateKey.generate()))


def test_unknown_signers_do_not_make_a_client_request_keys_repeatedly(client: Any, signer: Signer) -> None:
    stranger = Ed25519PrivateKey.generate()
    for number in range(20):
        with pytest.raises(WebhookError, match="refuse it"):
            client.verify_webhook(BODY, signer.sign(kid=f"x{number}", key=stranger))
    assert len(signer.requests) == 1
    signer.now += 10
    signer.keys["k2"] = Ed25519PrivateKey.generate()
    client.verify_webhook(BODY, signer.sign(kid="k2"))
    assert len(signer.requests) == 2


def test_a_key_of_another_server_is_refused_under_a_known_name(client: Any, signer: Signer) -> None:
    with pytest.raises(WebhookError, match="was not signed by the server"):
        client.verify_webhook(BODY, signer.sign(key=Ed25519PrivateKey.generate()))


@pytest.mark.parametrize(("at", "good"), [(-301, False), (-300, True), (0, True), (300, True), (301, False)])
def test_a_signature_is_good_for_five_minutes(client: Any, signer: Signer, at: int, good: bool) -> None:
    if good:
        client.verify_webhook(BODY, signer.sign(at=at))
        return
    with pytest.raises(WebhookError, match="301 seconds"):
        client.verify_webhook(BODY, signer.sign(at=at))
    assert not signer.requests


@pytest.mark.parametrize(
    "change",
    [
        lambda signature: "",
        lambda signature: None,
        lambda signature: signature.replace("t=", "T="),
        lambda signature: signature.replace("t=", "t=+"),
        lambda signature: signature.replace("t=", "t=0x"),
        lambda signature: signature.replace("kid=k1", "kid="),
        lambda signature: signature.replace(",ed25519=", ",sha256="),
        lambda signature: signature + "=",
        lambda signature: signature + "==",
        lambda signature: signature[:-4],
        lambda signature: signature.replace("ed25519=", "ed25519=é"),
        lambda signature: signature + "," + signature,
        lambda signature: f"t={10**30}," + signature.partition(",")[2],
        lambda signature: "t=٣," + signature.partition(",")[2],
    ],
)
def test_an_invalid_signature_is_refused(client: Any, signer: Signer, change: Any) -> None:
    with pytest.raises(WebhookError, match="refuse it"):
        client.verify_webhook(BODY, change(signer.sign()))
    assert not signer.requests


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"subscription_id": 5}',
        BODY.replace(b'"t0ken"', b"null"),
        BODY.replace(b"7", b"true"),
        BODY.replace(b'"5"', b'"a b"'),
        BODY.replace(b"w_1", b""),
        b"[" * 100_000,
        b"\xff",
    ],
    ids=lambda body: str(body[:30]),
)
def test_a_webhook_that_is_signed_and_makes_no_sense_is_refused(client: Any, signer: Signer, body: bytes) -> None:
    with pytest.raises(WebhookError, match="not one of this protocol"):
        client.verify_webhook(body, signer.sign(body))


JWKS: list[Any] = [
    b"",
    b"<html>",
    b"[]",
    b'{"keys": 5}',
    b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k1"}]}',
    b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": 5, "x": "' + b"A" * 43 + b'"}]}',
    b'{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k1", "x": "AAAA"}]}',
    b"\xff",
]


@pytest.mark.parametrize("body", JWKS, ids=str)
def test_keys_that_make_no_sense_are_an_error(client: Any, signer: Signer, body: bytes) -> None:
    signer.answers = [httpx.Response(200, content=body)]
    with pytest.raises(ProtocolError, match=r"GET .*/__ds/jwks\.json was answered 200 with"):
        client.verify_webhook(BODY, signer.sign())
    client.verify_webhook(BODY, signer.sign())


def test_two_keys_of_one_name_are_an_error(client: Any, signer: Signer) -> None:
    other = unpadded(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    signer.more = [{"kty": "OKP", "crv": "Ed25519", "kid": "k1", "x": other}]
    with pytest.raises(ProtocolError, match="a key that has no name or no bytes of its own"):
        client.verify_webhook(BODY, signer.sign())


def test_the_body_is_bytes(client: Any, signer: Signer) -> None:
    with pytest.raises(UsageError, match="the bytes that came"):
        client.verify_webhook(BODY.decode(), signer.sign())
    assert client.verify_webhook(memoryview(BODY), signer.sign()).wake.generation == 7


def test_without_cryptography_it_says_what_to_install(
    client: Any, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(UsageError, match=r"pip install 'opslog\[webhooks\]'"):
        client.verify_webhook(BODY, signer.sign())


# -- networks


def fenced(status: int = 409, code: str = "FENCED") -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": "because"}})


def test_a_webhook_is_acknowledged_at_the_known_address_with_its_own_token(client: Any, signer: Signer) -> None:
    """It never goes to an address that the body names."""
    claim = client.verify_webhook(BODY, signer.sign())
    signer.answers = [httpx.Response(200, json={"ok": True, "next_wake": True})]
    assert claim.finish() is True
    asked = signer.requests[-1]
    assert str(asked.url) == f"{ROOT}/__ds/subscriptions/s%2F1/callback"
    assert asked.headers["authorization"] == "Bearer t0ken"
    assert json.loads(asked.content) == {
        "wake_id": "w_1",
        "generation": 7,
        "acks": [{"stream": "a", "offset": "5"}],
        "done": True,
    }
    assert signer.requests[0].headers["authorization"] == "Bearer mine"


def test_an_acknowledgement_whose_answer_was_lost_is_repeated(client: Any, signer: Signer) -> None:
    claim = client.verify_webhook(BODY, signer.sign())
    signer.answers = [httpx.ReadError("lost"), httpx.Response(200, json={"ok": True, "next_wake": False})]
    assert claim.acknowledge({"a": "5"}) is False


@pytest.mark.parametrize("answer", [(409, "FENCED"), (401, "TOKEN_INVALID"), (401, "TOKEN_EXPIRED")])
def test_a_wake_that_was_lost_is_an_error_and_after_a_lost_answer_unknown(
    client: Any, signer: Signer, answer: tuple[int, str]
) -> None:
    claim = client.verify_webhook(BODY, signer.sign())
    signer.answers = [fenced(*answer)]
    with pytest.raises(WakeLostError, match=f"{answer[1]}: the lease ended") as raised:
        claim.finish()
    assert (raised.value.code, raised.value.status, raised.value.detail) == (answer[1], answer[0], "because")
    signer.answers = [httpx.ReadError("lost"), fenced(*answer)]
    with pytest.raises(OutcomeUnknownError, match="may or may not be acknowledged"):
        claim.finish()


CLAIMED = {"wake_id": "w", "generation": 1, "token": "t", "streams": [], "lease_ttl_ms": 30000}


def test_a_release_whose_answer_was_lost_is_done_if_others_hold_it(client: Any, signer: Signer) -> None:
    signer.answers = [httpx.Response(200, json=CLAIMED), httpx.ReadError("lost"), fenced()]
    client.subscription("s").claim("w").release()


def test_a_claim_whose_answer_was_lost_may_be_ones_own(client: Any, signer: Signer) -> None:
    taken = {"error": {"code": "ALREADY_CLAIMED", "current_holder": "w"}}
    signer.answers = [httpx.ReadError("lost"), httpx.Response(409, json=taken)]
    with pytest.raises(AlreadyClaimedError, match="perhaps by this worker"):
        client.subscription("s").claim("w")


def test_an_error_in_a_block_is_not_hidden_by_its_release(client: Any, signer: Signer) -> None:
    signer.answers = [httpx.Response(200, json=CLAIMED), fenced()]
    with pytest.raises(ZeroDivisionError) as raised, client.subscription("s").claim("w"):
        1 / 0  # noqa: B018  (it raises)
    assert "FENCED" in raised.value.__notes__[0]


def without(name: str, **others: Any) -> bytes:
    return json.dumps({key: value for key, value in {**CLAIMED, **others}.items() if key != name}).encode()


ANSWERS: list[tuple[bytes, type[Exception]]] = [
    (b"", ProtocolError),
    (b"<html>", ProtocolError),
    (b"[]", ProtocolError),
    (b"{", ProtocolError),
    (b"[" * 100_000, ProtocolError),
    (without("token"), ProtocolError),
    (without("generation"), ProtocolError),
    (without("streams"), ProtocolError),
    (without("", streams=[{"path": "a"}]), ProtocolError),
    (without("", streams=[5]), ProtocolError),
    (without("", lease_ttl_ms="30000"), ProtocolError),
    (without("", lease_ttl_ms=-1), ProtocolError),
    (without("", wake_id=[]), ProtocolError),
]


@pytest.mark.parametrize(("body", "error"), ANSWERS, ids=lambda value: str(value)[:60])
def test_answers_that_make_no_sense_are_errors(
    client: Any, signer: Signer, body: bytes, error: type[Exception]
) -> None:
    signer.answers = [httpx.Response(200, content=body)]
    with pytest.raises(error, match=r"POST .*/__ds/subscriptions/s/claim was answered 200"):
        client.subscription("s").claim("w")
    for name in ("get", "delete"):
        signer.answers = [httpx.Response(200, content=body)]
        with pytest.raises(error, match=r"/__ds/subscriptions/s was answered 200"):
            getattr(client.subscription("s"), name)()


def test_a_server_without_subscriptions_and_one_that_is_away(client: Any, signer: Signer) -> None:
    signer.answers = [httpx.Response(405, text="no")]
    with pytest.raises(RequestRefusedError, match="405"):
        client.subscription("s").claim("w")
    signer.answers = [httpx.Response(503) for _ in range(3)]
    signer.answers[1:1] = [httpx.ConnectError("refused")]
    signer.answers[2:] = [httpx.Response(503, headers={"Retry-After": "9"})]
    with pytest.raises(UnavailableError):
        client.subscription("s").claim("w")


USAGE: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("webhook_url or by a wake_stream", "create", (), {"pattern": "a"}),
    ("webhook_url or by a wake_stream", "create", (), {"pattern": "a", "webhook_url": "x", "wake_stream": "y"}),
    ("give a pattern, or streams", "create", (), {"wake_stream": "y"}),
    ("pattern is a path", "create", (), {"wake_stream": "y", "pattern": 5}),
    ("not the path of a stream", "create", (), {"wake_stream": "y", "pattern": "a//b"}),
    ("not the path of a stream", "create", (), {"wake_stream": "../y", "pattern": "a"}),
    ("not one string", "create", (), {"wake_stream": "y", "streams": "abc"}),
    ("a stream is a path", "create", (), {"wake_stream": "y", "streams": [None]}),
    ("lease_seconds", "create", (), {"wake_stream": "y", "pattern": "a", "lease_seconds": 0.5}),
    ("lease_seconds", "create", (), {"wake_stream": "y", "pattern": "a", "lease_seconds": 601}),
    ("lease_seconds", "create", (), {"wake_stream": "y", "pattern": "a", "lease_seconds": math.nan}),
    ("cannot be written as JSON", "create", (), {"webhook_url": b"x", "pattern": "a"}),
    ("at least one path", "add", (), {}),
    ("not the path of a stream", "add", ("a/../b",), {}),
    ("not the path of a stream", "remove", ("",), {}),
    ("a worker is a name", "claim", ("",), {}),
    ("a worker is a name", "claim", (None,), {}),
]


@pytest.mark.parametrize("case", USAGE, ids=str)
def test_invalid_requests_are_refused_before_anything_is_sent(
    client: Any, signer: Signer, case: tuple[str, str, tuple[Any, ...], dict[str, Any]]
) -> None:
    message, name, arguments, options = case
    with pytest.raises(UsageError, match=message):
        getattr(client.subscription("s"), name)(*arguments, **options)
    assert not signer.requests


@pytest.mark.parametrize("id", ["", ".", "..", "a\n", "\ud800", 5, None], ids=repr)
def test_ids_are_text_that_an_address_can_hold(client: Any, id: Any) -> None:
    with pytest.raises(UsageError, match="is not the id of a subscription"):
        client.subscription(id)


def test_offsets_are_checked_before_they_are_acknowledged(client: Any, signer: Signer) -> None:
    claim = client.verify_webhook(BODY, signer.sign())
    for offsets in ({"a": "1 2"}, {"a": None}, {"a//b": "1"}, {5: "1"}):
        with pytest.raises(UsageError):
            claim.acknowledge(offsets)
    assert len(signer.requests) == 1
