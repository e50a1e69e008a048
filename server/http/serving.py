"""Serving the application with uvicorn, with limits for connections, and a shutdown that loses no response."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn

from opslog.concurrency.interpreter import rare_collection, short_switch_interval
from opslog.doors.access import unread
from opslog.environment import REAL
from opslog.errors import UsageError
from opslog.server.http.asgi import App
from opslog.server.http.connections import Connection, Limits
from opslog.server.http.faults import FaultyApp

_log = logging.getLogger("opslog.server")


@dataclass(frozen=True, slots=True)
class Address:
    """:ivar port: 0 for any that is free.
    :ivar certificate: in PEM, with `key`, for TLS.
    :ivar max_connections: the most open at once; requests on further ones are answered with 503.
    :ivar header_seconds: how long a client may take to send the head of a request, and how long it may take nothing of
        what was sent to it.
    :ivar header_bytes: the most bytes in the head of a request.
    :ivar stop_seconds: how long requests may continue once the server was asked to stop.
    """

    host: str = "127.0.0.1"
    port: int = 4437
    certificate: Path | None = None
    key: Path | None = None
    max_connections: int = 10_000
    header_seconds: float = 30.0
    header_bytes: int = 64 * 1024
    stop_seconds: float = 10.0

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def check_access(address: Address, *, tokens: bool, anyone: bool) -> None:
    """:raises UsageError: everyone on the network could read and write, and no option allows that."""
    if not (tokens or anyone or address.is_loopback):
        raise UsageError(
            f"at {address.host} everybody who reaches this machine could read and write all streams: "
            "give a file of tokens (--tokens FILE), or allow anyone (--anyone)"
        )


def serve(application: App, address: Address, *, faults: bool = False) -> None:
    """Serve until SIGTERM or SIGINT. Then live reads end, other requests are finished, and the storage is closed.

    :param faults: let clients request faults, see `opslog.server.http.faults`.
    :raises UsageError: the address is not available.
    """
    config = uvicorn.Config(
        FaultyApp(application, lambda: int(REAL.nonce(), 16) / 2**64) if faults else application,
        host=address.host,
        port=address.port,
        http=_http(application, address),
        ws="none",
        loop="uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # Clients keep idle connections as long as they think the server does, many for a minute.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=round(address.stop_seconds),
        ssl_certfile=address.certificate,
        ssl_keyfile=address.key,
    )
    listening = _listen(address)
    # One thread commits and another one answers: without this, Python's usual 5 ms would be most of a commit.
    with rare_collection(), short_switch_interval():
        _Server(config, application).run(sockets=[listening])


def _http(application: App, address: Address) -> Any:
    limits = Limits(address.max_connections, address.header_bytes, address.header_seconds)

    def refused(status: int) -> bytes:
        application.metrics.requests["-", status] += 1
        return unread(status)

    return partial(Connection, limits=limits, budget=application.budget, refused=refused)


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
