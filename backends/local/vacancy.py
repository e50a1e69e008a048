"""The directory that a URL names, and whether a new store may be made there: a directory with other files is
refused."""

from __future__ import annotations

import os

from opslog.errors import InvalidNameError
from opslog.format.layout import foreign_names

# How many of the files that prevent a new store the message names.
_NAMES_SHOWN = 5


def path_of(url: str) -> str:
    """The directory that a URL of this storage names.

    :raises InvalidNameError: it names no directory of this machine.
    """
    if not url.startswith("file://"):
        return url
    from urllib.parse import unquote  # takes longer than opening a store, and most URLs are plain paths

    path = unquote(url.removeprefix("file://").removeprefix("localhost"))
    if not path.startswith("/"):
        raise InvalidNameError(
            f"{url!r} does not name a directory of this machine: write file:///absolute/path or a plain path"
        )
    return path


def check(root: str) -> None:
    """Check that a directory has a store, the beginning of one, or hardly any files. Costs one listing of the directory
    itself.

    :raises InvalidNameError: it has other files; the error names some.
    """
    try:
        names = foreign_names(os.listdir(root))
    except OSError:
        return  # the backend makes it, or says why it cannot be used
    if names:
        shown = ", ".join(map(repr, names[:_NAMES_SHOWN])) + (", …" if len(names) > _NAMES_SHOWN else "")
        raise InvalidNameError(
            f"{os.path.abspath(root)} is not a store, and has other files: {shown}. Give the store a directory of "
            "its own"
        )
