"""Storages for opslog: the contract, and how a URL finds the storage that it names.

`open_backend` imports a concrete storage only when a URL asks for it, so importing this package costs next to nothing.
To write a backend: implement `Backend` and `Appender`, run `opslog.backends.testing` on it, and announce it in the
entry-point group ``opslog.backends`` (see `opslog.backends.registry`).
"""

from opslog.backends.contract import (
    Announces,
    Appender,
    Backend,
    Buffer,
    Entry,
    ListsWithLogs,
    Position,
    Range,
    Subscription,
)
from opslog.backends.registry import open_backend, register

__all__ = [
    "Announces",
    "Appender",
    "Backend",
    "Buffer",
    "Entry",
    "ListsWithLogs",
    "Position",
    "Range",
    "Subscription",
    "open_backend",
    "register",
]
