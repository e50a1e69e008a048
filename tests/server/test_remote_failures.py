"""Failing writes of remote agents: memory and log agree, the error says what to do, and no commit is dropped silently.

`tests/store/test_failures.py` shows the same for a directory. Here the disk of the server fails, or the network on the
way to it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import opslog
from opslog.backends import open_backend, register
from opslog.backends.remote.backend import RemoteBackend
from opslog.server.stores.remote_storage import StorageService
from opslog.store import replica_of
from tests.support.faults import KINDS, attempts, check_failed_sync, stored, write_first
from tests.support.served_storage import Clock, Handing
from tests.support.waiting import until

URL = "failing://server/tasks"
BEFORE = {"old": {"turn": 2}}


class Network(httpx.BaseTransport):
    """The way to a server of the same process.

    :ivar fault: is called before each request, and returns what is done after the server has answered it.
    """

    def __init__(self, root: Path) -> None:
        self.restart(root)
        self.clock = Clock()
        self.fault: Callable[[httpx.Request], Callable[[], object]] = lambda request: lambda: None

    def restart(self, root: Path) -> None:
        """As if the server were killed: it knows of no name, lock or lane any more."""
        self.service = StorageService(open_backend(root), "tasks")
        self._server = Handing(lambda: self.service)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        after = self.fault(request)
        response = self._server.handle_request(request)
        after()
        return response

    def cut(self) -> None:
        """From now on no request reaches the server."""

        def refuse(request: httpx.Request) -> Callable[[], object]:
            raise httpx.ConnectError("no route to host", request=request)

        self.fault = refuse

    def lose_answers(self) -> None:
        """From now on the server gets requests, and nobody gets its answers."""

        def take(request: httpx.Request) -> Callable[[], object]:
            def lose() -> None:
                raise httpx.ReadError("connection reset by peer", request=request)

            return lose

        self.fault = take

    def mend(self) -> None:
        self.fault = lambda request: lambda: None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    opslog.open(tmp_path / "store", agent="founder").close()
    return tmp_path / "store"


@pytest.fixture
def network(root: Path) -> Iterator[Network]:
    network = Network(root)

    def open_url(url: str, *, create: bool = True) -> RemoteBackend:
        return RemoteBackend("http://server/tasks", environment=network.clock.environment, transport=network)

    register("failing", open_url)
    yield network
    network.service.close()


def opened(agent: str = "a", **options: Any) -> opslog.Store[Any]:
    return opslog.open(URL, agent=agent, compact_after=None, **options)


@pytest.mark.parametrize("kind", KINDS)
class TestOneWrite:
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_the_disk_of_the_server_is_full(
        self, root: Path, network: Network, monkeypatch: pytest.MonkeyPatch, kind: str, code: int
    ) -> None:
        advice = {errno.ENOSPC: "No space left on device; free some space", errno.EIO: "dmesg"}[code]
        with opened() as store:
            store["old"] = {"turn": 1}
            store["old"] = {"turn": 2}
            for written in (0, 1, 30):
                with monkeypatch.context() as patch:
                    patch.setattr(os, "write", write_first(written, code))
                    for _ in range(2):
                        with pytest.raises(opslog.WriteFailedError, match=advice) as caught:
                            attempts(store)[kind]()
                        assert str(root) not in str(caught.value), "clients do not learn where the server keeps it"
                        assert caught.value.durable == 0
                        assert dict(store.items()) == BEFORE == stored(root)
            attempts(store)[kind]()
            store["later"] = {}
            assert dict(store.items()) == stored(root) != BEFORE | {"later": {}}

    def test_no_request_reaches_the_server(self, root: Path, network: Network, kind: str) -> None:
        with opened() as store:
            store["old"] = {"turn": 1}
            store["old"] = {"turn": 2}
            network.cut()
            for _ in range(2):
                with pytest.raises(opslog.WriteFailedError, match=r"nothing was written .*no route to host.*try again"):
                    attempts(store)[kind]()
                assert dict(store.items()) == BEFORE == stored(root)
            network.mend()
            attempts(store)[kind]()
            assert dict(store.items()) == stored(root) != BEFORE

    @pytest.mark.parametrize("restarted", [False, True])
    def test_every_answer_is_lost(self, root: Path, network: Network, kind: str, restarted: bool) -> None:
        """The commit is in the log, once, however often the request was repeated."""
        with opened() as store:
            store["old"] = {"turn": 1}
            store["old"] = {"turn": 2}
            network.lose_answers()
            with pytest.raises(opslog.CommitUnknownError, match=r"may or may not be there.*open it again, and check"):
                attempts(store)[kind]()
            assert dict(store.items()) == BEFORE
            if restarted:
                network.service.close()
                network.restart(root)
            network.mend()
            with pytest.raises(opslog.ReopenError, match="open it again"):
                store["next"] = {}
            assert dict(store.items()) == BEFORE
            commits = len(list(store.ops()))
        with opened() as store:
            assert dict(store.items()) == stored(root) != BEFORE
            assert len(list(store.ops())) == commits == 3
            store["next"] = {}
        assert "next" in stored(root)

    def test_one_answer_is_lost(self, root: Path, network: Network, kind: str) -> None:
        """The client asks again, and nobody learns of it."""
        with opened() as store:
            store["old"] = {"turn": 1}
            store["old"] = {"turn": 2}
            network.lose_answers()
            lose = network.fault

            def once(request: httpx.Request) -> Callable[[], object]:
                network.mend()
                return lose(request)

            network.fault = once
            attempts(store)[kind]()
            assert dict(store.items()) == stored(root) != BEFORE
            assert len(list(store.ops())) == 3

    def test_fdatasync_fails_at_the_server(self, root: Path, network: Network, kind: str) -> None:
        check_failed_sync(opened, root, kind)


@pytest.mark.parametrize("fault", ["refused", "unknown"])
def test_commits_of_many_threads_share_a_failed_request(root: Path, network: Network, fault: str) -> None:
    """The first of eight threads sends a request, and the commits of the others are queued behind it."""
    with opened() as store:
        store["old"] = {}
        writer = replica_of(store).log
        assert writer is not None

        def first(request: httpx.Request) -> Callable[[], object]:
            until(lambda: len(writer._queue) == 7)
            network.cut() if fault == "refused" else network.lose_answers()
            return lambda: None

        network.fault = first
        ids = [f"doc-{number}" for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            futures = {id: pool.submit(store.set, id, {}) for id in ids}
            errors = {id: error for id, future in futures.items() if (error := future.exception()) is not None}
        done = set(ids) - set(errors)
        assert len(done) == 1
        expected = opslog.WriteFailedError if fault == "refused" else opslog.CommitUnknownError
        assert {type(error) for error in errors.values()} == {expected}
        assert len({id(error) for error in errors.values()}) == 7
        assert set(store) == done | {"old"}
        network.mend()
        if fault == "refused":
            store["later"] = {}
            assert set(store) == done | {"old", "later"} == set(stored(root))
        else:
            with pytest.raises(opslog.ReopenError):
                store["later"] = {}
    assert done | {"old"} <= set(stored(root))


class TestBuffered:
    @pytest.mark.parametrize("name", [*KINDS, "flush", "get", "refresh", "compact", "close"])
    def test_a_failure_in_the_background_surfaces_at_the_next_call(
        self, root: Path, network: Network, name: str
    ) -> None:
        store = opened(durability="buffered")
        store["old"] = {}
        store.flush()
        network.cut()
        store["lost"] = {}
        until(lambda: replica_of(store).failure is not None)
        network.mend()
        calls: dict[str, Callable[[], object]] = attempts(store) | {
            "flush": store.flush,
            "get": lambda: store["old"],
            "refresh": store.refresh,
            "compact": store.compact,
            "close": store.close,
        }
        with pytest.raises(opslog.OpslogError, match=r"no route to host"):
            calls[name]()
        store.close()
        assert stored(root) == {"old": {}}

    @pytest.mark.parametrize("call", ["flush", "close"])
    @pytest.mark.parametrize("fault", ["refused", "unknown"])
    def test_a_failure_at_flush_or_close(self, root: Path, network: Network, call: str, fault: str) -> None:
        store = opened(durability="buffered", buffer_seconds=3600)
        store["old"] = {}
        store.flush()
        store["new"] = {}
        network.cut() if fault == "refused" else network.lose_answers()
        with pytest.raises(opslog.OpslogError, match="no route to host" if fault == "refused" else "may or may not be"):
            {"flush": store.flush, "close": store.close}[call]()
        network.mend()
        with suppress(opslog.OpslogError):
            store.close()
        assert set(stored(root)) == ({"old"} if fault == "refused" else {"old", "new"})
        with opened(agent="b") as again:  # the name "a" may still be taken: the server has not heard of its end
            again["later"] = {}
        assert stored(root).keys() - {"new"} == {"old", "later"}

    def test_a_set_after_a_failure_does_not_outlive_the_lost_commits(self, root: Path, network: Network) -> None:
        store = opened(durability="buffered", buffer_seconds=3600)
        store["old"] = {}
        store.flush()

        def fault(request: httpx.Request) -> Callable[[], object]:
            beside = threading.Thread(target=store.set, args=("second", {"rests on": "first"}))
            beside.start()
            beside.join()
            network.cut()
            return network.fault(request)

        network.fault = fault
        store["first"] = {}
        with pytest.raises(opslog.OpslogError, match="no route to host"):
            store.flush()
        network.mend()
        with suppress(opslog.OpslogError):
            store.close()
        assert stored(root) == {"old": {}}
