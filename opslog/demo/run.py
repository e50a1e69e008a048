"""Conducts the demo: starts the processes, kills one, lets it come back, and checks the result."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from opslog.demo.check import Findings, check
from opslog.demo.display import Display, describe
from opslog.demo.journal import Call
from opslog.demo.page import PageServer, advice
from opslog.demo.spark import replay
from opslog.demo.summary import AgentSummary, InFlight, Summary
from opslog.demo.workers import REPORT, STAY, STOP, DemoError, Status, Worker
from opslog.environment import REAL
from opslog.errors import OpslogError, UsageError

_START_SECONDS = 30.0
# How long to wait for a step that takes a second or two, before it counts as failed.
_END_SECONDS = 60.0

_TICK_SECONDS = 0.1


def main(
    *,
    seconds: float = 12,
    agents: int = 4,
    directory: Path | None = None,
    spark: bool = True,
    json: bool = False,
    page: bool = False,
) -> int:
    """Run the demo, show it, and print the outcome.

    :param seconds: how long the agents write.
    :param agents: how many agents there are.
    :param directory: the directory to work in; it must be empty or not exist. None: a temporary directory. All files
        are kept; with `json`, those of a temporary directory only if something was wrong.
    :param spark: let Spark replay the store at the end, if Spark and Java are installed.
    :param json: print nothing but the summary, as JSON.
    :param page: show the store live on the page of a server, in a browser if there is a screen; at a terminal, until
        it is interrupted.
    :returns: the exit code: 0 if nothing was lost and all states agree, else 1. Also 1 if the demo could not end (a
        worker died, the store could not be read): then there is no summary, and stderr says why.
    """
    if agents < 2:
        raise UsageError(f"the demo is about several agents: 2 or more, not {agents}")
    if not 1 <= seconds <= 3600:
        raise UsageError(f"seconds must be between 1 and 3600, not {seconds}")
    work = _working_directory(directory)
    with Display(seconds, quiet=json) as display:
        demo = _Demo(work, seconds, agents, display, page=page)
        try:
            summary = demo.run(keep=directory is not None or not json, spark=spark)
        except (DemoError, OpslogError) as error:
            demo.end_all()
            sys.stderr.write(f"the demo stopped: {error}\nEverything it wrote is in {work}\n")
            return 1
        except KeyboardInterrupt:
            demo.end_all()  # before their directory is deleted
            if directory is None:
                shutil.rmtree(work)
            raise
        finally:
            demo.end_workers()
    try:
        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n" if json else describe(summary))
        sys.stdout.write("" if json else advice(work / "store"))
        sys.stdout.flush()
        if not json and sys.stdin.isatty():
            demo.show_page()
    finally:
        demo.end_all()
    return 0 if summary.ok else 1


def _working_directory(directory: Path | None) -> Path:
    work = Path(tempfile.mkdtemp(prefix="opslog-demo-")) if directory is None else directory
    work.mkdir(parents=True, exist_ok=True)
    if any(work.iterdir()):
        raise UsageError(f"{work} is not empty: name a directory that is, or that does not exist yet")
    for name in ("journals", "states", "errors"):
        (work / name).mkdir()
    return work


class _Demo:
    """A run of the demo, in a directory of its own."""

    def __init__(self, directory: Path, seconds: float, agents: int, display: Display, *, page: bool) -> None:
        self._directory = directory
        self._seconds = seconds
        self._display = display
        self._names = [f"agent-{number}" for number in range(1, agents + 1)]
        self._agents: dict[str, Worker] = {}
        self._compactor: Worker | None = None
        self._has_page = page
        self._page: PageServer | None = None
        self._sessions = Counter[str]()
        self._started = REAL.monotonic()
        self._kills = 0
        self._killed_at: list[tuple[str, str]] = []  # the agent, and its task

    def run(self, keep: bool, spark: bool) -> Summary:
        """:raises DemoError: a worker failed."""
        compactor = self._compactor = Worker(
            "compactor", "opslog.demo.compactor", [str(self._directory)], self._directory / "errors" / "compactor.txt"
        )
        for name in self._names:
            self._start(name)
        self._wait_for([*self._agents.values(), compactor], "running", _START_SECONDS)
        if self._has_page:
            self._page = PageServer(self._directory / "store", self._directory / "errors" / "page.txt")
            how = "is open" if self._page.show() else "can be opened"
            self._display.note(f"the page of the store {how}: {self._page.address}")
        begun = REAL.monotonic()
        self._display.begin()
        self._write_and_kill(begun, compactor)
        writing_seconds = REAL.monotonic() - begun
        self._finish(compactor)
        without_spark: str | None = "it was not asked for"
        if spark:
            self._display.say("everybody is done; Spark replays the store from its files")
            without_spark = replay(self._directory, self._display.busy)
        findings, journals = check(self._directory)
        findings.problems += self._not_taken_over(findings)
        summary = self._summary(
            findings,
            journals,
            writing_seconds=writing_seconds,
            compactions=compactor.status.compactions,
            keep=keep,
            without_spark=without_spark,
        )
        if summary.directory is None:
            shutil.rmtree(self._directory)
        return summary

    def show_page(self) -> None:
        """Serve the page, if there is one, until interrupted."""
        if self._page is not None:
            sys.stdout.write(f"The page is served until Ctrl-C: {self._page.address}\n")
            sys.stdout.flush()
            self._page.wait()

    def end_all(self) -> None:
        """End all processes."""
        self.end_workers()
        if self._page is not None:
            self._page.end()

    def end_workers(self) -> None:
        for worker in (*self._agents.values(), self._compactor):
            if worker is not None:
                worker.kill()

    def _start(self, name: str, before: Status | None = None) -> None:
        self._sessions[name] += 1
        session = self._sessions[name]
        errors = self._directory / "errors" / f"{name}.{session:03}.txt"
        arguments = [str(self._directory), name, str(session)]
        self._agents[name] = Worker(name, "opslog.demo.agent", arguments, errors, before)

    def _write_and_kill(self, begun: float, compactor: Worker) -> None:
        """Let all workers write; meanwhile one agent is killed, and comes back a little later."""
        victim = random.choice(self._names)
        kill_at = begun + self._seconds * random.uniform(0.35, 0.55)
        back_at = kill_at + self._seconds * 0.15
        self._watch(compactor, until=lambda: REAL.monotonic() >= kill_at)
        self._agents[victim].say(STAY)
        deadline = REAL.monotonic() + _END_SECONDS
        self._watch(compactor, until=lambda: self._agents[victim].is_in("holding", deadline))
        self._agents[victim].kill()
        self._killed_at.append((victim, self._agents[victim].status.task))
        self._kills += 1
        killed = self._agents.pop(victim)
        self._watch(compactor, until=lambda: REAL.monotonic() >= back_at, killed=killed)
        self._start(victim, killed.status)
        self._watch(compactor, until=lambda: REAL.monotonic() >= begun + self._seconds)

    def _watch(self, compactor: Worker, until: Callable[[], bool], killed: Worker | None = None) -> None:
        while not until():
            compactor.check_alive()
            for worker in self._agents.values():
                worker.check_alive()
            self._show(compactor, killed)
            REAL.sleep(_TICK_SECONDS)

    def _show(self, compactor: Worker, killed: Worker | None = None, *, is_last: bool = False) -> None:
        agents = [*self._agents.values(), *([killed] if killed else [])]
        self._display.show(agents, compactor, self._sessions, is_last=is_last)

    def _not_taken_over(self, findings: Findings) -> list[str]:
        taken_over = {(found.holder, found.task) for found in findings.taken_over}
        return [
            f"{agent} was killed at {task}, which nobody took over"
            for agent, task in self._killed_at
            if (agent, task) not in taken_over
        ]

    def _finish(self, compactor: Worker) -> None:
        """All agents stop writing, and only then report their states. Compaction goes on until all have reported."""
        agents = list(self._agents.values())
        for word, state in ((STOP, "stopped"), (REPORT, "done")):
            for worker in agents:
                worker.say(word)
            deadline = REAL.monotonic() + _END_SECONDS
            while not all(worker.is_in(state, deadline) for worker in agents):
                self._show(compactor)
                REAL.sleep(_TICK_SECONDS)
        compactor.say(STOP)
        for worker in (*agents, compactor):
            worker.wait(_END_SECONDS)
        self._show(compactor, is_last=True)

    def _wait_for(self, workers: Iterable[Worker], state: str, seconds: float) -> None:
        deadline = REAL.monotonic() + seconds
        for worker in workers:
            worker.wait_until(state, deadline)

    def _summary(
        self,
        findings: Findings,
        journals: dict[str, list[Call]],
        *,
        writing_seconds: float,
        compactions: int,
        keep: bool,
        without_spark: str | None,
    ) -> Summary:
        agents = {name: _summarise(calls) for name, calls in journals.items()}
        commits = sum(agent.commits for agent in agents.values())
        return Summary(
            ok=not findings.problems,
            problems=findings.problems,
            seconds=round(REAL.monotonic() - self._started, 2),
            writing_seconds=round(writing_seconds, 2),
            agents=agents,
            commits=commits,
            commits_per_second=round(commits / writing_seconds, 1),
            lost=findings.lost,
            unknown=findings.unknown,
            conflicts=sum(agent.conflicts for agent in agents.values()),
            undos=sum(agent.undos for agent in agents.values()),
            batches=sum(agent.batches for agent in agents.values()),
            kills=self._kills,
            in_flight=[InFlight(*call) for call in findings.in_flight],
            compactions=compactions,
            tasks=findings.tasks,
            taken_over=findings.taken_over,
            documents=findings.documents,
            digest=findings.digest,
            agreeing=findings.agreeing,
            without_spark=without_spark,
            directory=str(self._directory) if keep or findings.problems else None,
        )


def _summarise(calls: list[Call]) -> AgentSummary:
    ended = [(call.begin.kind, call.end) for call in calls if call.end]
    done = Counter(kind for kind, end in ended if end.done)
    return AgentSummary(
        commits=sum(done.values()) - done["refresh"],
        sets=done["set"],
        deletes=done["delete"],
        batches=done["batch"],
        undos=done["undo"],
        tasks=done["finish"],
        refused_claims=sum(kind == "claim" and not end.done for kind, end in ended),
        no_change=sum(not end.done for _, end in ended),
        refreshes=done["refresh"],
        conflicts=sum(end.conflicts for _, end in ended),
    )
