"""The secrets of subscriptions: the key that signs webhooks, and the tokens that callbacks carry."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from opslog.server.subscriptions import SubscriptionRefused

TOKEN_SECONDS = 3600


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Keys:
    """:param seed: 32 secret bytes; everything is derived from them, so one value is all there is to keep."""

    def __init__(self, seed: bytes) -> None:
        self._signing = Ed25519PrivateKey.from_private_bytes(seed)
        self._token_key = hashlib.sha256(b"opslog callback tokens" + seed).digest()
        public = _base64url(self._signing.public_key().public_bytes_raw())
        # The thumbprint of RFC 7638: these members, in this order, without spaces.
        thumbprint = json.dumps({"crv": "Ed25519", "kty": "OKP", "x": public}, separators=(",", ":"))
        self.kid = "ds_" + _base64url(hashlib.sha256(thumbprint.encode()).digest())
        self.jwks = {
            "keys": [{"kty": "OKP", "crv": "Ed25519", "x": public, "kid": self.kid, "use": "sig", "alg": "EdDSA"}]
        }

    def signature(self, body: bytes, now: float) -> str:
        """The value of ``Webhook-Signature``."""
        signed = self._signing.sign(b"%d." % int(now) + body)
        return f"t={int(now)},kid={self.kid},ed25519={_base64url(signed)}"

    def token(self, subscription_id: str, generation: int, now: float) -> str:
        """What a worker shows to speak for this wake. Valid for an hour; fencing ends it earlier."""
        payload = {"sub": subscription_id, "generation": generation, "exp": int(now) + TOKEN_SECONDS}
        encoded = _base64url(json.dumps(payload).encode())
        return f"{encoded}.{self._mac(encoded)}"

    def generation(self, token: str, subscription_id: str, now: float) -> int:
        """The generation that a token is for.

        :raises SubscriptionRefused: 401.
        """
        encoded, _, mac = token.partition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(encoded).encode()):
            raise SubscriptionRefused(401, "TOKEN_INVALID", "this token was not given out here")
        payload = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
        if payload["sub"] != subscription_id:
            raise SubscriptionRefused(401, "TOKEN_INVALID", "this token is for another subscription")
        if now > payload["exp"]:
            raise SubscriptionRefused(401, "TOKEN_EXPIRED", "this token has expired; wait for the next wake")
        return int(payload["generation"])

    def _mac(self, encoded: str) -> str:
        return _base64url(hmac.digest(self._token_key, encoded.encode(), "sha256"))
