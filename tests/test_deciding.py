"""Transactions of many threads and tasks of one process: they are decided in groups."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import Position
from opslog.errors import ClosedError, ConflictError, ExistsError, NotFoundError, UsageError
from opslog.format import commits
from opslog.format.layout import TRANSACTIONS
from opslog.replica import transaction
from opslog.store import replica_of
from tests.support import bucket  # noqa: F401  (stores at bucket://)
from tests.support.waiting import until
from tests.test_transaction_faults import deciding_of
from tests.test_transactions import Document, Store, increment, open_writer, shared

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


def test_transactions_of_all_tasks_that_are_ready_share_one_append(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    appends: list[bytes] = []

    async def main() -> None:
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:
            backend = store._replica.backend
            append_at = backend.append_at

            def counted(log: str, end: Position, data: bytes) -> Position | None:
                appends.append(data)
                return append_at(log, end, data)

            monkeypatch.setattr(backend, "append_at", counted)
            await asyncio.gather(*(store.modify(f"{number % 60}", increment) for number in range(64)))
            assert await store.count() == 60
            assert await store.get("3") == {"n": 2}

    asyncio.run(main())
    assert [data.count(b"\n") for data in appends] == [64]


def test_a_transaction_sees_what_those_before_it_in_its_group_wrote(url: str) -> None:
    async def main() -> None:
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:

            def note(transaction: opslog.Transaction[Document]) -> int:
                seen = len(transaction)
                transaction[f"{seen:03}"] = {"n": sum(document["n"] for document in transaction.values()) + 1}
                return seen

            assert await asyncio.gather(*(store.transact(note) for _ in range(12))) == list(range(12))
            assert [document["n"] async for _, document in store.items()] == [2**number for number in range(12)]

    asyncio.run(main())


class _Hasty(deque[Any]):
    """A queue that something happens to right before a transaction comes into it."""

    def __init__(self, before: Callable[[], object]) -> None:
        super().__init__()
        self._before = before

    def append(self, waiting: Any) -> None:
        self._before()
        super().append(waiting)


def test_a_transaction_that_comes_while_the_store_is_closed_is_refused(url: str) -> None:
    """Closing ends what is queued; nobody would decide what comes later."""

    async def main() -> None:
        store = await opslog.aio.open(url, agent="a", compact_after=None)
        deciding = store._replica.transactions
        assert deciding is not None
        deciding._queue = _Hasty(store._close)
        with pytest.raises(ClosedError):
            await asyncio.wait_for(store.modify("n", increment), 30)

    asyncio.run(main())
    with open_writer(url, "b") as b:
        assert "n" not in b
        deciding = deciding_of(b)
        deciding._queue = _Hasty(b.close)
        with pytest.raises(ClosedError):
            b.modify("n", increment)


def test_a_transaction_that_was_taken_before_the_store_was_closed_keeps_its_outcome(url: str) -> None:
    class Taken(deque[Any]):
        """Its transactions are decided, and the store is closed, right after they come."""

        def append(self, waiting: Any) -> None:
            super().append(waiting)
            deciding.decide_all()
            a.close()

    with open_writer(url, "a") as a:
        deciding = deciding_of(a)
        deciding._queue = Taken()
        assert a.modify("n", increment) == {"n": 1}
    with open_writer(url, "b") as b:
        assert b["n"] == {"n": 1}


def test_an_error_while_tasks_are_woken_leaves_the_others_for_the_next_turn(url: str) -> None:
    class Interrupted(asyncio.Future[None]):
        def set_result(self, result: None) -> None:
            super().set_result(result)
            raise TimeoutError("by the handler of a signal")

    async def main() -> None:
        errors: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: errors.append(context.get("exception")))
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:
            waiters = [Interrupted(loop=loop), loop.create_future(), loop.create_future()]
            for waiter in waiters:
                store._note_end(waiter)
            await asyncio.wait_for(asyncio.gather(*waiters), 30)
        assert [str(error) for error in errors] == ["by the handler of a signal"]

    asyncio.run(main())


def test_a_commit_is_no_news_to_its_author(url: str) -> None:
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
def test_a_refresh_does_not_wait_for_a_deciding_thread(url: str, call: str) -> None:
    """A signal handler that comes into a refresh has to be refused, because a deciding thread may be waiting for the
    end of that refresh."""
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


def before_each_append(patch: pytest.MonkeyPatch, store: Store, calls: Iterable[Callable[[], object]]) -> None:
    """Make these calls, one before each append of the store to the shared log, until none is left."""
    left = iter(calls)
    backend = replica_of(store).backend
    append_at = backend.append_at

    def append(*arguments: Any) -> Any:
        next(left, lambda: None)()
        return append_at(*arguments)

    patch.setattr(backend, "append_at", append)


def test_a_call_after_the_refresh_of_a_group_waits_for_the_next_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would miss what was acknowledged after that refresh and before its own call."""
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        deciding, replica = deciding_of(a), replica_of(a)
        read_logs = replica.read_logs
        late: list[Any] = []

        def read_and_come() -> None:
            read_logs()
            if not late:
                b["n"] = {"n": 10}
                submit = partial(deciding.submit, partial(transaction.modify, "n", increment))
                late.append(pool.submit(submit).result(30))

        with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
            patch.setattr(replica, "read_logs", read_and_come)
            deciding.submit(partial(transaction.create, "other", {}))
            deciding.decide_all()
        assert late[0].outcome() == a["n"] == {"n": 11}


