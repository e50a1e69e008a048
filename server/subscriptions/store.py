"""Subscriptions in the storage: in the free key space of the first shard.

The keys are ``subscriptions/keys``, ``subscriptions/one/<hash of the id>`` and
``subscriptions/link/<hash of the id>/<hash of the path>``. Each link has a key of its own, so that acknowledging one
stream of many writes one link. Ids and paths are hashed, because keys have to be short.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from opslog.server.protocol.storage import Shard
from opslog.server.protocol.transaction import Transaction
from opslog.server.subscriptions.subscription import Link, Subscription
from opslog.server.subscriptions.webhook_keys import Secret, rotated

_KEYS = b"subscriptions/keys"
_ONE = b"subscriptions/one/"
_LINK = b"subscriptions/link/"


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).hexdigest()[:40].encode()


def _link_key(id: str, path: str) -> bytes:
    return b"%s%s/%s" % (_LINK, _hash(id), _hash(path))


def secrets(transaction: Transaction, fresh: str, *, rotate: bool) -> tuple[Secret, ...]:
    """The secrets of this storage. If there are none yet, or they are to be rotated, a new one is made from `fresh` and
    stored."""
    value = transaction.value(_KEYS)
    found = () if value is None else msgspec.json.decode(value, type=tuple[Secret, ...])
    if found and not rotate:
        return found
    after = rotated(found, hashlib.sha256(fresh.encode()).digest(), transaction.now)
    transaction.put_value(_KEYS, msgspec.json.encode(after))
    return after


def load(shard: Shard) -> list[tuple[Subscription, dict[str, Link]]]:
    """All subscriptions, each with its links by path."""
    found: dict[bytes, tuple[Subscription, dict[str, Link]]] = {}
    for key, value in shard.values(_ONE):
        found[key.removeprefix(_ONE)] = msgspec.json.decode(value, type=Subscription), {}
    for key, value in shard.values(_LINK):
        link = msgspec.json.decode(value, type=Link)
        found[key.removeprefix(_LINK).partition(b"/")[0]][1][link.path] = link
    return list(found.values())


def store(transaction: Transaction, subscription: Subscription, links: Mapping[str, Link | None]) -> None:
    """:param links: the links that change, by path; None removes the link."""
    transaction.put_value(_ONE + _hash(subscription.id), msgspec.json.encode(subscription))
    for path, link in links.items():
        value = None if link is None else msgspec.json.encode(link)
        transaction.put_value(_link_key(subscription.id, path), value)


def erase(transaction: Transaction, id: str, paths: Iterable[str]) -> None:
    transaction.put_value(_ONE + _hash(id), None)
    for path in paths:
        transaction.put_value(_link_key(id, path), None)
