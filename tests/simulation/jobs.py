"""Jobs that work on a store from outside, without an agent of their own: compactions, imports, and checks that repair.

Each is a callable object that takes a `Process`, as in `tests.simulation.agents`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opslog.bulk.ingest import ingest
from opslog.compaction import compact as compaction
from opslog.environment import format_ts
from opslog.errors import LockedError, MissingFileError, NotFoundError, ReopenError, RetryError
from opslog.importers import ImportedCommit, ImportedOp
from opslog.snapshot.manifests import ManifestStore
from opslog.testing import invariants
from opslog.testing.simulation import Process
from opslog.verify.verify import verify
from tests.simulation.ledger import Attempt
from tests.simulation.shared import Shared

_YEAR_SECONDS = 365 * 86400.0

# The words of a report about a file that a disk or a server refused to give. Nothing is wrong with the store then.
_NO_ANSWER = "the storage cannot read this"


class Compactor:
    """Compacts now and then, as a job of its own without an agent's name."""

    def __init__(self, shared: Shared, name: str, calls: int, pause_seconds: float) -> None:
        self.shared = shared
        self.name = name
        self.left = calls
        self.pause_seconds = pause_seconds

    def __call__(self, process: Process) -> None:
        while self.left > 0:
            self.left -= 1
            process.sleep(process.random.expovariate(1.0 / self.pause_seconds))
            full, locked = process.random.random() < 0.3, process.random.random() < 0.8
            run: Callable[..., object] = compaction.compact if locked else compaction.compact_unlocked
            try:
                run(self.shared.storage.backend(process), process.environment, full=full)
            except MissingFileError:
                raise
            except (RetryError, ReopenError, NotFoundError):
                process.sleep(0.5)


class Importer:
    """Now and then imports a few commits, with times years ago and years ahead.

    :param agents: the agents under whose names it imports, besides one name of its own.
    """

    def __init__(self, shared: Shared, name: str, agents: Sequence[str], calls: int) -> None:
        self.shared = shared
        self.name = name
        self.names = [name, name, *agents]
        self.left = calls

    def __call__(self, process: Process) -> None:
        while self.left > 0:
            self.left -= 1
            self.shared.think(process, 15.0)
            attempts, commits = [], []
            for _ in range(process.random.randint(1, 5)):
                attempt, commit = self._commit(process)
                attempts.append(attempt)
                commits.append(commit)
            process.note(f"imports {len(commits)}")
            try:
                backend = self.shared.storage.backend(process)
                # An import that creates the store gives it the default settings. All other programs of the run use the
                # same.
                ManifestStore(backend).create_first(self.shared.settings, process.environment)
                with self.shared.ledger.importing(attempts):
                    done = ingest(backend, commits, agent=self.name, environment=process.environment)
            except MissingFileError:
                raise
            except (RetryError, ReopenError):
                for attempt in attempts:
                    attempt.outcome = "unknown"  # some agents' commits may be in their logs, and others' not
                process.sleep(0.5)
                continue
            by_transactions = any(attempt.sent for attempt in attempts)
            for number, attempt in enumerate(reversed(attempts)):
                if attempt.sent:
                    attempt.end("done")
                elif by_transactions:
                    attempt.outcome = "unknown"  # the clocks of the others are unknown
                else:
                    attempt.imported_clock = done.clock - number
                    attempt.end("done")

    def _commit(self, process: Process) -> tuple[Attempt, ImportedCommit]:
        choices = process.random
        agent, id = choices.choice(self.names), choices.choice(self.shared.ids)
        years = choices.choice([0.0, 0.0, -40.0, -1.0, -0.001, 0.001, 1.0, 200.0])
        ts = format_ts(process.environment.time() + years * _YEAR_SECONDS) if years else None
        op: ImportedOp
        content: tuple[Any, ...]
        if choices.random() < 0.4:
            op, content = ImportedOp("delete", id, None), ("delete", id)
        else:
            token = self.shared.token()
            op = ImportedOp("set", id, {"n": token, "pad": ""})
            content = "set", (id, b'{"n":%d,"pad":""}' % token)
        return Attempt(None, agent, content), ImportedCommit(agent, ts, (op,), "simulated")


class Inspector:
    """Verifies the store beside everybody else, and repairs it. The repair must not touch anything that somebody
    needs."""

    def __init__(self, shared: Shared, name: str, calls: int) -> None:
        self.shared = shared
        self.name = name
        self.left = calls

    def __call__(self, process: Process) -> None:
        while self.left > 0:
            self.left -= 1
            self.shared.think(process, 5.0)
            try:
                report = verify(
                    self.shared.storage.backend(process),
                    repair=process.random.random() < 0.5,
                    environment=process.environment,
                )
            except MissingFileError:
                raise
            except LockedError:
                continue
            except (RetryError, ReopenError, NotFoundError):
                process.sleep(0.5)
                continue
            process.note(f"verifies, and repairs {len(report.repaired)}")
            if not any(problem.message.startswith(_NO_ANSWER) for problem in report.problems):
                invariants.verify_is_clean(report)
