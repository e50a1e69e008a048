"""Running a server: a store, the chosen tools, and a transport."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import msgspec
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from opslog.doors.access import App, accounted
from opslog.doors.metrics import CONTENT_TYPE, DoorMetrics, Doors, exposition, figures_of
from opslog.doors.operations import Operations
from opslog.doors.sessions import open_session, session_name
from opslog.doors.tokens import STORES, Tokens
from opslog.errors import InvalidNameError, UsageError
from opslog.format.documents import Document
from opslog.logs import logger
from opslog.mcp.admission import admitting
from opslog.mcp.documents import INSTRUCTIONS, Documents
from opslog.mcp.memory import Memory
from opslog.mcp.server import Client, Door, Session, by_name
from opslog.mcp.stdio import serve
from opslog.mcp.tools import chosen
from opslog.store import Store

_log = logger("mcp")
# For an address that only this machine has. Refuses pages of other sites, and other host names that lead here.
_LOCAL = TransportSecuritySettings(
    allowed_hosts=["127.0.0.1:*", "localhost:*", "[::1]:*"],
    allowed_origins=["http://127.0.0.1:*", "http://localhost:*", "http://[::1]:*"],
)
_ANYONE = TransportSecuritySettings(enable_dns_rebinding_protection=False)


class Offer(msgspec.Struct, frozen=True):
    """What a server offers.

    :ivar url: of the store.
    :ivar agent: the first part of its sessions' names.
    :ivar tools: the names of the tools; None: all.
    :ivar memory: offer the tools of the memory server instead of those for documents.
    :ivar memory_file: the file of a memory server, to import once, if the store has no memory yet and can be written.
    """

    url: str
    agent: str = "mcp"
    read_only: bool = False
    tools: Sequence[str] | None = None
    memory: bool = False
    memory_file: Path | None = None

    @property
    def name(self) -> str:
        """The name of the store in logs, figures and tokens: the last part of its URL or path."""
        if "://" not in self.url:
            return os.path.basename(os.path.abspath(self.url))
        parts = urlsplit(self.url)
        return PurePosixPath(parts.path).name or parts.netloc


def serve_stdio(offer: Offer) -> None:
    """Serve the client at standard input and output until it disconnects. Errors as of `opslog.open`."""
    with open_session(offer.url, session_name(offer.agent), read_only=offer.read_only) as store:
        anyio.run(serve, server_of(offer, store, DoorMetrics()))


def serve_http(offer: Offer, host: str, port: int, *, tokens: Tokens | None, anyone: bool) -> None:
    """Serve clients at ``http://HOST:PORT/mcp``, and figures for Prometheus at ``/metrics``, until SIGTERM or SIGINT.
    Errors as of `opslog.open`.

    :param tokens: say who may do what with the store, which they call ``stores/NAME`` (NAME as of `Offer.name`); None:
        everyone may do everything that is offered.
    :param anyone: accept requests with any `Host` and `Origin`. Otherwise, at an address that only this machine has,
        they must name this machine.
    :raises UsageError: other machines can reach the address, and neither `tokens` nor `anyone` was given; or a token
        may write in a name that is too long for a session.
    """
    is_local = host in ("127.0.0.1", "localhost", "::1")
    if not (is_local or anyone or tokens):
        raise UsageError(
            f"at {host} everyone who can reach this machine could read and write the store: listen at 127.0.0.1, give "
            "a file of tokens (--tokens FILE), or allow anyone (--anyone)"
        )
    if tokens is not None and not offer.read_only:
        _check_sessions(tokens, offer.name)
    security = _LOCAL if is_local and not anyone else _ANYONE
    with open_session(offer.url, session_name(offer.agent), read_only=offer.read_only) as store:
        metrics = DoorMetrics()

        async def figures(request: Request) -> Response:
            if refused := await TransportSecurityMiddleware(security).validate_request(request):
                return refused
            doors = Doors(metrics, [await anyio.to_thread.run_sync(figures_of, offer.name, store)])
            return Response(exposition(doors), media_type=CONTENT_TYPE)

        application: App = server_of(offer, store, metrics).streamable_http_app(
            host=host, transport_security=security, custom_starlette_routes=[Route("/metrics", figures)]
        )
        if tokens is not None:
            application = admitting(application, tokens, offer.name)
        config = uvicorn.Config(
            accounted(application),
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=5,
        )
        _Server(config).run()


def _check_sessions(tokens: Tokens, store: str) -> None:
    """Check that each token which may write to a store can have sessions. Otherwise all its requests would fail.

    :raises UsageError: one of them cannot.
    """
    for name, author in tokens.authors(STORES + store):
        try:
            session_name(author)
        except InvalidNameError as error:
            raise UsageError(f"the token {name!r} cannot write here: {error}. Give it a shorter agent") from error


class _Server(uvicorn.Server):
    """Logs its address once it listens, because the port may be any that is free."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for server in self.servers if self.started else ():
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                shown = f"[{host}]" if ":" in host else host
                _log.info("serving", extra={"url": f"http://{shown}:{port}/mcp"})


def server_of(offer: Offer, store: Store[Document], metrics: DoorMetrics) -> Server[Any]:
    """The server of an open store.

    :param metrics: count its calls.
    :raises UsageError: the offer names a tool that does not exist.
    """
    own = None if offer.read_only else session_name(offer.agent)

    def begin(client: Client) -> Session:
        # A session undoes its own writes. Requests without a session share a name, as long as this process lives.
        has_name = (client.session or client.agent) and client.writes and not offer.read_only
        operations = Operations(store, session_name(client.agent or offer.agent) if has_name else own)
        is_alone = client.session != ""
        tools = Memory(operations).tools() if offer.memory else Documents(operations, is_alone=is_alone).tools()
        offered = chosen(tools, offer.tools, read_only=offer.read_only)
        allowed = [tool for tool in offered if client.writes or tool.hints.read_only]
        return Session(offer.name, operations, by_name(allowed))

    door = Door(begin, metrics)
    session = begin(Client(None))  # checks the offer now, and not at the first request
    if offer.memory_file is not None and not offer.read_only:
        Memory(session.operations).take_in(offer.memory_file)
    name, instructions = ("opslog-memory", None) if offer.memory else ("opslog", INSTRUCTIONS)
    # Without the tool `get`, documents are not resources either.
    return door.server(name, instructions, resources="get" in session.tools)
