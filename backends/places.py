"""Whether two URLs name the same place, or one a place inside the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import unquote

_Identity = tuple[int, int]


def overlap(one: str, other: str) -> bool:
    """Whether two URLs of stores lead to one place, or one of them into the other, however they are spelled: through
    links, relative paths, or mounts. A place that does not exist yet is compared by the directories above it."""
    first, second = _directory(one), _directory(other)
    if first is not None and second is not None:
        return _is_within(first, second) or _is_within(second, first)
    if first is not None or second is not None:
        return False
    one, other = (f"{url.partition('?')[0].rstrip('/')}/" for url in (one, other))
    return one.startswith(other) or other.startswith(one)


def _directory(url: str) -> str | None:
    """The path that a URL leads to, without links; None if it is not a directory of this machine."""
    scheme, separator, path = url.partition("://")
    if separator and scheme != "file":
        return None
    return os.path.realpath(unquote(path.removeprefix("localhost")) if separator else url)


def _is_within(path: str, directory: str) -> bool:
    if os.path.commonpath([path, directory]) == directory:
        return True
    try:
        found = os.stat(directory)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) in _above(path)


def _above(path: str) -> Iterator[_Identity]:
    """The identities of a directory and of those above it, as far as they exist."""
    while True:
        try:
            found = os.stat(path)
            yield found.st_dev, found.st_ino
        except OSError:
            pass  # it does not exist yet
        parent = os.path.dirname(path)
        if parent == path:
            return
        path = parent
