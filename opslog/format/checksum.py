"""Checksums: which algorithms, over which bytes, and the small JSON files that carry their own. Pure.

- A block of a part or an archive (about 64 KiB): CRC-32, which finds every change of up to 32 bits in a row.
- A whole file: SHA-256, which every language and every shell has.
- Manifests and block indexes are one line of JSON whose last field is the SHA-256 of all bytes before that field.
"""

from __future__ import annotations

import zlib
from typing import TypeVar

import msgspec

from opslog.errors import CorruptError
from opslog.format.exact import UNREADABLE
from opslog.kernel import crc32 as kernel_crc32

# `hashlib` loads OpenSSL, which takes longer than opening a small store. For short data, Python has its own module,
# which its `random` uses for the same reason. Without that module, `hashlib` is used.
try:
    from _sha2 import sha256 as _sha256_of_short  # type: ignore[import-not-found]
except ImportError:
    try:
        from _sha256 import sha256 as _sha256_of_short  # type: ignore[import-not-found]  # before Python 3.12
    except ImportError:
        from hashlib import sha256 as _sha256_of_short

T = TypeVar("T")

_FIELD = b',"checksum":"'
_TAIL_LENGTH = len(_FIELD) + 64 + len(b'"}\n')


# Data up to this size is short: a manifest or the index of a part, unless the store is large. Python's own SHA-256
# takes a dozen microseconds longer for it.
_SHORT_BYTES = 4096

# zlib keeps the interpreter for data up to this size. A block takes microseconds, so this is better: a thread that lets
# the interpreter go waits 5 ms for its turn if another one computes.
_CHUNK_BYTES = 4096


def crc32(data: bytes | memoryview) -> str:
    """The CRC-32 as 8 hexadecimal digits."""
    value = None if kernel_crc32 is None else kernel_crc32(data)
    if value is None:
        value = 0
        for start in range(0, len(data), _CHUNK_BYTES):
            value = zlib.crc32(data[start : start + _CHUNK_BYTES], value)
    return f"{value:08x}"


def sha256(data: bytes | memoryview) -> str:
    """The SHA-256 as 64 hexadecimal digits."""
    if len(data) <= _SHORT_BYTES:
        short: str = _sha256_of_short(data).hexdigest()
        return short
    import hashlib

    return hashlib.sha256(data).hexdigest()


def encode_checked(value: msgspec.Struct) -> bytes:
    """A struct as one line of JSON that ends with its checksum."""
    body = msgspec.json.encode(value)[:-1]
    return body + _FIELD + sha256(body).encode() + b'"}\n'


def decode_checked(data: bytes, type: type[T], path: str) -> T:
    """The inverse of `encode_checked`.

    :raises CorruptError: the checksum or the form is wrong.
    """
    check(data, path)
    return decode_body(data, type, path)


def check(data: bytes, path: str) -> None:
    """
    :raises CorruptError: `encode_checked` did not encode this: the checksum is wrong.
    """
    # A view avoids a copy: opening a large store waits for this.
    if data[-_TAIL_LENGTH:] != _FIELD + sha256(memoryview(data)[:-_TAIL_LENGTH]).encode() + b'"}\n':
        raise CorruptError(
            f"{path}: its checksum does not fit its {len(data)} bytes: the file was damaged or cut short", path, 0
        )


def decode_body(data: bytes, type: type[T], path: str) -> T:
    """The inverse of `encode_checked`, for data whose checksum was already checked.

    :raises CorruptError: the form is wrong.
    """
    try:
        return msgspec.json.decode(data, type=type)  # no type has a field for the checksum
    except UNREADABLE as error:
        raise CorruptError(f"{path}: the checksum is right but the form is not: {error}", path, 0) from error
