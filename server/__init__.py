"""Streams over HTTP, speaking the Durable Streams protocol; needs the extra ``opslog[server]``."""

from __future__ import annotations

from opslog.server.asgi import App, app
from opslog.server.options import Options
from opslog.server.tokens import Tokens

__all__ = ["App", "Options", "Tokens", "app"]
