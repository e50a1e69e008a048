"""Checks of callers' arguments, and of values in headers and addresses. Each check raises `UsageError` before anything
is sent."""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import urlsplit

from opslog.errors import UsageError

# The greatest epoch, and the greatest number of a batch (section 5.2.1): up to here JavaScript's integers are exact.
INTEGER_MAX = 2**53 - 1

_OFFSET = re.compile(r"[^\x00-\x20\x7f-\U0010ffff,&=?/]+")
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_NAME = re.compile(_TOKEN)
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_CONTENT_TYPE = re.compile(rf"{_TOKEN}/{_TOKEN}[ \t]*(?:;[\x20-\x7e\t]*)?")
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)


def is_offset(value: object) -> bool:
    """Whether this can be an offset (section 8): one word of printable ASCII that needs no quoting in an address."""
    return isinstance(value, str) and _OFFSET.fullmatch(value) is not None


def is_header_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def is_header_value(value: object) -> bool:
    """Whether this is printable ASCII, not empty, without spaces at its ends: such a value reaches the server
    unchanged."""
    return isinstance(value, str) and _VALUE.fullmatch(value) is not None


def is_content_type(value: object) -> bool:
    return isinstance(value, str) and _CONTENT_TYPE.fullmatch(value) is not None


def whole_number(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= INTEGER_MAX:
        raise UsageError(f"{name} is a whole number, at least {least}, not {value!r}")
    return value


def seconds(name: str, value: object, *, above_zero: bool) -> float:
    """A length of time, which may be infinite."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or not (value > 0 if above_zero else value >= 0):  # type: ignore[operator]  # not a number: refused
        raise UsageError(f"{name} is a number of seconds, {'above' if above_zero else 'at least'} 0, not {value!r}")
    return value  # type: ignore[return-value]  # `known` says so


def header_value(name: str, value: object) -> str:
    if not is_header_value(value):
        raise UsageError(f"{name} goes into a header, so it is printable ASCII, not {value!r}")
    assert isinstance(value, str)
    return value


def token(value: object) -> str:
    """Check a token. It is a secret, so no message shows it."""
    if not is_header_value(value):
        raise UsageError("token goes into a header, so it is printable ASCII")
    assert isinstance(value, str)
    return value


def offset(name: str, value: object) -> str:
    if not is_offset(value):
        raise UsageError(f"{name} is an offset that a server gave, START or NOW, not {value!r}")
    assert isinstance(value, str)
    return value


def choice(name: str, value: object, choices: Collection[object]) -> None:
    if value not in choices:
        raise UsageError(f"{name} is one of {', '.join(map(repr, choices))}, not {value!r}")


def content_type(value: object) -> str:
    """Check a media type. Servers silently take an invalid one for ``application/octet-stream``, so it is refused
    here."""
    if not is_content_type(value):
        raise UsageError(f"content_type is a media type, as text/plain or application/json, not {value!r}")
    assert isinstance(value, str)
    return value


def lifetime(ttl: object, expires_at: object) -> None:
    """Check the lifetime of a new stream (section 5.1)."""
    if ttl is not None:
        whole_number("ttl", ttl, 0)
    if expires_at is not None and (not isinstance(expires_at, str) or _RFC_3339.fullmatch(expires_at) is None):
        raise UsageError(f"expires_at is a time as 2026-11-20T12:00:00Z (RFC 3339), not {expires_at!r}")
    if ttl is not None and expires_at is not None:
        raise UsageError("a stream has a ttl or an expires_at, not both")


def address(value: object) -> str:
    """The address of a server's stream root, without a slash at the end."""
    if not isinstance(value, str):
        raise UsageError(f"the address of a server is a string, not {value!r}")
    try:
        parts = urlsplit(value)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        parts, usable = urlsplit(""), None
    if not usable or not value.isprintable() or " " in value:
        raise UsageError(f"{value!r} is not the address of a server: write it as http://127.0.0.1:4437/v1/stream")
    if parts.username is not None or parts.password is not None:
        raise UsageError("an address has no password in it, because errors and logs show it: use token= or headers=")
    if parts.query or parts.fragment:
        raise UsageError(f"{value!r}: all paths are below the address, so it has no ? and no #; use params=")
    return value.rstrip("/")
