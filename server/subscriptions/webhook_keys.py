"""The secrets of subscriptions: the keys that sign webhooks, and the tokens that callbacks carry.

A key is replaced in three steps, so that receivers have the public key when they need it. Their times are:

    rotated            the new key is published; the old one still signs, since caches may not have the new one yet
    + `JWKS_SECONDS`   the new key signs
    + `TOKEN_SECONDS`  the old key is no longer published, and tokens under it have expired

Times are seconds since 1970.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from itertools import pairwise

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from opslog.format.prepared import prepare
from opslog.server.subscriptions.subscription import SubscriptionRefused

# Seconds for which caches may keep the published keys.
JWKS_SECONDS = 300

# Seconds for which tokens are valid, and for which a key stays published after it stopped signing. Receivers should
# refuse webhooks that are older than five minutes; this long time is for receivers that accept older ones.
TOKEN_SECONDS = 3600


class Secret(msgspec.Struct, frozen=True):
    """:ivar seed: 32 bytes, from which the signing key and the key of its tokens are derived.
    :ivar since: the time from which on it signs.
    """

    seed: bytes
    since: float


prepare(Secret)


def rotated(secrets: Sequence[Secret], seed: bytes, now: float) -> tuple[Secret, ...]:
    """The secrets with a new one, and without expired ones. If two are in use, nothing changes, so there are never more
    than two."""
    if not secrets:
        return (Secret(seed, now),)
    used = _in_use(secrets, now)
    return tuple(secrets) if len(used) > 1 else (*used, Secret(seed, now + JWKS_SECONDS))


def _in_use(secrets: Sequence[Secret], now: float) -> list[Secret]:
    """The secrets in use, in the order in which they sign."""
    followed = [secret for secret, successor in pairwise(secrets) if now <= successor.since + TOKEN_SECONDS]
    return [*followed, secrets[-1]]


class Keys:
    """The keys made from some secrets.

    :param secrets: at least one, in the order in which they sign.
    """

    def __init__(self, secrets: Sequence[Secret]) -> None:
        self._secrets = secrets
        self._keys = {secret: _Key(secret.seed) for secret in secrets}

    def kid(self, now: float) -> str:
        """The name of the key that signs now."""
        return self._signing(now).kid

    def jwks(self, now: float) -> dict[str, list[dict[str, str]]]:
        """The public keys, as a JSON Web Key Set."""
        return {"keys": [key.jwk for key in self._in_use(now)]}

    def signature(self, body: bytes, now: float) -> str:
        """The value of ``Webhook-Signature``."""
        key = self._signing(now)
        return f"t={int(now)},kid={key.kid},ed25519={key.sign(b'%d.' % int(now) + body)}"

    def token(self, subscription_id: str, generation: int, now: float) -> str:
        """The token with which a worker acknowledges this wake. It is valid for an hour; a newer wake
        fences it."""
        payload = {"sub": subscription_id, "generation": generation, "exp": int(now) + TOKEN_SECONDS}
        encoded = _base64url(json.dumps(payload).encode())
        return f"{encoded}.{self._signing(now).mac(encoded)}"

    def generation(self, token: str, subscription_id: str, now: float) -> int:
        """The generation that a token is for.

        :raises SubscriptionRefused: 401.
        """
        encoded, _, mac = token.partition(".")
        if not any(hmac.compare_digest(mac.encode(), key.mac(encoded).encode()) for key in self._in_use(now)):
            raise SubscriptionRefused(401, "TOKEN_INVALID", "this token was not given out here, or long ago")
        payload = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
        if payload["sub"] != subscription_id:
            raise SubscriptionRefused(401, "TOKEN_INVALID", "this token is for another subscription")
        if now > payload["exp"]:
            raise SubscriptionRefused(401, "TOKEN_EXPIRED", "this token has expired; wait for the next wake")
        return int(payload["generation"])

    def _in_use(self, now: float) -> list[_Key]:
        return [self._keys[secret] for secret in _in_use(self._secrets, now)]

    def _signing(self, now: float) -> _Key:
        begun = [secret for secret in self._secrets if secret.since <= now]
        return self._keys[begun[-1] if begun else self._secrets[0]]  # none has begun if the clock was set back


class _Key:
    """The values derived from one seed.

    :ivar kid: the name of the key, made from its public part.
    :ivar jwk: the public key.
    """

    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self._token_key = hashlib.sha256(b"opslog callback tokens" + seed).digest()
        public = _base64url(self._private.public_key().public_bytes_raw())
        # The thumbprint of RFC 7638: these members, in this order, without spaces.
        thumbprint = json.dumps({"crv": "Ed25519", "kty": "OKP", "x": public}, separators=(",", ":"))
        self.kid = "ds_" + _base64url(hashlib.sha256(thumbprint.encode()).digest())
        self.jwk = {"kty": "OKP", "crv": "Ed25519", "x": public, "kid": self.kid, "use": "sig", "alg": "EdDSA"}

    def sign(self, data: bytes) -> str:
        return _base64url(self._private.sign(data))

    def mac(self, text: str) -> str:
        return _base64url(hmac.digest(self._token_key, text.encode(), "sha256"))


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
