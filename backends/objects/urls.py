"""Where in an object storage a store is, by its URL."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from opslog.backends.names import check_prefix
from opslog.errors import InvalidNameError


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
    parts = urlsplit(url)
    if not parts.netloc or parts.fragment:
        raise InvalidNameError(f"{url!r} names no prefix in a bucket: write {parts.scheme}://bucket/prefix")
    bucket_url, prefix = f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")
    # Kept as it is in a key, but in the path of a request ".." leads to another bucket.
    check_prefix(f"{prefix}/" if prefix else "")
    return Location(
        f"{bucket_url}/{prefix}".rstrip("/"), bucket_url, parts.netloc, f"{prefix}/" if prefix else "", parts.query
    )
