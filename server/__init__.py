"""Streams over HTTP, speaking the Durable Streams protocol; needs the extra ``opslog[server]``.

`opslog.server.client` needs only ``opslog[client]``, so nothing of the server is loaded before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opslog.doors.tokens import Tokens
    from opslog.server.http.asgi import App, app
    from opslog.server.options import Options

__all__ = ["App", "Options", "Tokens", "app"]

_HOMES = {
    "App": "opslog.server.http.asgi",
    "Options": "opslog.server.options",
    "Tokens": "opslog.doors.tokens",
    "app": "opslog.server.http.asgi",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
