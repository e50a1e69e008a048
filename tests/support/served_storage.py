"""Served storages without a network: a transport that hands requests over, and a simulated network that disturbs them.

Stores at ``served://NAME`` are in memory, behind such a transport. Stores at ``served+lossy://NAME`` are behind a
network that loses, repeats and delays requests and answers, and behind a server that is killed and restarted now and
then. Stores at ``lossy+http://HOST:PORT/NAME`` are on a real server, behind a network of that kind."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import httpx

from opslog.backends import open_backend, register
from opslog.backends.remote.backend import RemoteBackend
from opslog.environment import REAL, Environment
from opslog.errors import OpslogError
from opslog.server.stores.remote_storage import StorageService
from opslog.server.stores.rights import EVERYBODY, Client


class Handing(httpx.BaseTransport):
    """Hands requests to the current service."""

    def __init__(self, service: Callable[[], StorageService], client: Client = EVERYBODY) -> None:
        self._service = service
        self._client = client

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body = request.read()
        try:
            return httpx.Response(200, content=self._service().answer(body, self._client)[0])
        except OpslogError as error:
            return httpx.Response(400, text=str(error))


class Network(httpx.BaseTransport):
    """Loses requests and answers, repeats requests, and delivers copies of them much later, even to a server that was
    restarted meanwhile.

    :param server: gets the requests that come through.
    :param restart: restarts the server.
    """

    def __init__(self, server: httpx.BaseTransport, dice: random.Random, restart: Callable[[], None]) -> None:
        self._server = server
        self._dice = dice
        self._restart = restart
        self._late: list[httpx.Request] = []
        self.happened: Counter[str] = Counter()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        if self._late and self._chance(0.3):
            self._note("late")
            self._deliver(self._late.pop(self._dice.randrange(len(self._late))))
        if self._chance(0.04):
            self._note("restart")
            self._restart()
        if self._chance(0.1):
            self._note("lost request")
            raise self._dice.choice([httpx.ConnectError, httpx.ReadError, httpx.ReadTimeout])("lost", request=request)
        if self._chance(0.1):
            self._note("kept")
            self._late.append(request)
        if self._chance(0.1):
            self._note("repeated")
            self._deliver(request)
        response = self._deliver(request)
        if self._chance(0.1):
            self._note("lost answer")
            raise self._dice.choice([httpx.ReadError, httpx.RemoteProtocolError])("lost", request=request)
        if self._chance(0.05):
            self._note("answered by a proxy")
            return httpx.Response(self._dice.choice([502, 503, 504]), text="no answer in time")
        return response

    def _deliver(self, request: httpx.Request) -> httpx.Response:
        response = self._server.handle_request(request)
        response.read()  # so that the connection is free, whether or not the answer comes through
        return response

    def close(self) -> None:
        self._server.close()

    def _chance(self, share: float) -> bool:
        return self._dice.random() < share

    def _note(self, what: str) -> None:
        self.happened[what] += 1


class Clock:
    """An environment in which time passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 1e9
        self.environment = replace(REAL, time=self.now, monotonic=self.now, sleep=self.sleep)

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


SERVED: dict[str, StorageService] = {}
"""The stores by URL. Each is made when it is first opened."""


def open_url(
    url: str, *, create: bool = True, environment: Environment = REAL, now: Callable[[], float] = time.time
) -> RemoteBackend:
    """:param now: the clock of the storage, the server and its clients. Nobody waits."""
    environment = replace(environment, time=now, monotonic=now, sleep=lambda seconds: None)
    scheme, _, name = url.partition("://")
    if url not in SERVED:
        SERVED[url] = StorageService(open_backend(f"memory://served-{name}", now=now), name, environment)

    def restart() -> None:
        SERVED.pop(url).close()
        SERVED[url] = StorageService(open_backend(f"memory://served-{name}", now=now), name, environment)

    transport: httpx.BaseTransport = Handing(lambda: SERVED[url])
    if scheme == "served+lossy":
        transport = Network(transport, random.Random(name), restart)
    return RemoteBackend(f"http://server/{name}", environment=environment, transport=transport)


def open_lossy(url: str, *, create: bool = True) -> RemoteBackend:
    """A store on a real server. Each process has other faults on its way to the server."""
    dice = random.Random(" ".join(sys.argv))
    network = Network(httpx.HTTPTransport(), dice, lambda: None)
    return RemoteBackend(url.removeprefix("lossy+"), transport=network)


register("served", open_url)
register("served+lossy", open_url)
register("lossy+http", open_lossy)
