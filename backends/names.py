"""Which paths may reach a storage. Every backend checks its arguments here, so that all of them refuse the same."""

from __future__ import annotations

import re
from typing import NamedTuple

from opslog.errors import InvalidNameError

# An empty component (also at either end), "." or "..", a NUL, or a lone surrogate, which has no UTF-8 form.
_REFUSED = re.compile("(?:^|/)\\.{0,2}(?:/|\\Z)|[\0\ud800-\udfff]")


class Location(NamedTuple):
    """Where in an object storage a store is.

    :ivar url: without a query.
    :ivar bucket_url: likewise, and without the prefix.
    :ivar prefix: what all keys begin with, empty or with a slash at its end.
    """

    url: str
    bucket_url: str
    bucket: str
    prefix: str
    query: str


def split_url(url: str) -> Location:
    """The parts of ``scheme://bucket/prefix?query``.

    :raises InvalidNameError: it is no such URL.
    """
    from urllib.parse import urlsplit  # only object storages have such URLs

    parts = urlsplit(url)
    if not parts.netloc or parts.fragment:
        raise InvalidNameError(f"{url!r} names no prefix in a bucket: write {parts.scheme}://bucket/prefix")
    bucket_url, prefix = f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")
    # Kept as it is in a key, but in the path of a request ".." leads to another bucket.
    check_prefix(f"{prefix}/" if prefix else "")
    return Location(
        f"{bucket_url}/{prefix}".rstrip("/"), bucket_url, parts.netloc, f"{prefix}/" if prefix else "", parts.query
    )


def check_path(path: str) -> None:
    """Let a file's path pass that is relative and stays below the root.

    :raises InvalidNameError: otherwise.
    """
    if _REFUSED.search(path):
        raise InvalidNameError(
            f"{path!r} is not a path inside a store: components separated by single slashes, none of them empty, "
            "'.' or '..', without NUL or lone surrogates"
        )


def check_prefix(prefix: str) -> None:
    """Let a listing's prefix pass: empty, or a valid path and a slash.

    :raises InvalidNameError: otherwise.
    """
    if not prefix:
        return
    if prefix[-1] != "/":
        raise InvalidNameError(f"the prefix {prefix!r} must be empty or end with a slash")
    check_path(prefix[:-1])
