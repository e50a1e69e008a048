"""Streams over HTTP, speaking the Durable Streams protocol; needs the extra ``opslog[server]``."""

from __future__ import annotations

from opslog.server.asgi import App, app
from opslog.server.options import Options

__all__ = ["App", "Options", "app"]
