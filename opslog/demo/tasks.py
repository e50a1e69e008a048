"""The tasks of the demo: agents make them, share them out by leases, and do each of them once.

Everything about them is a transaction, in the log that all agents share. `Tasks` chooses an agent's next call;
`check_tasks` compares that log with the journals.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

import opslog
from opslog.demo.journal import Begin, Call, Change
from opslog.environment import REAL
from opslog.format.commits import Commit, Set, encode_commit
from opslog.format.layout import TRANSACTIONS
from opslog.lease import PREFIX

_LEASE_SECONDS = 1.0
# How long a task takes, and how often an agent without a task asks for one.
_WORK_SECONDS = (0.03, 0.15)
_PAUSE_SECONDS = 0.02

KINDS = ("create", "claim", "renew", "finish")


def task_id(number: int) -> str:
    return f"task-{number:04}"


class Tasks:
    """One agent's view of the tasks.

    :ivar held: the task that it works on; empty: none.
    :ivar done: how many it has finished.
    """

    def __init__(self, store: opslog.Store[dict[str, Any]], name: str, *, done: int) -> None:
        self.held = ""
        self.done = done
        self._store = store
        self._name = name
        # Kept, because a lease remembers since when it has seen another agent's lease.
        self._leases: dict[str, opslog.Lease] = {}
        self._random = random.Random()
        self._next_at = 0.0
        # All before this one are done.
        self._first = 0

    def next(self, *, stays: bool = False, ends: bool = False) -> Begin | None:
        """The next call for a task, if it is time for one.

        :param stays: do not finish the task that is held.
        :param ends: make no new ones.
        """
        now = REAL.monotonic()
        if self.held:
            if self._lease(self.held).remaining < _LEASE_SECONDS / 2:
                return Begin("renew", task=self.held)
            if now >= self._next_at and not stays:
                return Begin("finish", [Change(self.held, {"status": "done", "by": self._name})], self.held)
            return None
        if now < self._next_at:
            return None
        self._next_at = now + _PAUSE_SECONDS
        tasks, following = self._open()
        free = [id for id in tasks if PREFIX + id not in self._store]
        if not free and not ends:
            return Begin("create", [Change(task_id(following), {"status": "open", "by": self._name})])
        if not tasks:
            return None
        # Now and then a task that another agent has: that agent may be gone.
        wanted = free if free and self._random.random() < 0.7 else tasks
        return Begin("claim", task=self._random.choice(wanted))

    def make(self, begin: Begin) -> int | None:
        """Make such a call. Returns the clock of its commit; None if others were faster."""
        try:
            match begin.kind:
                case "create":
                    (change,) = begin.changes
                    assert change.data is not None
                    self._store.create(change.id, change.data)
                    return self._clock(change.id)
                case "claim":
                    return self._claim(begin.task)
                case "renew":
                    lease = self._lease(begin.task)
                    lease.renew()
                    return lease.token
                case _:
                    (change,) = begin.changes
                    self._lease(begin.task).finish(change.data)
                    self._let_go()
                    self.done += 1
                    return self._clock(begin.task)
        except opslog.LeaseLostError:
            self._let_go()
        except opslog.ExistsError:
            pass
        return None

    @property
    def are_done(self) -> bool:
        """Whether all tasks that this agent knows of are done."""
        return not self._open()[0]

    def _claim(self, id: str) -> int | None:
        lease = self._lease(id)
        if not lease.claim(_is_open):
            return None
        self.held = id
        self._next_at = REAL.monotonic() + self._random.uniform(*_WORK_SECONDS)
        return lease.token

    def _let_go(self) -> None:
        self._leases.pop(self.held, None)
        self.held = ""

    def _lease(self, id: str) -> opslog.Lease:
        return self._leases.setdefault(id, opslog.Lease(self._store, id, _LEASE_SECONDS))

    def _clock(self, id: str) -> int:
        """The clock of the commit that this agent has just made."""
        record = self._store.record(id)
        assert record is not None
        return record.clock

    def _open(self) -> tuple[list[str], int]:
        """The unfinished tasks, as far as is known here, and the number of the first task that does not exist."""
        found = []
        number = self._first
        while (task := self._store.get(task_id(number))) is not None:
            if _is_open(task):
                found.append(task_id(number))
            elif not found:
                self._first = number + 1
            number += 1
        return found, number


def _is_open(task: dict[str, Any] | None) -> bool:
    return task is not None and task["status"] == "open"


class TakenOver(msgspec.Struct, frozen=True):
    """A task whose lease was over.

    :ivar holder: the agent that had claimed it, and was killed or too slow.
    :ivar by: the agent that claimed it then.
    """

    task: str
    holder: str
    by: str


class TaskFindings(NamedTuple):
    """The result of a check of the tasks.

    :ivar commits: the commits of the shared log that an agent made.
    :ivar in_flight: as of `opslog.demo.check.Findings`.
    :ivar made: how many tasks there are; and `done`, how often each was.
    """

    commits: list[Commit]
    problems: list[str]
    lost: int
    in_flight: list[tuple[str, str, bool]]
    made: int
    done: Counter[str]
    taken_over: list[TakenOver]


def check_tasks(journals: dict[str, list[Call]], history: list[Commit]) -> TaskFindings:
    """Whether the shared log has each acknowledged call of each agent once, and each task was done once."""
    shared = [commit for commit in history if commit.agent == TRANSACTIONS]
    unknown = {commit.clock: commit for commit in shared}
    calls = [(agent, call) for agent, its in journals.items() for call in its if call.begin.kind in KINDS]
    commits: list[Commit] = []
    problems: list[str] = []
    lost = 0
    for agent, call in calls:
        if call.end is None:
            continue
        if len(call.end.clocks) != call.end.done:
            problems.append(f"{agent}: a {call.begin.kind} changed {len(call.end.clocks)} commits")
        for clock in call.end.clocks:
            commit = unknown.pop(clock, None)
            if commit is None:
                lost += 1
                problems.append(f"lost: {agent}'s {call.begin.kind} at clock {clock}")
            elif not _is_of(commit, agent, call.begin):
                problems.append(
                    f"{agent}'s {call.begin} is in the history as {encode_commit(commit).decode().rstrip()}"
                )
            if commit is not None:
                commits.append(commit)
    in_flight: list[tuple[str, str, bool]] = []
    for agent, call in calls:
        if call.end is None:
            found = next((commit for commit in unknown.values() if _is_of(commit, agent, call.begin)), None)
            in_flight.append((agent, call.begin.kind, found is not None))
            if found is not None:
                commits.append(unknown.pop(found.clock))
    made = Counter(id for commit in shared for id, status in _statuses(commit) if status == "open")
    done = Counter(id for commit in shared for id, status in _statuses(commit) if status == "done")
    problems += [f"{id} was made {times} times" for id, times in made.items() if times > 1]
    problems += [f"{id} was done {done[id]} times" for id in sorted({*made, *done}) if done[id] != 1]
    taken_over = list(_taken_over(shared))
    return TaskFindings(commits, problems, lost, in_flight, len(made), done, taken_over)


def _is_of(commit: Commit, agent: str, begin: Begin) -> bool:
    """Whether a commit is the write of this call of an agent."""
    written = {record.id: record.document if isinstance(record, Set) else None for record in commit.records}
    wanted: dict[str, Any] = {change.id: change.data for change in begin.changes}
    lease = PREFIX + begin.task
    if begin.kind == "finish":
        wanted[lease] = None
    elif begin.task:
        document = written.get(lease)
        wanted[lease] = document if document is not None and document.get("holder") == agent else {}
    return commit.author == agent and written == wanted


def _statuses(commit: Commit) -> Iterator[tuple[str, str]]:
    for record in commit.records:
        if isinstance(record, Set) and not record.id.startswith(PREFIX):
            yield record.id, str(record.document.get("status"))


def _taken_over(shared: list[Commit]) -> Iterator[TakenOver]:
    holders: dict[str, tuple[str, str]] = {}
    for record in (record for commit in shared for record in commit.records if record.id.startswith(PREFIX)):
        if not isinstance(record, Set):
            holders.pop(record.id, None)
            continue
        claim = str(record.document["claim"])
        before = holders.get(record.id, (record.author, claim))
        holders[record.id] = (record.author, claim)
        if before[1] != claim:
            yield TakenOver(record.id.removeprefix(PREFIX), before[0], record.author)
