"""The `repr` of an open store: one line for a prompt."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from opslog.backends import Backend
from opslog.errors import OpslogError
from opslog.format.documents import Schema, type_name


class Described(Protocol):
    """The part of an open store that its description needs."""

    schema: Schema[Any]
    as_of: object
    is_closed: bool
    author: str | None

    @property
    def backend(self) -> Backend: ...

    def count(self) -> int: ...
    def unreported(self) -> AbstractContextManager[None]: ...


def describe(store: Described, kind: str, *, counts: bool = True) -> str:
    """The `repr` of a store.

    :param kind: the class that the user sees.
    :param counts: whether to count its documents, which may wait for the storage.
    """
    contents = _contents(store) if counts and not store.is_closed else ""
    if store.is_closed:
        how = "closed"
    elif store.as_of is not None:
        how = f"as_of={str(store.as_of) if isinstance(store.as_of, datetime) else store.as_of!r}"
    else:
        how = "read_only" if store.author is None else f"agent={store.author!r}"
    return f"<{kind} {store.backend.url}: {contents}{', ' if contents else ''}{how}>"


def _contents(store: Described) -> str:
    try:
        with store.unreported():
            count = store.count()
    except OpslogError:  # a prompt shows a store that cannot be read, too
        return "cannot be read now"
    of = "" if store.schema.type is None else f" of {type_name(store.schema.type)}"
    return f"{count:,} {'document' if count == 1 else 'documents'}{of}"
