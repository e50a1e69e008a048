"""An agent of the demo: a process that works on the store at random until it is asked to stop, and journals every call.

python -m opslog.demo.agent DIRECTORY NAME SESSION
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import orjson

import opslog
from opslog.backends import open_backend
from opslog.demo.journal import Begin, Change, End, Journal, Kind, journal_path, read_journals
from opslog.demo.tasks import KINDS, Tasks
from opslog.demo.workers import REPORT, STAY, STOP, Conductor, Status
from opslog.environment import REAL
from opslog.format.commits import Commit
from opslog.log.reader import Cursor, list_log

# All commits stay, so that the check can read every one of them.
SETTINGS = opslog.Settings(keep_history_seconds=None)

_SHARED = [f"shared-{number}" for number in range(8)]
_OWN_DOCUMENTS = 40
_STATUS_SECONDS = 0.2
_PAUSE_SECONDS = 0.01

_WEIGHTS: dict[Kind, int] = {"set": 70, "delete": 8, "batch": 8, "rollback": 2, "undo": 8, "refresh": 4}


class _ChangedMyMind(Exception):
    pass


class Agent:
    """One session of an agent."""

    def __init__(self, directory: Path, name: str, session: int) -> None:
        self.name = name
        self.session = session
        url = str(directory / "store")
        self.store = opslog.open(url, agent=name, settings=SETTINGS)
        # Before it begins its own journal.
        self.status = Status("running") if session == 1 else _status_of(directory / "journals", name, self.store)
        self.journal = Journal(journal_path(directory / "journals", name, session))
        self._backend = open_backend(url, create=False)
        self._own_log = Cursor(name)
        self._new_clocks()  # of earlier sessions
        self._random = random.Random()
        self._ids = [f"{name}/{number}" for number in range(_OWN_DOCUMENTS)]
        self._calls = 0
        self._touched: set[str] = set()
        self._tasks = Tasks(self.store, name, done=self.status.tasks)
        # How many plain commits an undo may take back before it would reach a transaction.
        self._undoable = 0

    def work(self, conductor: Conductor) -> None:
        """Make calls until asked to stop; the first writes a document that shows that this session existed."""
        self.call(Begin("set", [Change(f"{self.name}/session", self._document())]))
        conductor.report(self.status)
        reported_at = REAL.monotonic()
        while not conductor.says(STOP):
            stays = conductor.said(STAY)
            self.call(self._tasks.next(stays=stays) or self._next())
            holds = stays and bool(self._tasks.held)
            if holds != (self.status.state == "holding"):
                self.status = msgspec.structs.replace(self.status, state="holding" if holds else "running")
                reported_at = -math.inf
            if REAL.monotonic() - reported_at > _STATUS_SECONDS:
                conductor.report(self.status)
                reported_at = REAL.monotonic()
        self._finish_tasks()

    def _finish_tasks(self) -> None:
        """Return when all tasks are done, also those of agents that are gone."""
        self.call(Begin("refresh"))
        while not self._tasks.are_done:
            begin = self._tasks.next(ends=True)
            if begin is None:
                REAL.sleep(_PAUSE_SECONDS)
            else:
                self.call(begin)

    def call(self, begin: Begin) -> None:
        """Make a call, journaled before and after."""
        self._calls += 1
        self.journal.write(begin)
        if begin.kind == "refresh":
            end = self._refresh()
        elif begin.kind in KINDS:
            end = self._do_task(begin)
        else:
            end = End(self._write(begin), self._new_clocks())
            self._undoable += end.done if begin.kind != "undo" else -end.done
        self.journal.write(end)
        self._count(begin.kind, end)

    def close(self) -> None:
        self.journal.close()
        self._backend.close()
        self.store.close()

    def _next(self) -> Begin:
        (kind,) = self._random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        if kind == "undo" and not self._undoable:
            kind = "set"
        match kind:
            case "set":
                return Begin(kind, [Change(self._any_id(), self._document())])
            case "delete":
                return Begin(kind, [Change(self._any_id(), None)])
            case "batch" | "rollback":
                doomed, *others = self._random.sample(self._ids, 3)
                changes = [Change(id, self._document()) for id in (*others, self._random.choice(_SHARED))]
                return Begin(kind, [*changes, Change(doomed, None)])
            case _:
                return Begin(kind)

    def _any_id(self) -> str:
        return self._random.choice(_SHARED if self._random.random() < 0.5 else self._ids)

    def _document(self) -> dict[str, Any]:
        """A document that no other call ever writes."""
        return {
            "by": self.name,
            "session": self.session,
            "call": self._calls,
            "title": f"Task {self._random.randrange(1000)}",
            "status": self._random.choice(["open", "active", "done"]),
        }

    def _write(self, begin: Begin) -> bool:
        """Make a writing call. Returns whether it changed anything."""
        try:
            match begin.kind:
                case "undo":
                    return self.store.undo()
                case "set" | "delete":
                    self._apply(begin.changes)
                case "batch":
                    with self.store.batch():
                        self._apply(begin.changes)
                case "rollback":
                    with self.store.batch():
                        self._apply(begin.changes)
                        raise _ChangedMyMind
        except (opslog.NotFoundError, _ChangedMyMind):
            return False
        self._touched.update(change.id for change in begin.changes)
        return True

    def _apply(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.data is None:
                self.store.delete(change.id)
            else:
                self.store.set(change.id, change.data)

    def _do_task(self, begin: Begin) -> End:
        clock = self._tasks.make(begin)
        if clock is not None:
            self._undoable = 0
        return End(clock is not None, self._new_clocks() + ([] if clock is None else [clock]))

    def _refresh(self) -> End:
        commits: list[Commit] = self.store.refresh()
        conflicts = self._touched & {record.id for commit in commits for record in commit.records}
        self._touched.clear()
        return End(True, self._new_clocks(), len(commits), len(conflicts))

    def _new_clocks(self) -> list[int]:
        """The clocks of the commits that came into this agent's log since the last call of this method: those that the
        journaled call really wrote."""
        segments = list_log(self._backend, self.name)
        return [commit.clock for _, commit in self._own_log.read(self._backend, segments)]

    def _count(self, kind: Kind, end: End) -> None:
        status = self.status
        self.status = msgspec.structs.replace(
            status,
            commits=status.commits + len(end.clocks),
            undos=status.undos + (kind == "undo" and end.done),
            batches=status.batches + (kind == "batch" and end.done),
            conflicts=status.conflicts + end.conflicts,
            lag=end.seen if kind == "refresh" else status.lag,
            tasks=self._tasks.done,
            task=self._tasks.held,
        )


def _status_of(journals: Path, name: str, store: opslog.Store[Any]) -> Status:
    """The status of an agent after its earlier sessions, according to its own journals. It counts the acknowledged
    commits, as the summary does. The store may have one more, if a kill came before its acknowledgement."""
    calls = read_journals(journals).get(name, [])
    ended = [(call.begin.kind, call.end) for call in calls if call.end is not None]
    done = Counter(kind for kind, end in ended if end.done)
    return Status(
        "running",
        commits=sum(len(end.clocks) for _, end in ended),
        undos=done["undo"],
        batches=done["batch"],
        conflicts=sum(end.conflicts for _, end in ended),
        tasks=done["finish"],
        found=sum(commit.author == name for commit in store.ops()),
    )


def write_state(store: opslog.Store[dict[str, Any]], path: Path) -> None:
    """Write the state as this process sees it, one [id, document] per line."""
    path.write_bytes(b"".join(orjson.dumps(item) + b"\n" for item in store.items()))


def main(directory: Path, name: str, session: int) -> None:
    conductor = Conductor()
    agent = Agent(directory, name, session)
    agent.work(conductor)
    conductor.report(msgspec.structs.replace(agent.status, state="stopped"))
    conductor.wait_for(REPORT)
    agent.call(Begin("refresh"))
    write_state(agent.store, directory / "states" / f"{name}.jsonl")
    conductor.report(msgspec.structs.replace(agent.status, state="done"))
    agent.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
