"""Transactions of many threads and tasks of one process, which are decided in groups."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import opslog
from opslog.errors import ConflictError, ExistsError, UsageError
from opslog.format import commits
from opslog.format.layout import TRANSACTIONS
from opslog.store import replica_of
from tests.support import bucket  # noqa: F401  (stores at bucket://)
from tests.support.waiting import until
from tests.test_transactions import Document, increment, open_writer, shared

_numbers = itertools.count()


@pytest.fixture(params=["directory", "memory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "directory" else f"{request.param}://deciding-{next(_numbers)}"


def test_threads_share_appends_and_lose_nothing(url: str) -> None:
    with open_writer(url, "a") as a:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: a.modify("n", increment), range(64)))
        assert a["n"] == {"n": 64}
        assert len(shared(a)) == 64


def test_a_transaction_that_is_too_long_for_a_line_fails_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "LINE_BYTES_MAX", 10_000)
    with open_writer(url, "a") as a:
        entered, leave = threading.Event(), threading.Event()

        def hold(document: Document | None) -> Document:
            entered.set()
            assert leave.wait(30)
            return increment(document)

        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(a.modify, "n", hold)
            assert entered.wait(30)
            others = [pool.submit(a.create, "long", {"n": "x" * 10_000}), pool.submit(a.create, "short", {"n": 1})]
            deciding = replica_of(a).transactions
            assert deciding is not None
            until(lambda: len(deciding._queue) == 2)
            leave.set()
            assert first.result(30) == {"n": 1}
            with pytest.raises(UsageError, match="make several"):
                others[0].result(30)
            others[1].result(30)
        assert sorted(a) == ["n", "short"]


def test_tasks_share_appends_and_lose_nothing(url: str) -> None:
    async def main() -> None:
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:
            outcomes = await asyncio.gather(
                *(store.modify("n", increment) for _ in range(64)),
                *(store.create("x", {"n": number}) for number in range(8)),
                return_exceptions=True,
            )
            assert sum(isinstance(outcome, ExistsError) for outcome in outcomes) == 7
            assert await store.get("n") == {"n": 64}
            async with store.transaction() as transaction:
                transaction["y"] = {"n": len(transaction)}
            assert await store.get("y") == {"n": 2}
            assert (await store.record("y")).author == "a"  # type: ignore[union-attr]
            await store.set("y", {"n": 3})
            stamp = (await store.record("y")).stamp  # type: ignore[union-attr]
            assert stamp.agent == TRANSACTIONS
            await store.delete("y", if_stamp=stamp)
            with pytest.raises(ConflictError):
                await store.set("y", {}, if_stamp=stamp)
            assert await store.transact(len) == 2
            cancelled = asyncio.ensure_future(store.modify("n", increment))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert (await store.modify("n", increment)) in ({"n": 65}, {"n": 66})

    asyncio.run(main())


def test_what_is_news_to_others_is_none_to_its_author(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a.create("x", {})
        b.create("y", {})
        a.refresh()
        a.create("z", {})
        assert [commit.author for commit in b.refresh()] == ["a", "a"]
        assert a.refresh() == []
        assert "y" in a


def test_an_interrupt_in_a_function_leaves_nothing_and_others_go_on(url: str) -> None:
    with open_writer(url, "a") as a:
        entered, leave = threading.Event(), threading.Event()

        def interrupted(transaction: opslog.Transaction[Document]) -> None:
            transaction["x"] = {}
            entered.set()
            leave.wait(30)
            raise KeyboardInterrupt

        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(a.transact, interrupted)
            assert entered.wait(30)
            second = pool.submit(a.modify, "n", increment)
            leave.set()
            with pytest.raises(KeyboardInterrupt):
                first.result(30)
            assert second.result(30) == {"n": 1}
        assert sorted(a) == ["n"]
        assert replica_of(a).transactions is not None


@pytest.mark.parametrize("call", ["modify", "set", "close"])
def test_who_is_refreshing_waits_for_nobody_who_decides(url: str, call: str) -> None:
    """A signal's handler that comes into a refresh has to be refused: whoever decides may be waiting for its end."""
    with open_writer(url, "a") as a:
        a.create("n", {"n": 0})
        entered, leave = threading.Event(), threading.Event()

        def hold(document: Document | None) -> Document:
            entered.set()
            assert leave.wait(30)
            return increment(document)

        def handle() -> None:
            leave.set()
            calls = {"modify": lambda: a.modify("n", increment), "set": lambda: a.set("n", {}), "close": a.close}
            with pytest.raises(UsageError, match="handler"):
                calls[call]()

        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(a.modify, "n", hold)
            assert entered.wait(30)
            replica_of(a).between_refreshes(handle)
            assert first.result(30) == {"n": 1}
        assert a.modify("n", increment) == {"n": 2}
