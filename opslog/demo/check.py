"""The check of a finished demo: it compares the acknowledged calls of the agents with the store.

- Every acknowledged call that changed something is in the history exactly once, as it was made and with the clock that
  the agent found in its log right after the call.
- Each task was done once, whichever agent was killed.
- Nothing else is in the history, except at most the one call that was under way when its process was killed.
- Three states are equal: the plain merge of the calls in the journals, that of each agent, and that of a fresh open.
- `opslog verify` finds no damage.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import orjson

import opslog
from opslog.backends import open_backend
from opslog.demo.journal import Begin, Call, Change, read_journals
from opslog.demo.tasks import KINDS, TakenOver, check_tasks
from opslog.format.commits import Batch, Commit, Delete, DeleteOp, Set, SetOp, Undo, encode_commit
from opslog.merge.merge import reference
from opslog.verify.verify import verify

Documents = dict[str, dict[str, Any]]

# How many problems are shown: more would show a reader nothing new.
_PROBLEMS_MAX = 20


@dataclass
class Findings:
    """The result of a check.

    :ivar lost: acknowledged commits that are not in the history.
    :ivar unknown: commits in the history that no agent made.
    :ivar in_flight: calls that a kill interrupted, as (agent, kind, whether it is in the history).
    :ivar tasks: how many tasks there were, each done once if there is no problem.
    :ivar taken_over: those that were claimed and then taken over.
    :ivar agreeing: the names of the states that were compared with the replay and are equal to it.
    """

    problems: list[str] = field(default_factory=list)
    lost: int = 0
    unknown: int = 0
    in_flight: list[tuple[str, str, bool]] = field(default_factory=list)
    tasks: int = 0
    taken_over: list[TakenOver] = field(default_factory=list)
    documents: int = 0
    digest: str = ""
    agreeing: list[str] = field(default_factory=list)


def check(directory: Path) -> tuple[Findings, dict[str, list[Call]]]:
    """Check a finished run from the files in its directory. Also returns the journals."""
    with opslog.open(directory / "store", read_only=True) as store:
        history, fresh = list(store.ops()), dict(store.items())
    states = {"a fresh open": fresh}
    for path in sorted((directory / "states").iterdir()):
        states[path.stem] = dict(orjson.loads(line) for line in path.read_bytes().splitlines())
    journals = read_journals(directory / "journals")
    findings = compare(journals, history, states)
    findings.problems += damage(directory / "store")
    return findings, journals


def damage(store: Path) -> list[str]:
    """The errors that `opslog verify` reports."""
    with closing(open_backend(store, create=False)) as backend:
        return [str(problem) for problem in verify(backend).problems if problem.severity == "error"]


def compare(journals: dict[str, list[Call]], history: list[Commit], states: dict[str, Documents]) -> Findings:
    """The check itself. It compares the journals, all commits of the store, and the states that must be equal."""
    findings = Findings()
    clocks: dict[str, list[int]] = {agent: [] for agent in journals}
    for commit in history:
        clocks.setdefault(commit.agent, []).append(commit.clock)
    made: list[Commit] = []
    for agent, calls in journals.items():
        plain = [call for call in calls if call.begin.kind not in KINDS]
        made += _Replay(agent, clocks[agent], findings).run(plain)
    tasks = check_tasks(journals, history)
    made += tasks.commits
    findings.problems += _first(tasks.problems)
    findings.lost += tasks.lost
    findings.in_flight += tasks.in_flight
    findings.tasks, findings.taken_over = tasks.made, tasks.taken_over
    _compare_commits(made, history, findings)
    wanted = {id: record.document for id, record in reference(made).items() if isinstance(record, Set)}
    findings.documents, findings.digest = len(wanted), digest(wanted)
    for name, state in states.items():
        differing = list(_differences(name, state, wanted))
        findings.problems += differing[:_PROBLEMS_MAX]
        if not differing:
            findings.agreeing.append(name)
    return findings


def digest(documents: Documents) -> str:
    """SHA-256 over the documents in order of id, each as JSON."""
    lines = (orjson.dumps([id, documents[id]]) + b"\n" for id in sorted(documents))
    return hashlib.sha256(b"".join(lines)).hexdigest()


class _Replay:
    """The commits of one agent, made again from its journal.

    :param logged: the clocks of its commits in the history, only to find out whether an interrupted call is among them.
    """

    def __init__(self, agent: str, logged: list[int], findings: Findings) -> None:
        self._agent = agent
        self._logged = logged
        self._findings = findings
        self._commits: list[Commit] = []

    def run(self, calls: list[Call]) -> list[Commit]:
        for place, call in enumerate(calls):
            self._take(call, following=calls[place + 1 :])
        return self._commits

    def _take(self, call: Call, following: list[Call]) -> None:
        if call.end is None:
            self._take_interrupted(call.begin, following)
            return
        clocks, expected = call.end.clocks, call.end.done and call.begin.kind != "refresh"
        if len(clocks) != expected:
            said = "was acknowledged" if call.end.done else "changed nothing"
            self._problem(f"{_describe(call.begin)} {said}, and the log had {len(clocks)} new commits: clocks {clocks}")
        if call.begin.kind == "undo" and not call.end.done and self._undoable() is not None:
            self._problem(f"an undo was refused, though commit {self._undoable()} could be undone")
        if clocks:
            self._make(call.begin, clocks[0])

    def _take_interrupted(self, begin: Begin, following: list[Call]) -> None:
        """Make a call again during which the process was killed: the history has its whole commit, or nothing of it."""
        last = self._commits[-1].clock if self._commits else 0
        coming = next((call.end.clocks[0] for call in following if call.end and call.end.clocks), None)
        between = [clock for clock in self._logged if clock > last and (coming is None or clock < coming)]
        writes = begin.kind not in ("refresh", "rollback")
        self._findings.in_flight.append((self._agent, begin.kind, writes and bool(between)))
        if writes and between:
            self._make(begin, between[0])

    def _make(self, begin: Begin, clock: int) -> None:
        ops = [_op(change) for change in begin.changes]
        match begin.kind, ops:
            case "undo", _:
                target = self._undoable()
                if target is None:
                    self._problem(f"undo at clock {clock}, where nothing could be undone")
                else:
                    self._commits.append(Undo("", clock, self._agent, target))
            case "batch" | "rollback", _:
                self._commits.append(Batch("", clock, self._agent, ops))
            case _, [SetOp(id, data)]:
                self._commits.append(Set("", clock, self._agent, id, data))
            case _, [DeleteOp(id)]:
                self._commits.append(Delete("", clock, self._agent, id))

    def _undoable(self) -> int | None:
        """The clock of the newest commit within the undo window that changed something and is not undone yet."""
        recent = self._commits[-opslog.Settings().undo_window :]
        undone = {commit.target for commit in recent if isinstance(commit, Undo)}
        return next(
            (commit.clock for commit in reversed(recent) if commit.records and commit.clock not in undone), None
        )

    def _problem(self, text: str) -> None:
        self._findings.problems.append(f"{self._agent}: {text}")


def _op(change: Change) -> SetOp | DeleteOp:
    return DeleteOp(change.id) if change.data is None else SetOp(change.id, msgspec.Raw(orjson.dumps(change.data)))


def _describe(begin: Begin) -> str:
    return f"{begin.kind} {', '.join(change.id for change in begin.changes)}".rstrip()


def _compare_commits(made: list[Commit], history: list[Commit], findings: Findings) -> None:
    wanted = {commit.stamp: _line(commit) for commit in made}
    found = {commit.stamp: _line(commit) for commit in history}
    lost, unknown = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    changed = [stamp for stamp in wanted.keys() & found.keys() if wanted[stamp] != found[stamp]]
    twice = [stamp for stamp, times in Counter(commit.stamp for commit in history).items() if times > 1]
    findings.lost += len(lost)
    findings.unknown += len(unknown)
    findings.problems += _first(f"lost: {wanted[stamp]}" for stamp in sorted(lost))
    findings.problems += _first(f"nobody made this commit: {found[stamp]}" for stamp in sorted(unknown))
    findings.problems += _first(f"made as {wanted[stamp]}, found as {found[stamp]}" for stamp in sorted(changed))
    findings.problems += _first(f"more than once in the history: {found[stamp]}" for stamp in sorted(twice))


def _first(problems: Iterable[str]) -> list[str]:
    return list(problems)[:_PROBLEMS_MAX]


def _line(commit: Commit) -> str:
    """The commit without its wall clock time, which the journals do not have."""
    return encode_commit(msgspec.structs.replace(commit, ts="")).decode().rstrip()


def _differences(name: str, state: Documents, wanted: Documents) -> Iterator[str]:
    for id in sorted(state.keys() | wanted.keys()):
        if orjson.dumps(state.get(id)) != orjson.dumps(wanted.get(id)):
            yield f"{name} has {id} = {state.get(id)}, the replay of the journals has {wanted.get(id)}"
