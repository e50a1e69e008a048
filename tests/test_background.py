"""Background threads: nothing ends them before they are closed, and a store copes without them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from opslog.concurrency.background import Worker
from opslog.errors import WriteFailedError
from opslog.logs import logger
from tests.support.waiting import until


class Work:
    """The work of a worker: it raises the given exceptions, one after the other."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.runs = 0

    def __call__(self) -> None:
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)

    def has_run_since(self, runs: int) -> bool:
        return self.runs > runs


@pytest.fixture
def make() -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(work: Callable[[], None], **options: Any) -> Worker:
        made.append(Worker("opslog-test", work, what="this test", **options))
        return made[-1]

    yield make
    for worker in made:
        worker.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "opslog-test"]


def test_it_runs_when_it_is_woken(make: Callable[..., Worker]) -> None:
    work = Work()
    worker = make(work)
    while work.runs < 3:
        before = work.runs
        assert worker.wake()
        until(partial(work.has_run_since, before))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("no memory to wait")])
def test_an_exception_between_two_runs_does_not_end_it(
    make: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    work, errors = Work(), [error]
    worker = make(work, retry_seconds=0.001)
    wait = worker._bell.wait

    def fail_once(*arguments: Any) -> bool:
        if errors:
            raise errors.pop()
        return wait(*arguments)

    monkeypatch.setattr(worker._bell, "wait", fail_once)
    assert worker.wake()
    until(lambda: not errors)
    before = work.runs
    worker.wake()
    until(partial(work.has_run_since, before))


def test_a_worker_that_ended_is_started_again(make: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended by an exception that nobody should catch, such as one of a debugger or a test."""
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    work = Work(SystemExit())
    worker = make(work)
    worker.wake()
    until(lambda: worker._thread is None and work.runs == 1)
    worker.wake()
    until(partial(work.has_run_since, 1))


def test_a_hurried_one_does_not_wait_for_more(make: Callable[..., Worker]) -> None:
    work = Work()
    worker = make(work, delay_seconds=3600.0)
    assert worker.wake()
    assert worker.wake(hurry=True)
    until(lambda: work.runs == 1)


@pytest.mark.parametrize("error", [WriteFailedError("the disk is full"), ValueError("not known"), MemoryError("none")])
def test_a_run_that_failed_is_logged_and_tried_again_without_being_woken(
    make: Callable[..., Worker], caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    work = Work(error, error, error)
    with caplog.at_level(logging.WARNING, "opslog"):
        make(work, retry_seconds=0.001).wake()
        until(lambda: work.runs == 4)
    pauses = [record.getMessage().split("again in ")[1].split(" seconds")[0] for record in caplog.records]
    assert pauses == ["0.001", "0.002", "0.004"], "each twice as long as the one before"
    assert all(str(error) in record.getMessage() for record in caplog.records)
    # Unexpected errors are reported with their origin.
    assert [record.exc_info is None for record in caplog.records] == [isinstance(error, WriteFailedError)] * 3


def test_a_run_that_failed_is_tried_again_when_it_is_woken(make: Callable[..., Worker]) -> None:
    work = Work(ValueError("not known"))
    worker = make(work, retry_seconds=3600.0)
    worker.wake()
    until(lambda: work.runs == 1)
    worker.wake()
    until(lambda: work.runs == 2)


def test_a_good_run_ends_the_trying(make: Callable[..., Worker], caplog: pytest.LogCaptureFixture) -> None:
    work = Work(ValueError("not known"))
    worker = make(work, retry_seconds=0.001)
    worker.wake()
    until(lambda: work.runs == 2)
    worker.wake()
    until(lambda: work.runs == 3)
    assert len(caplog.records) == 1


def test_an_exception_that_ends_a_thread_does_not_end_the_worker(
    make: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    work = Work(SystemExit("one thread only"))
    worker = make(work)
    worker.wake()
    until(lambda: worker._thread is None)
    worker.wake()
    until(lambda: work.runs == 2)


def test_where_no_thread_can_be_started_the_caller_learns_it_and_a_later_wake_tries_again(
    make: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    work = Work()
    worker = make(work)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert [worker.wake(), worker.wake(hurry=True)] == [False, False]
        with closing(make(work)) as never_started:
            assert not never_started.wake()
    assert worker.wake()
    until(lambda: work.runs == 1)


@pytest.mark.parametrize("has_started", [True, False])
def test_an_interrupted_start_leaves_a_worker_that_can_be_woken(
    make: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, has_started: bool
) -> None:
    start = threading.Thread.start

    def interrupt(thread: threading.Thread) -> None:
        if has_started:
            start(thread)
        raise KeyboardInterrupt

    work = Work()
    worker = make(work)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            worker.wake()
    before = work.runs
    assert worker.wake()
    until(lambda: work.runs > before)


def test_closing_does_not_wait_for_the_pause_after_a_failure(make: Callable[..., Worker]) -> None:
    work = Work(ValueError("not known"))
    worker = make(work, retry_seconds=3600.0)
    worker.wake()
    until(lambda: work.runs == 1)
    worker.close()
    assert worker.wake(), "nobody is to do it instead"
    assert work.runs == 1


def test_loggers_have_one_handler_that_prints_nothing() -> None:
    for _ in range(3):
        assert logger("log").name == "opslog.log"
    handlers = logging.getLogger("opslog").handlers
    assert [type(handler) for handler in handlers].count(logging.NullHandler) == 1
