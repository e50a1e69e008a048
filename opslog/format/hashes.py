"""Sets of ids as lists of their hashes: small enough for a manifest. Pure.

An id whose hash is not in the list is not in the set. An id whose hash is in it may be another one with the same hash.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

from opslog import kernel

_HASH_BYTES = 4


def id_hash(id: str) -> int:
    """The CRC-32 of an id in UTF-8."""
    return zlib.crc32(id.encode())


class _HashedIds:
    """Ids by their hashes. `in` also finds an id that has the hash of one that was added."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def add(self, id: str) -> None:
        """Add an id."""
        self._hashes.add(id_hash(id))

    def update(self, hashes: bytes) -> None:
        """Add the ids with these hashes, which have no `hashes_fault`."""
        self._hashes.update(decode_hashes(hashes))

    def __contains__(self, id: str) -> bool:
        return id_hash(id) in self._hashes


# Each plain write of a store with transactions asks for an id. With the kernel that takes a fifth of the time, and a
# million ids take 8 to 16 MiB instead of 74.
HashedIds = kernel.HashedIds or _HashedIds


def encode_hashes(hashes: Iterable[int]) -> bytes:
    """Hashes in ascending order, each once, as 4 bytes, the most significant one first."""
    ordered = sorted(set(hashes))
    return struct.pack(f">{len(ordered)}I", *ordered)


def decode_hashes(data: bytes) -> Sequence[int]:
    """The inverse of `encode_hashes`, for data without a `hashes_fault`."""
    return struct.unpack(f">{len(data) // _HASH_BYTES}I", data)


def hashes_fault(data: bytes, most: int) -> str | None:
    """The reason why these bytes are not a list of at most so many hashes; None if they are."""
    if len(data) % _HASH_BYTES:
        return f"a list of {len(data)} bytes has a hash that is cut short"
    if len(data) // _HASH_BYTES > most:
        return f"there are {len(data) // _HASH_BYTES} hashes of {most} ids"
    if any(before >= after for before, after in pairwise(decode_hashes(data))):
        return "its hashes do not ascend"
    return None
