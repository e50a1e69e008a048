"""Work in threads while the caller prepares more work."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from opslog.concurrency.overlapping import overlapped


class Gate:
    """Calls that wait until they are let through, and a record of those that have begun."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.changed = threading.Condition()
        self.is_open = False

    def __call__(self, item: int) -> int:
        with self.changed:
            self.begun.append(item)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.is_open)
            self.ended.append(item)
        if item < 0:
            raise ValueError(str(item))
        return item * 10

    def open(self) -> None:
        with self.changed:
            self.is_open = True
            self.changed.notify_all()


def never(_: object) -> bool:
    return False


def test_items_are_taken_while_others_are_at_work() -> None:
    gate = Gate()

    def items() -> Iterator[int]:
        yield 1
        yield 2
        with gate.changed:
            assert gate.changed.wait_for(lambda: sorted(gate.begun) == [1, 2], 60)
        assert gate.ended == []
        gate.open()
        yield from (3, 4)

    assert list(overlapped(gate, items(), never)) == [10, 20, 30, 40]


def test_no_more_than_two_at_once() -> None:
    lock, running, most = threading.Lock(), [0], [0]

    def work(item: int) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        with lock:
            running[0] -= 1
        return item

    assert list(overlapped(work, range(50), never)) == list(range(50))
    assert most[0] <= 2


def test_the_last_item_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def work(item: int) -> int:
        threads.append((item, threading.current_thread() is threading.main_thread()))
        return item

    assert list(overlapped(work, [1, 2, 3], lambda item: item == 3)) == [1, 2, 3]
    assert sorted(threads) == [(1, False), (2, False), (3, True)]
    assert list(overlapped(work, [], never)) == []


@pytest.mark.parametrize("is_error", [False, True])
def test_nothing_runs_any_more_at_the_end(is_error: bool) -> None:
    gate = Gate()

    def items() -> Iterator[int]:
        yield from (-1, 2)
        gate.open()
        yield 3

    results = overlapped(gate, items(), never)
    if is_error:
        with pytest.raises(ValueError, match="-1"):
            next(results)
    else:
        gate.open()
        results = overlapped(gate, [1, 2, 3], never)
        assert next(results) == 10
        results.close()  # type: ignore[attr-defined]
    assert sorted(gate.begun) == sorted(gate.ended)


def test_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert list(overlapped(lambda item: item + 1, range(5), never)) == [1, 2, 3, 4, 5]
