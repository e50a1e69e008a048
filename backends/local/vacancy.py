"""Which directory a URL names, and whether a store may begin there: one that is for something else is left as it is."""

from __future__ import annotations

import os

from opslog.errors import InvalidNameError
from opslog.format.layout import foreign_names

# How many of the files are named that are in the way of a new store.
_NAMES_SHOWN = 5


def path_of(url: str) -> str:
    """The directory that a URL of this storage names.

    :raises InvalidNameError: none.
    """
    if not url.startswith("file://"):
        return url
    from urllib.parse import unquote  # takes longer than to open a store; most are opened by a plain path

    path = unquote(url.removeprefix("file://").removeprefix("localhost"))
    if not path.startswith("/"):
        raise InvalidNameError(
            f"{url!r} does not name a directory of this machine: write file:///absolute/path or a plain path"
        )
    return path


def check(root: str) -> None:
    """Return if there is a store, the beginning of one, or hardly anything. Costs one listing of the directory itself.

    :raises InvalidNameError: there is something else; names some of it.
    """
    try:
        names = foreign_names(os.listdir(root))
    except OSError:
        return  # it is made, or what comes next says why it cannot be used
    if names:
        shown = ", ".join(map(repr, names[:_NAMES_SHOWN])) + (", …" if len(names) > _NAMES_SHOWN else "")
        raise InvalidNameError(
            f"{os.path.abspath(root)} is no store, and has other files: {shown}. Give the store a directory of its own"
        )
