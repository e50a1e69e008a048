"""Signal handlers that come in the middle of a write: some raise, others write to the same store."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import opslog
from opslog.backends.local.fs_log import FsAppender
from opslog.environment import REAL
from opslog.format import commits
from opslog.store import replica_of
from tests.interrupts.places import at_each
from tests.support import bucket  # noqa: F401  (stores at bucket://)
from tests.support.waiting import until

Store = opslog.Store[dict[str, Any]]

DURABILITIES = pytest.mark.parametrize("durability", ["fsync", "buffered"])
DIRECTORY = pytest.param("directory", marks=pytest.mark.slow)
"""With two fdatasyncs for each of hundreds of places."""


class Interrupt(Exception):
    """As a signal handler raises it: for an alarm, or a test's timeout."""


class Stage:
    """A new store for each call, with two documents in it, and what everybody reads afterwards."""

    def __init__(self, storage: str, durability: Any, folder: Path) -> None:
        self._urls = (f"{folder}/{number}" for number in itertools.count())
        if storage != "directory":
            self._urls = (f"{storage}://signals-{folder.name}-{number}" for number in itertools.count())
        self._durability = durability

    def open(self) -> Store:
        self.url = next(self._urls)
        # Only the calls write the buffer.
        self.store = opslog.open(
            self.url, agent="a", durability=self._durability, buffer_seconds=3600, compact_after=None
        )
        self.store["x"] = {"v": 1}
        self.store["x"] = {"v": 2}
        self.store["y"] = {"v": 1}
        self.store.flush()
        return self.store

    def stored(self) -> dict[str, Any]:
        with opslog.open(self.url, read_only=True) as fresh:
            return dict(fresh.items())


def batch(store: Store) -> None:
    with store.batch():
        store["x"] = {"v": 3}
        store["y"] = {"v": 3}


CALLS: dict[str, Callable[[Store], object]] = {
    "set": lambda store: store.set("x", {"v": 3}),
    "delete": lambda store: store.delete("y"),
    "batch": batch,
    "undo": lambda store: store.undo(),
    "flush": lambda store: store.flush(),
}


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("storage", ["memory", "bucket", DIRECTORY])
@DURABILITIES
def test_an_exception_at_any_place_leaves_memory_and_log_agreed(
    tmp_path: Path, durability: Any, storage: str, call: str, every: int
) -> None:
    """What is in memory afterwards is in the log when the store is closed, or the store says that it has to be opened
    again. And the next write is not lost."""
    stage = Stage(storage, durability, tmp_path)

    def prepare(number: int) -> Callable[[], object]:
        store = stage.open()
        if call == "flush":
            store["z"] = {"v": 1}
        return lambda: CALLS[call](store)

    def interrupt() -> None:
        raise Interrupt

    with ThreadPoolExecutor(1) as another_thread:
        for place, outcome in at_each(prepare, interrupt, every):
            assert isinstance(outcome, Interrupt | bool | None), (place, outcome)
            store = stage.store
            with suppress(opslog.ReopenError):
                dict(store.items())
                # No lock stays taken, and the queued commits come with the next write.
                another_thread.submit(store.set, "after", {}).result(60)
                seen = dict(store.items())
                assert "after" in seen, place
                store.close()
                assert stage.stored() == seen, place
            store.close()
            with opslog.open(stage.url, agent="a") as again:
                again["again"] = {}
            assert "again" in stage.stored(), place


