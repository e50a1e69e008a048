"""Leases between processes: some are killed with SIGKILL, some are paused for longer than their leases last."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import opslog
from tests.support import programs
from tests.support.places import DIRECTORY, LOSSY, REMOTE, Place
from tests.support.processes import Process, start
from tests.support.waiting import until

Store = opslog.Store[programs.Document]

SECONDS = 0.3


def _finished(store: Store) -> Counter[str]:
    """How many times each task got its last value."""
    store.refresh()
    written = (record for commit in store.ops() for record in commit.records if isinstance(record, opslog.Set))
    return Counter(record.id for record in written if record.document.get("status") == "done")


def test_a_worker_that_is_killed_frees_its_task(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    with opslog.open(url, agent="planner") as store, start(programs.hold_lease, url, "one", "task", SECONDS) as one:
        assert one.hear() is False  # there is no such task yet
        one.resume()
        assert one.hear() == {"lost to": None}
        one.end()
        store.create("task", {"status": "open"})
        with start(programs.hold_lease, url, "one", "task", SECONDS) as again:
            assert again.hear() is True
            lease = opslog.Lease(store, "task", SECONDS)
            assert not lease.claim()
            assert lease.holder == "one"
            again.kill()
        until(lease.claim)
        lease.finish({"status": "done", "by": "planner"})
        assert _finished(store) == {"task": 1}


def test_a_worker_that_wakes_up_late_finishes_nothing(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    with opslog.open(url, agent="planner") as store:
        store.create("task", {"status": "open"})
        with start(programs.hold_lease, url, "one", "task", SECONDS) as one:
            assert one.hear() is True
            os.kill(one.pid, signal.SIGSTOP)
            lease = opslog.Lease(store, "task", SECONDS)
            until(lease.claim)
            os.kill(one.pid, signal.SIGCONT)
            one.resume()
            assert one.hear() == {"lost to": "planner"}
            one.end()
        lease.finish({"status": "done", "by": "planner"})
        assert store["task"] == {"status": "done", "by": "planner"}
        assert _finished(store) == {"task": 1}


def _is_open(task: programs.Document | None) -> bool:
    return task is not None and task["status"] == "open"


SLOW = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
    ("place", "workers", "tasks", "disturbances"),
    [
        pytest.param(DIRECTORY, 2, 6, 1, id="few"),
        pytest.param(DIRECTORY, 6, 150, 12, id="many", marks=SLOW),
        *(pytest.param(place, 2, 6, 1, id=f"few-{place}", marks=pytest.mark.long) for place in (REMOTE, LOSSY)),
        *(pytest.param(place, 4, 40, 8, id=f"many-{place}", marks=SLOW) for place in (REMOTE, LOSSY)),
    ],
    indirect=["place"],
)
def test_each_task_is_done_once(place: Place, workers: int, tasks: int, disturbances: int) -> None:
    """Workers are killed, with the server if there is one, or paused for longer than a lease lasts, at any moment."""
    url = place.url("plain")
    chosen = random.Random(tasks)
    finished: Counter[str] = Counter()
    ids = [f"task-{number:03}" for number in range(tasks)]
    with opslog.open(url, agent="planner") as store, ExitStack() as running:
        with store.batch():
            for id in ids:
                store[id] = {"status": "open"}

        def begin(name: str) -> Process:
            return running.enter_context(start(programs.share_out, url, name, SECONDS))

        active = {name: begin(name) for name in (f"worker-{number}" for number in range(workers))}
        for number in range(disturbances):
            name = chosen.choice(sorted(active))
            victim = active[name]
            heard = victim.hear()
            while heard != "none is left" and "claimed" not in heard:
                finished[heard.get("finished", "")] += 1
                heard = victim.hear()
            if heard == "none is left":
                active.pop(name)
                break
            if number % 2:
                os.kill(victim.pid, signal.SIGSTOP)
                watched = opslog.Lease(store, heard["claimed"], SECONDS)
                # Another worker has it or has even done it; or this one was paused while it held the lock, and nobody
                # can write.
                with suppress(opslog.LockedError):
                    until(lambda: watched.claim(_is_open) or watched.holder != name)  # noqa: B023
                    if watched.stamp:
                        watched.release()
                os.kill(victim.pid, signal.SIGCONT)
            else:
                for line in victim.kill():
                    if isinstance(line, dict):
                        finished[line.get("finished", "")] += 1
                place.restart()
                active[name] = begin(name)
        for process in active.values():
            while (heard := process.hear()) != "none is left":
                finished[heard.get("finished", "")] += 1
            process.end()
        done = _finished(store)
        assert done == dict.fromkeys(ids, 1)
        del finished[""]
        # Nobody may have got a report of what was finished right before a kill.
        assert not finished - done
        assert tasks - disturbances <= finished.total() <= tasks
        assert not [id for id in store if id.startswith("lease/")]
