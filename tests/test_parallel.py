"""Work on items in as many threads as there are processors."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from opslog.concurrency import parallel
from opslog.concurrency.parallel import in_parallel
from tests.support.waiting import until


def never(_: object) -> bool:
    return False


@pytest.fixture(autouse=True)
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)


def test_results_are_in_the_order_of_the_items() -> None:
    """The first item ends last."""
    others_ended = threading.Event()
    ended: list[int] = []

    def work(item: int) -> int:
        if item == 0:
            assert others_ended.wait(60)
        ended.append(item)
        if len(ended) == 19:
            others_ended.set()
        return item * 10

    assert in_parallel(work, range(20), never) == [item * 10 for item in range(20)]
    assert ended[-1] == 0


def test_a_thread_for_each_processor_works_at_the_same_time() -> None:
    together = threading.Barrier(4)

    def work(item: int) -> str:
        together.wait(60)
        return threading.current_thread().name

    names = in_parallel(work, range(8), never)
    assert len(set(names)) == 4
    assert threading.main_thread().name in names


def test_items_are_made_in_the_callers_thread() -> None:
    """Code of the user may make them, such as `migrate`. It may use variables of its thread, or wait for a lock of the
    caller."""

    def items() -> Iterator[bool]:
        for _ in range(200):
            yield threading.current_thread() is threading.main_thread()

    assert in_parallel(lambda item: item, items(), never) == [True] * 200


def test_small_items_need_no_thread() -> None:
    threads = []

    def work(item: int) -> None:
        threads.append((item, threading.current_thread() is threading.main_thread()))

    in_parallel(work, range(100), lambda item: True)
    assert threads == [(number, True) for number in range(100)]
    assert in_parallel(work, [], never) == []


@pytest.mark.parametrize("who", ["the caller's thread", "another thread", "the iteration"])
def test_an_error_ends_the_work_and_no_thread_is_left(who: str) -> None:
    before = threading.active_count()
    failed = threading.Event()
    worked: list[int] = []

    def fail() -> None:
        failed.set()
        raise ValueError(who)

    def items() -> Iterator[int]:
        yield from range(100)
        if who == "the iteration":
            fail()

    def work(item: int) -> None:
        if who == (
            "the caller's thread" if threading.current_thread() is threading.main_thread() else "another thread"
        ):
            fail()
        assert failed.wait(60)
        worked.append(item)

    with pytest.raises(ValueError, match=who):
        in_parallel(work, items(), never)
    until(lambda: threading.active_count() == before)
    assert len(worked) < 100


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_waits_for_the_other_threads(interrupts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be reading a file that the caller is about to close. A second interrupt comes during that wait."""
    at_work = threading.Barrier(4)
    may_end = threading.Event()
    ended: list[int] = []
    left = [interrupts - 1]

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            may_end.set()
            if left[0]:
                left[0] -= 1
                raise KeyboardInterrupt
            return super().wait(timeout)

    def work(item: int) -> None:
        if item < 4:
            at_work.wait(60)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        may_end.wait(60)
        ended.append(item)

    monkeypatch.setattr(parallel, "threading", SimpleNamespace(Event=Event, Thread=threading.Thread))
    with pytest.raises(KeyboardInterrupt):
        in_parallel(work, range(100), never)
    assert len({0, 1, 2, 3} & set(ended)) == 3
    assert left == [0]


def test_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert in_parallel(lambda item: item + 1, range(5), never) == [1, 2, 3, 4, 5]
