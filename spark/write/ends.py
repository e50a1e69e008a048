"""The ends of all logs, which a driver reads. They show the newest clock of the store, and what may be compacted."""

from __future__ import annotations

import msgspec

from opslog.backends import Backend
from opslog.environment import Environment
from opslog.format.layout import TRANSACTIONS
from opslog.format.manifest import START, Manifest
from opslog.log.freshness import Freshness
from opslog.log.reader import Cursor, list_log
from opslog.log.sealing import seal_all
from opslog.log.survey import Survey, shared_log_first, survey
from opslog.snapshot.manifests import ManifestStore
from opslog.spark.read.planning import JobSurvey, Recent, find_recent, tails


class Ends(msgspec.Struct, frozen=True):
    """All logs behind the cut, with their recent commits.

    :ivar freshness: whether this view is recent enough for later appends, which rely on it.
    """

    found: JobSurvey
    recent: dict[str, Recent]
    freshness: Freshness

    @property
    def manifest(self) -> Manifest:
        return self.found.manifest

    @property
    def clock(self) -> int:
        return max([self.manifest.clock, *(recent.clock for recent in self.recent.values())])

    @property
    def has_transactions(self) -> bool:
        """Whether there may be guarded documents."""
        return TRANSACTIONS in self.manifest.cut or any(log.agent == TRANSACTIONS for log in self.found.logs)

    def end(self, agent: str) -> Cursor:
        """The end of an agent's log, without the number of its commits."""
        return Cursor(agent, *next((log.end for log in self.found.logs if log.agent == agent), START.position))

    def seal_idle(self, backend: Backend) -> tuple[str, ...]:
        """End the undo window of agents that have been idle for longer than the store's undo TTL. Returns their
        names."""
        since = backend.now() - self.manifest.settings.undo_ttl_seconds
        idle = {
            log.agent: log
            for log in self.found.logs
            if self.recent[log.agent].commits and log.segments[-1].modified < since
        }

        def find_end(agent: str) -> Cursor | None:
            known = idle[agent].segments
            listed = [segment for segment in list_log(backend, agent) if segment.number >= known[0].number]
            has_grown = tuple(listed) != known  # the agent has written again
            return None if has_grown else Cursor(agent, *idle[agent].end, clock=self.recent[agent].clock)

        return seal_all(backend, idle, find_end, self.freshness)


def read_ends(backend: Backend, environment: Environment) -> Ends:
    """Lists all logs, and reads the undo window of each. Errors as of `survey`."""
    manifests = ManifestStore(backend)
    read_at = environment.monotonic()

    def read(found: Survey) -> Ends:
        manifest = found.manifest
        tail = tails(shared_log_first(backend, found, ""))
        recent = {log.agent: find_recent(backend, log, manifest.settings.undo_window) for log in tail.logs}
        return Ends(tail, recent, Freshness(manifests, environment, manifest, read_at))

    return survey(manifests, read)