@pytest.mark.parametrize("every", [11, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("inner", ["set", "batch", "undo", "flush", "close"])
@pytest.mark.parametrize(
    ("storage", "outer"),
    [
        ("memory", "set"),
        ("memory", "batch"),
        ("memory", "undo"),
        ("bucket", "set"),
        pytest.param("directory", "set", marks=pytest.mark.slow),
    ],
)
@DURABILITIES
def test_a_call_in_a_handler_is_done_or_refused_and_the_interrupted_one_is_done(
    tmp_path: Path, *, durability: Any, storage: str, outer: str, inner: str, every: int
) -> None:
    stage = Stage(storage, durability, tmp_path)
    done: list[str] = []

    def prepare(number: int) -> Callable[[], object]:
        store = stage.open()
        done.clear()
        return lambda: CALLS[outer](store)

    def call_again() -> None:
        store = stage.store
        with suppress(opslog.UsageError):
            match inner:
                case "set":
                    store["inner"] = {"v": 1}
                case "batch":
                    with store.batch():
                        store["inner"] = {"v": 1}
                case "undo":
                    store.undo()
                case "flush":
                    store.flush()
                case _:
                    store.close()
            done.append(inner)

    refused = 0
    # All places would take long; `tests.interrupts` has them.
    for place, outcome in at_each(prepare, call_again, every):
        refused += not done
        store, has_closed = stage.store, done == ["close"]
        # A batch can be closed before its end, and an undo before it begins.
        expected = (None, True) if not has_closed else (None, True, opslog.ClosedError)
        assert outcome in expected or type(outcome) in expected, (place, outcome)
        if not has_closed:
            store["after"] = {}
            store.close()
        found = stage.stored()
        if outcome is None and inner != "undo":
            assert found["x"] == {"v": 3}, place
        if done and inner in ("set", "batch") and outer != "undo":  # an undo may take it back
            assert "inner" in found, place
        assert has_closed or "after" in found, place
    assert refused, "nobody comes into the log twice"


def test_a_handler_that_comes_while_another_thread_writes_waits_for_it_as_the_interrupted_call_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = FsAppender.append
    with opslog.open(tmp_path, agent="a") as store:
        log = replica_of(store).log
        assert log is not None
        leading = threading.Event()

        def lead(self: FsAppender, data: bytes) -> Any:
            if threading.current_thread() is not threading.main_thread():
                leading.set()
                until(lambda: len(log._queue) == 1)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                until(lambda: len(log._queue) == 2)
            return append(self, data)

        def handle(number: int, frame: FrameType | None) -> None:
            store["handler"] = {}

        monkeypatch.setattr(FsAppender, "append", lead)
        before = signal.signal(signal.SIGUSR1, handle)
        try:
            leader = threading.Thread(target=store.set, args=("leader", {}))
            leader.start()
            assert leading.wait(60)
            store["interrupted"] = {}
            leader.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
    with opslog.open(tmp_path, read_only=True) as fresh:
        assert set(fresh) == {"leader", "interrupted", "handler"}


def test_a_handler_that_runs_while_a_commit_is_queued_does_not_wait_for_the_writing_thread(tmp_path: Path) -> None:
    """A writing thread waits in turn for the thread that queues."""
    comes = [False]
    refused: list[opslog.UsageError] = []
    writers: list[threading.Thread] = []

    def time() -> float:  # called while a commit is queued: here a signal comes
        if comes[0]:
            comes[0] = False
            writers.append(threading.Thread(target=store.flush))
            writers[0].start()
            until(lambda: log is not None and log._alone.holder is not None)
            with pytest.raises(opslog.UsageError) as caught:
                store.undo()
            refused.append(caught.value)
        return REAL.time()

    environment = opslog.Environment(time=time)
    with opslog.open(tmp_path, durability="buffered", buffer_seconds=1000.0, environment=environment) as store:
        log = replica_of(store).log
        assert log is not None
        store["x"] = {}
        comes[0] = True
        store["y"] = {}
        writers[0].join()
        assert len(refused) == 1
        assert dict(store.items()) == {"x": {}, "y": {}}


@DURABILITIES
def test_handlers_in_handlers(tmp_path: Path, durability: Any) -> None:
    """Each may interrupt the handler before it, at any place."""
    stage, depth, done = Stage("memory", durability, tmp_path), [0], list[str]()

    def prepare(number: int) -> Callable[[], object]:
        store = stage.open()
        depth[0] = 0
        done.clear()
        return lambda: store.set("outer", {})

    def call_again() -> None:
        depth[0] += 1
        if depth[0] > 3:
            return
        id = f"inner-{depth[0]}"
        with suppress(opslog.UsageError):
            at = sys.getprofile()
            sys.setprofile(lambda frame, event, argument: call_again() if event == "c_return" else None)
            try:
                stage.store[id] = {}
                done.append(id)
            finally:
                sys.setprofile(at)

    for place, outcome in at_each(prepare, call_again):
        assert outcome is None, (place, outcome)
        stage.store["after"] = {}
        stage.store.close()
        assert {"outer", "after", *done} <= set(stage.stored()), place


def test_a_commit_refused_by_a_buffer_is_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too long a line, and a clock after which none is left."""
    monkeypatch.setattr(commits, "LINE_BYTES_MAX", 1000)
    with opslog.open("memory://signals-refused", agent="a", durability="buffered", buffer_seconds=3600) as store:
        store["x"] = {"v": 1}
        with pytest.raises(opslog.UsageError, match="one commit would take"):
            store["x"] = {"text": "x" * 1000}
        with pytest.raises(opslog.UsageError, match="one commit would take"):
            store.update({f"{number}": {"text": "x" * 1000} for number in range(2)})
        replica_of(store).clock.observe(commits.CLOCK_MAX)
        with pytest.raises(opslog.CorruptError, match="no commit can follow"):
            store["x"] = {"v": 2}
        assert dict(store.items()) == {"x": {"v": 1}}
        store.flush()
        with opslog.open("memory://signals-refused", read_only=True) as fresh:
            assert dict(fresh.items()) == {"x": {"v": 1}}
