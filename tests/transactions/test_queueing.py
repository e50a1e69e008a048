"""Processes that compete for the same documents take turns: none starves, and a paused one holds nobody up."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog import Environment
from opslog.backends import open_backend
from opslog.errors import LockedError
from opslog.replica import queueing
from tests.support import programs
from tests.support.places import Place
from tests.support.processes import start
from tests.support.programs import increment

Document = dict[str, Any]


def overtaken(url: str, store: opslog.Store[Document], options: dict[str, Any]) -> list[bool]:
    """For each call of a function that another process overtakes for the first time: whether it had a place in the
    queue."""
    placed: list[bool] = []
    backend = open_backend(url, **options)
    with opslog.open(url, agent="faster", **options) as faster:

        def function(document: Document | None) -> Document:
            try:
                with backend.lock(queueing.LOCK):
                    placed.append(False)
            except LockedError:
                placed.append(True)
            if len(placed) == 1:
                faster.modify("counter", increment)
            return increment(document)

        assert store.modify("counter", function) == {"number": 2}
    backend.close()
    return placed


def test_a_writer_that_lost_a_race_queues_before_it_decides_again(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="slower") as store:
        store.create("counter", {"number": 0})
        assert overtaken(str(tmp_path), store, {}) == [False, True]


@pytest.mark.parametrize("place", ["moto-obstore"], indirect=True)
def test_on_an_object_storage_nobody_queues(place: Place) -> None:
    with opslog.open(place.url(), agent="slower", **place.options) as store:
        store.create("counter", {"number": 0})
        assert overtaken(place.url(), store, place.options) == [False, False]


def test_a_writer_stopped_in_the_queue_delays_nobody(tmp_path: Path) -> None:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    environment = Environment(monotonic=lambda: clock[0], sleep=sleep)
    backend = open_backend(str(tmp_path))
    with opslog.open(tmp_path, agent="slower", environment=environment) as store:
        store.create("counter", {"number": 0})
        with backend.lock(queueing.LOCK):  # as a paused process holds it
            assert overtaken(str(tmp_path), store, {}) == [True, True]
    assert queueing.WAIT_SECONDS <= clock[0] < 2 * queueing.WAIT_SECONDS
    backend.close()


@pytest.mark.parametrize(
    ("processes", "times"), [(4, 25), pytest.param(8, 500, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_a_counter_counts_every_increment(tmp_path: Path, processes: int, times: int) -> None:
    url = str(tmp_path / "store")
    with opslog.open(url, agent="founder") as store:
        store.create("counter", {"number": 0})
    with ExitStack() as stack:
        counting = [
            stack.enter_context(start(programs.count, url, f"agent-{number}", times)) for number in range(processes)
        ]
        for one in counting:
            assert one.hear() == "ready"
        for one in counting:
            one.resume()
        for one in counting:
            assert one.hear() == "done"
            one.end()
    with opslog.open(url, read_only=True) as store:
        assert store["counter"] == {"number": processes * times}
