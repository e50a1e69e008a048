"""The demo's output for people: a live table in a terminal, otherwise a line every few seconds; and the outcome."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from opslog.demo.workers import Worker
from opslog.environment import REAL

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from opslog.demo.summary import Summary

_LINE_SECONDS = 3.0
_RATE_SECONDS = 1.0


# The meaning of the words in the table.
_WORDS = {
    "commits": "acknowledged by the store, in all sessions of the agent",
    "lag": "commits of others that the last refresh brought",
    "undos": "own commits that were taken back",
    "batches": "changes of several documents in one commit",
    "conflicts": "documents that others changed, too, before it had seen that",
    "tasks": "done; agents share them out by leases, and each is done once",
    "at": "the task that it has now",
}


class Display:
    """:param seconds: how long the agents write.
    :param quiet: show nothing.
    """

    def __init__(self, seconds: float, *, quiet: bool) -> None:
        self._seconds = seconds
        self._quiet = quiet
        self._live: Live | None = None
        self._begun = self._next_line = REAL.monotonic()
        self._rates = _Rates()

    def begin(self) -> None:
        """Note that the agents have begun to write."""
        self._begun = REAL.monotonic()

    def __enter__(self) -> Self:
        if not self._quiet and sys.stdout.isatty():
            self._start_live()
        return self

    def _start_live(self) -> None:
        from rich.live import Live

        self._live = Live(auto_refresh=False)
        self._live.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(
        self, agents: Sequence[Worker], compactor: Worker, sessions: Mapping[str, int], *, is_last: bool = False
    ) -> None:
        """:param sessions: how many times each agent was started.
        :param is_last: all workers are done.
        """
        self._rates.note(agents)
        if self._live is not None:
            self._live.update(self._table(agents, compactor, sessions), refresh=True)
        elif not self._quiet and (is_last or REAL.monotonic() >= self._next_line):
            self._next_line = REAL.monotonic() + _LINE_SECONDS
            sys.stdout.write(self._line(agents, compactor, sessions) + "\n")
            sys.stdout.flush()

    def say(self, sentence: str) -> None:
        """Say what happens next. The table stays as it is."""
        if self._live is not None:
            self._live.stop()
        if not self._quiet:
            sys.stdout.write(sentence + "\n")
            sys.stdout.flush()

    def note(self, sentence: str) -> None:
        """Show a note above the table."""
        if self._live is not None:
            self._live.console.print(sentence, markup=False, highlight=False, soft_wrap=True)
        elif not self._quiet:
            self.say(sentence)

    def busy(self, sentence: str) -> None:
        """Show what is running and takes a while. Each sentence replaces the one before, so it is only for people."""
        if self._quiet or not sys.stdout.isatty():
            return
        from rich.text import Text

        if self._live is None or not self._live.is_started:
            self._start_live()
        assert self._live is not None
        self._live.transient = True
        self._live.update(Text(sentence), refresh=True)

    def _table(self, agents: Sequence[Worker], compactor: Worker, sessions: Mapping[str, int]) -> Table:
        from rich.table import Table

        table = Table(
            title=f"several processes write to one store: {self._time()}",
            caption="\n".join(self._notes(agents, compactor)),
            caption_justify="left",
        )
        table.add_column("agent")
        table.add_column("state")
        for heading in ("commits", "commits/s", "lag", "undos", "batches", "conflicts", "tasks"):
            table.add_column(heading, justify="right")
        table.add_column("at")
        for worker in sorted(agents, key=lambda worker: worker.name):
            status = worker.status
            rate = self._rates.of(worker)
            counts = (status.lag, status.undos, status.batches, status.conflicts, status.tasks)
            numbers = (f"{status.commits:,}", f"{rate:,.0f}" if rate else "", *(f"{count:,}" for count in counts))
            state = _state(worker, sessions)
            style = {"killed": "bold red", "back": "green"}.get(state, "")
            table.add_row(worker.name, state, *numbers, status.task, style=style)
        return table

    def _time(self) -> str:
        passed = REAL.monotonic() - self._begun
        return f"{passed:.0f} of {self._seconds:.0f} s" if passed < self._seconds else "they finish"

    def _notes(self, agents: Sequence[Worker], compactor: Worker) -> Iterator[str]:
        yield f"a compaction process beside them: {_counted(compactor.status.compactions, 'compaction')}"
        for worker in agents:
            if worker.status.found is not None:
                found = _counted(worker.status.found, "commit")
                yield f"{worker.name} was killed and came back: it found {found} of its own"
        for word, meaning in _WORDS.items():
            yield f"{word:<9}  {meaning}"

    def _line(self, agents: Sequence[Worker], compactor: Worker, sessions: Mapping[str, int]) -> str:
        commits = sum(worker.status.commits for worker in agents)
        rate = sum(self._rates.of(worker) for worker in agents)
        tasks = sum(worker.status.tasks for worker in agents)
        lag = max(worker.status.lag for worker in agents)
        states = ", ".join(
            f"{worker.name} {_state(worker, sessions)}{_found(worker)}"
            for worker in sorted(agents, key=lambda worker: worker.name)
        )
        return (
            f"{_counted(commits, 'commit')}{f', {rate:,.0f} a second' if rate else ''}, lag at most {lag}, "
            f"{_counted(tasks, 'task')} done, {_counted(compactor.status.compactions, 'compaction')}; {states}"
        )


class _Rates:
    """Commits per second of each worker, over the last second or so."""

    def __init__(self) -> None:
        self._marks: dict[Worker, tuple[float, int]] = {}
        self._rates: dict[Worker, float] = {}

    def note(self, workers: Sequence[Worker]) -> None:
        now = REAL.monotonic()
        for worker in workers:
            since, commits = self._marks.setdefault(worker, (now, worker.status.commits))
            if now - since >= _RATE_SECONDS:
                self._rates[worker] = (worker.status.commits - commits) / (now - since)
                self._marks[worker] = (now, worker.status.commits)

    def of(self, worker: Worker) -> float:
        """The rate of a worker; 0 if it is not known yet, or the worker has stopped writing."""
        return 0.0 if worker.is_killed or worker.status.state == "done" else self._rates.get(worker, 0.0)


def _state(worker: Worker, sessions: Mapping[str, int]) -> str:
    if worker.is_killed:
        return "killed"
    returned = sessions[worker.name] > 1 and worker.status.state == "running"
    return "back" if returned else worker.status.state


def _found(worker: Worker) -> str:
    """A note about a worker that was killed and came back; empty for others."""
    return "" if worker.status.found is None else f" (found {_counted(worker.status.found, 'commit')} of its own)"


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def describe(summary: Summary) -> str:
    """The outcome, for a person."""
    lines = [
        f"{name}: {_counted(agent.commits, 'commit')} acknowledged ({_counted(agent.sets, 'set')}, "
        f"{_counted(agent.deletes, 'delete')}, {_counted(agent.batches, 'batch', 'batches')}, "
        f"{_counted(agent.undos, 'undo')}), {_counted(agent.conflicts, 'conflict')}; "
        f"{_counted(agent.tasks, 'task')} done, {_counted(agent.refused_claims, 'claim')} refused"
        for name, agent in summary.agents.items()
    ]
    for call in summary.in_flight:
        outcome = "is in the history, whole, though nobody acknowledged it" if call.in_history else "did not happen"
        lines.append(f"{call.agent} was killed during a {call.call}, which {outcome}")
    lines += [
        f"{found.by} took {found.task} over from {found.holder}, and it was done once" for found in summary.taken_over
    ]
    lines += [
        f"{_counted(summary.tasks, 'task')} shared out by transactions" + (", each of them done once" * summary.ok),
        f"{_counted(summary.commits, 'commit')} acknowledged in {summary.writing_seconds:.1f} s, "
        f"{summary.commits_per_second:,.0f} a second, with {_counted(summary.kills, 'kill')} and "
        f"{_counted(summary.compactions, 'compaction')}",
        f"lost: {summary.lost}; commits that nobody made: {summary.unknown}",
        f"the same {_counted(summary.documents, 'document')}: {', '.join(summary.agreeing)} and a plain replay of the "
        f"journals; digest {summary.digest[:16]}",
        *([f"without Spark: {summary.without_spark}"] if summary.without_spark else []),
        *(f"WRONG: {problem}" for problem in summary.problems),
        "All is well." if summary.ok else "The store did not keep its promises.",
    ]
    if summary.directory is not None:
        lines.append(f"Everything is in {summary.directory}")
    return "\n".join(lines) + f"\nTook {summary.seconds:.1f} s.\n"
