"""The paths that may reach a storage. Every backend checks its arguments here, so that all refuse the same ones."""

from __future__ import annotations

import re

from opslog.errors import InvalidNameError

# An empty component (also at either end), "." or "..", a NUL, or a lone surrogate, which has no UTF-8 form.
_REFUSED = re.compile("(?:^|/)\\.{0,2}(?:/|\\Z)|[\0\ud800-\udfff]")


def check_path(path: str) -> None:
    """Accept a file's path that is relative and stays below the root.

    :raises InvalidNameError: otherwise.
    """
    if _REFUSED.search(path):
        raise InvalidNameError(
            f"{path!r} is not a path inside a store: components separated by single slashes, none of them empty, "
            "'.' or '..', without NUL or lone surrogates"
        )


def check_prefix(prefix: str) -> None:
    """Accept a listing's prefix: empty, or a valid path and a slash.

    :raises InvalidNameError: otherwise.
    """
    if not prefix:
        return
    if prefix[-1] != "/":
        raise InvalidNameError(f"the prefix {prefix!r} must be empty or end with a slash")
    check_path(prefix[:-1])
