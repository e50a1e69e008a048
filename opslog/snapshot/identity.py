"""Which store this is: an id in a file that is created once, so that what belongs to one store is not taken for
another's. A copy gets an id of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from opslog.backends import Backend
from opslog.errors import AlreadyExistsError, MissingFileError
from opslog.format.checksum import decode_checked, encode_checked
from opslog.format.layout import STORE
from opslog.format.prepared import prepare


class Identity(msgspec.Struct, frozen=True):
    """What stands in the file.

    :ivar id: letters and digits, at random.
    """

    id: str


prepare(Identity)


def read_identity(backend: Backend) -> str | None:
    """The store's id, None where it has none: in a copy, and where programs before 0.2 made it, until a compaction or
    a writer's `changes` makes one.

    :raises CorruptError: the file is damaged.
    """
    try:
        data = backend.read(STORE)
    except MissingFileError:
        return None
    return decode_identity(data)


def ensure_identity(backend: Backend, new_nonce: Callable[[], str]) -> None:
    """Give the store an id if it has none. Costs one read where it has one, which is not checked."""
    try:
        backend.read(STORE)
    except MissingFileError:
        with suppress(AlreadyExistsError):
            backend.create(STORE, encode_checked(Identity(new_nonce())))


def make_identity(backend: Backend, nonce: str) -> str:
    """The store's id, made of a nonce where it has none.

    :raises CorruptError: the file is damaged.
    """
    with suppress(AlreadyExistsError):
        backend.create(STORE, encode_checked(Identity(nonce)))
        return nonce
    backend.persist([STORE])  # whoever made it may be killed before it is durable
    return decode_identity(backend.read(STORE))


def decode_identity(data: bytes) -> str:
    """:raises CorruptError: this is not what such a file has."""
    return decode_checked(data, Identity, STORE).id
