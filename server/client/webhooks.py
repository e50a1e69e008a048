"""Checking that a webhook is from the server (sections 6.5 and 7.1), by its signature and the server's public keys.
This does no I/O.

`WebhookError` is raised if the signature is missing or malformed, is older than `TOLERANCE_SECONDS` or from the future,
was made by a key that is not published, or was made over other bytes. Until it is too old, anyone who saw a webhook can
send it again. It then has the same `wake_id`, and acknowledging it twice changes nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import NoReturn

from opslog.errors import UsageError
from opslog.server.client.answers import senseless
from opslog.server.client.errors import ProtocolError, WebhookError
from opslog.server.client.messages import Reply, Request, decoded
from opslog.server.client.retrying import Retrying, Steps, call
from opslog.server.client.subscribing import Wake, wake

# How old a signature may be, and how far apart the clocks of both sides may be (section 7.1 names five minutes).
TOLERANCE_SECONDS = 300.0

# How long the published keys are trusted. A server publishes a new key at least as long before the key signs.
_KEYS_SECONDS = 300.0

# Webhooks with unknown keys make a client request the keys at most once in this time, whoever sends them.
_AGAIN_SECONDS = 10.0


class Webhooks:
    """The keys of one server, and the check of its webhooks.

    :param root: the address of its stream root.
    """

    def __init__(self, root: str, policy: Retrying) -> None:
        self._url = f"{root}/__ds/jwks.json"
        self._policy = policy
        self._keys: dict[str, bytes] = {}
        self._known_since: float | None = None

    def verified(self, body: bytes, signature: str) -> Steps[Wake]:
        """The wake that a webhook announces.

        :param body: exactly as received.
        :param signature: its header ``Webhook-Signature``.
        :raises WebhookError: it is not from the server.
        :raises UsageError: cryptography is not installed.
        """
        if not isinstance(body, bytes | bytearray | memoryview):
            raise UsageError(f"the body of a webhook is the bytes that came, not {type(body).__name__}")
        body = bytes(body)
        time, kid, signed = _parsed(signature)
        age = self._policy.environment.time() - int(time)
        if abs(age) > TOLERANCE_SECONDS:
            where = "old" if age > 0 else "in the future"
            raise WebhookError(f"this webhook was signed {abs(age):.0f} seconds {where}: refuse it, or set the clocks")
        key = yield from self._key(kid)
        if key is None:
            raise WebhookError(f"this webhook is signed by {kid!r}, which {self._url} does not have: refuse it")
        if not _is_signed(key, signed, f"{time}.".encode() + body):
            raise WebhookError("this webhook was not signed by the server, or changed on the way: refuse it")
        return _wake(body)

    def _key(self, kid: str) -> Steps[bytes | None]:
        now = self._policy.environment.monotonic()
        age = None if self._known_since is None else now - self._known_since
        known = age is not None and age < _KEYS_SECONDS and kid in self._keys
        if not known and (age is None or age >= _AGAIN_SECONDS):
            keys = yield from call(Request("GET", self._url), _published, self._policy, repeatable=True)
            self._keys, self._known_since = keys, now
        return self._keys.get(kid)


def _parsed(signature: object) -> tuple[str, str, bytes]:
    """The time, the key's name and the signature in ``t=…,kid=…,ed25519=…``."""
    fields: dict[str, str] = {}
    for part in signature.split(",") if isinstance(signature, str) else []:
        name, _, value = part.strip().partition("=")
        if name in fields:
            raise WebhookError(f"the signature of this webhook has {name} twice: refuse it")
        fields[name] = value
    time, kid = fields.get("t", ""), fields.get("kid", "")
    signed = _unpadded(fields.get("ed25519", ""))
    if not (time.isascii() and time.isdecimal() and len(time) <= 15 and kid) or signed is None or len(signed) != 64:
        raise WebhookError("this webhook has no signature of the form t=…,kid=…,ed25519=…: refuse it")
    return time, kid, signed


def _unpadded(text: str) -> bytes | None:
    """The bytes of base64url without padding; None: the text is something else."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return None
    return data if base64.urlsafe_b64encode(data).rstrip(b"=") == text.encode() else None


def _published(request: Request, reply: Reply) -> dict[str, bytes]:
    """The Ed25519 keys in a JSON Web Key Set, by their names. Other entries are ignored."""
    try:
        found = decoded(reply.content)
    except ValueError as error:
        senseless(request, reply.status, f"with no JSON Web Key Set ({error})")
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        senseless(request, reply.status, "with no JSON Web Key Set")
    keys: dict[str, bytes] = {}
    for entry in entries:
        if not isinstance(entry, Mapping) or (entry.get("kty"), entry.get("crv")) != ("OKP", "Ed25519"):
            continue
        kid, x = entry.get("kid"), entry.get("x")
        key = _unpadded(x) if isinstance(x, str) else None
        if not isinstance(kid, str) or key is None or len(key) != 32 or keys.get(kid, key) != key:
            senseless(request, reply.status, "with a key that has no name or no bytes of its own")
        keys[kid] = key
    return keys


def _is_signed(key: bytes, signature: bytes, data: bytes) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise UsageError("to verify webhooks, install cryptography: pip install 'opslog[webhooks]'") from error
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _wake(body: bytes) -> Wake:
    try:
        found = json.loads(body)
        if not isinstance(found, dict) or not isinstance(found["subscription_id"], str):
            _not_understood()
        token = found["callback_token"]
        if not isinstance(token, str):
            _not_understood()
        return wake(found["subscription_id"], "webhook", found, token, None, Request("POST", ""), Reply(200, {}))
    except (ValueError, KeyError, RecursionError, ProtocolError):
        _not_understood()


def _not_understood() -> NoReturn:
    raise WebhookError("this webhook is from the server, but not one of this protocol: is it a newer version?")