def test_no_outcome_is_known_before_the_append_of_its_group(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a.create("n", {"n": 0})
        deciding = deciding_of(a)
        heard: list[str] = []

        def submit(name: str, decide: Callable[[opslog.Transaction[Document]], Any]) -> Any:
            return deciding.submit(decide, notify=lambda: heard.append(name))

        written = submit("written", partial(transaction.modify, "n", increment))
        read = submit("read", lambda transaction: transaction["n"])
        refused = submit("refused", lambda transaction: transaction[f"none {transaction['n']}"])
        # The first append loses its race. So what was read and refused for it does not count.
        calls = [lambda: b.modify("n", lambda _: {"n": 10}), lambda: heard.append("the second append begins")]
        before_each_append(monkeypatch, a, calls)
        deciding.decide_all()
        assert heard == ["the second append begins", "written", "read", "refused"]
        assert written.outcome() == read.outcome() == {"n": 11}
        with pytest.raises(NotFoundError, match="11"):
            refused.outcome()


def test_a_call_that_is_cancelled_before_its_group_is_closed_leaves_nothing(url: str) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold(document: Document | None) -> Document:
        entered.set()
        assert leave.wait(30)
        return increment(document)

    async def main() -> None:
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:
            first = asyncio.ensure_future(store.modify("n", hold))
            await asyncio.to_thread(entered.wait, 30)
            cancelled = asyncio.ensure_future(store.modify("n", increment))
            last = asyncio.ensure_future(store.modify("n", increment))
            await asyncio.sleep(0)  # both are queued now
            cancelled.cancel()
            await asyncio.wait([cancelled])
            leave.set()
            assert [await first, await last] == [{"n": 1}, {"n": 2}]
            assert cancelled.cancelled()

    asyncio.run(main())


def test_a_lost_race_in_which_nothing_changed_is_no_attempt(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        calls: list[None] = []

        def count(transaction: opslog.Transaction[Document]) -> None:
            calls.append(None)
            transaction["n"] = increment(transaction.get("n"))

        others = [partial(b.modify, id, increment) for id in ("other", "other", "n")]
        before_each_append(monkeypatch, a, others)
        a.transact(count, attempts=2)
        assert len(calls) == 2
        assert a["n"] == {"n": 2}
        # If the last attempt is decided on what is there, no later race takes it away.
        before_each_append(monkeypatch, a, others[:2])
        a.transact(count, attempts=1)
        assert a["n"] == {"n": 3}


def test_an_undo_waits_for_the_append_of_what_it_takes_back(url: str) -> None:
    """There is nothing else that it could take back."""
    with open_writer(url, "a") as a:
        deciding = deciding_of(a)
        deciding.submit(partial(transaction.create, "x", {}))
        undone = deciding.submit(lambda transaction: transaction.undo("a"))
        deciding.decide_all()
        assert undone.outcome() == ("x",)
        assert "x" not in a
