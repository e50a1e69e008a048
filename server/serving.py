"""Serving the application with uvicorn: connections that are watched, and an end that loses nobody's answer."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from opslog.environment import REAL
from opslog.errors import UsageError
from opslog.server.asgi import App
from opslog.server.faults import FaultyApp

_log = logging.getLogger("opslog.server")
_SWITCH_SECONDS = 0.0005
"""How long the thread that commits may have to wait for the one that answers, where Python's usual 5 ms would be most
of a commit."""


@dataclass(frozen=True, slots=True)
class Address:
    """:ivar port: 0 for any that is free; :ivar certificate: in PEM, with `key`, for TLS;
    :ivar max_connections: further ones are answered with 503; :ivar header_seconds: how long a client may take to send
    the head of a request, and how long what was sent to it may stay unread;
    :ivar stop_seconds: how long requests may go on once the server was told to stop."""

    host: str = "127.0.0.1"
    port: int = 4437
    certificate: Path | None = None
    key: Path | None = None
    max_connections: int = 10_000
    header_seconds: float = 30.0
    stop_seconds: float = 10.0

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def check_access(address: Address, *, tokens: bool, anyone: bool) -> None:
    """:raises UsageError: everybody on the network could read and write, and nobody said that they may."""
    if not (tokens or anyone or address.is_loopback):
        raise UsageError(
            f"at {address.host} everybody who reaches this machine could read and write all streams: "
            "name a file of tokens, or say that anyone may"
        )


def serve(application: App, address: Address, *, faults: bool = False) -> None:
    """Serve until SIGTERM or SIGINT. Then live reads end, what was asked for is finished, and the storage is closed.

    :param faults: let clients ask for faults, see `opslog.server.faults`.
    :raises UsageError: the address cannot be had.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    config = uvicorn.Config(
        FaultyApp(application, lambda: int(REAL.nonce(), 16) / 2**64) if faults else application,
        host=address.host,
        port=address.port,
        http=_watched(address.header_seconds),
        loop="uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=address.max_connections,
        # Clients keep idle connections for as long as they think the server does, many for a minute.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=round(address.stop_seconds),
        ssl_certfile=address.certificate,
        ssl_keyfile=address.key,
    )
    _Server(config, application).run(sockets=[_listen(address)])


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise UsageError(f"cannot listen at {address.host}, port {address.port}: {error}") from error
    return listening


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, application: App) -> None:
        super().__init__(config)
        self._application = application

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            scheme = "https" if self.config.is_ssl else "http"
            shown = f"[{host}]" if ":" in host else host
            url = f"{scheme}://{shown}:{port}{self._application.options.root}"
            _log.info("serving", extra={"url": url, "streams": self._application.streams.usage().streams})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _log.info("stopping", extra={"followers": self._application.streams.followers.count})
        self._application.end_live_reads()
        await super().shutdown(sockets)
        _log.info("stopped")


def _watched(seconds: float) -> type[asyncio.Protocol]:
    """The HTTP protocol of uvicorn, which lets go of clients that do not finish the head of a request, or do not read
    what was sent to them, within so many seconds."""

    class Watched(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            connected = transport.get_extra_info("socket")
            if connected is not None and connected.family in {socket.AF_INET, socket.AF_INET6}:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
            self._timer = self.loop.call_later(seconds, transport.close)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._timer is None:
                self._timer = self.loop.call_later(seconds, self.transport.close)

        def on_headers_complete(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            super().connection_lost(exc)

    return Watched
