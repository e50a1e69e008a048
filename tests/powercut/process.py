"""One process of a run that several processes record together: run it with `python -m tests.powercut.process`."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import opslog
from opslog.store import replica_of
from tests.powercut.recording import SharedRecorder
from tests.powercut.story import SETTINGS, STORE


def main(world: str, record: str, agent: str, kind: str, commits: str) -> None:
    recorder = SharedRecorder(Path(world), Path(record))
    with recorder.recording():
        globals()[kind](recorder, agent, int(commits))


def opened(recorder: SharedRecorder, agent: str, **options: Any) -> opslog.Store[Any]:
    """The store, as soon as no compaction of another process holds the agent's name to seal its log."""
    while True:
        try:
            return opslog.open(recorder.world / STORE, agent=agent, settings=SETTINGS, **options)
        except opslog.AgentBusyError:
            time.sleep(0.001)


def single(recorder: SharedRecorder, agent: str, commits: int) -> None:
    """One thread that opens a session for every few commits, and does everything that a store can do."""
    for first in range(0, commits, 4):
        with opened(recorder, agent, compact_after=None) as store:
            recorder.acknowledge(agent, replica_of(store).clock.value)
            for number in range(first, min(first + 4, commits)):
                store[f"{agent}-{number % 3}"] = {"number": number}
                recorder.acknowledge(agent, replica_of(store).clock.value)
            with store.batch():
                store[f"{agent}-batch"] = {"first": first}
                store[f"{agent}-more"] = {"first": first}
            store.undo()
            store.archive(lambda document: document.get("number") == 4, "2026-Q4")
            with suppress(opslog.LockedError):
                store.compact(full=first % 8 == 0)


def threads(recorder: SharedRecorder, agent: str, commits: int) -> None:
    """Threads that share appends, with automatic compaction."""

    def write(name: str) -> None:
        for number in range(commits):
            store[f"{agent}-{name}"] = {"number": number}
            clock = next(record.clock for record in store.records() if record.id == f"{agent}-{name}")
            recorder.acknowledge(agent, clock)

    with opened(recorder, agent, compact_after=20) as store:
        writers = [threading.Thread(target=write, args=(name,)) for name in "xyz"]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()


def buffered(recorder: SharedRecorder, agent: str, commits: int) -> None:
    """A buffered store, which its own thread flushes, and sometimes the program."""
    with opened(recorder, agent, compact_after=None, durability="buffered", buffer_seconds=0.001) as store:
        for number in range(commits):
            store[f"{agent}-{number % 5}"] = {"number": number}
            if number % 7 == 0:
                clock = replica_of(store).clock.value
                store.flush()
                recorder.acknowledge(agent, clock)


if __name__ == "__main__":
    main(*sys.argv[1:])
