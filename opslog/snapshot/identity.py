"""The store's id, in a file that is created once. It keeps a token of one store from being used on another. A copy gets
an id of its own."""

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
    """The content of the file.

    :ivar id: random letters and digits.
    """

    id: str


prepare(Identity)


def read_identity(backend: Backend) -> str | None:
    """The store's id. None if it has none: a copy, or a store made by a program before 0.2, has none until a compaction
    or a writer's `changes` makes one.

    :raises CorruptError: the file is damaged.
    """
    try:
        data = backend.read(STORE)
    except MissingFileError:
        return None
    return decode_identity(data)


def ensure_identity(backend: Backend, new_nonce: Callable[[], str]) -> None:
    """Give the store an id if it has none. If it has one, this costs one read, and the id is not checked."""
    try:
        backend.read(STORE)
    except MissingFileError:
        with suppress(AlreadyExistsError):
            backend.create(STORE, encode_checked(Identity(new_nonce())))


def make_identity(backend: Backend, nonce: str) -> str:
    """The store's id. If it has none, the nonce becomes its id.

    :raises CorruptError: the file is damaged.
    """
    with suppress(AlreadyExistsError):
        backend.create(STORE, encode_checked(Identity(nonce)))
        return nonce
    backend.persist([STORE])  # its creator may be killed before it is durable
    return decode_identity(backend.read(STORE))


def decode_identity(data: bytes) -> str:
    """:raises CorruptError: the content of the file is damaged."""
    return decode_checked(data, Identity, STORE).id
