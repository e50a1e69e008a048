"""The ends of all logs: what a driver reads of them. They say how far the store has come, and what may be folded."""

from __future__ import annotations

import msgspec

from opslog.backends import Appender, Backend
from opslog.environment import Environment, format_ts
from opslog.format.commits import Seal, encode_commit
from opslog.format.manifest import Manifest
from opslog.log.fencing import Fence
from opslog.log.reader import list_log
from opslog.log.sealing import seal_all
from opslog.snapshot.manifests import ManifestStore
from opslog.spark.read.planning import JobSurvey, Recent, find_recent, survey_state


class Ends(msgspec.Struct, frozen=True):
    """All logs behind the cut, with which of their commits are recent.

    :ivar looked: when reading them began, by the monotonic clock.
    """

    found: JobSurvey
    recent: dict[str, Recent]
    looked: float

    @property
    def manifest(self) -> Manifest:
        return self.found.manifest

    @property
    def clock(self) -> int:
        return max([self.manifest.clock, *(recent.clock for recent in self.recent.values())])

    def fence(self, backend: Backend, environment: Environment) -> Fence:
        """For what is appended to the logs from now on."""
        return Fence(ManifestStore(backend), environment, self.manifest, self.looked)

    def seal_idle(self, backend: Backend, environment: Environment) -> tuple[str, ...]:
        """End the undo window of agents that have been idle for longer than the store's undo TTL. Returns their
        names."""
        fence = self.fence(backend, environment)
        since = backend.now() - self.manifest.settings.undo_ttl_seconds
        idle = {
            log.agent: log
            for log in self.found.logs
            if self.recent[log.agent].commits and log.segments[-1].modified < since
        }

        def seal(agent: str, appender: Appender) -> bool:
            log = idle[agent]
            listed = [segment for segment in list_log(backend, agent) if segment.number >= log.segments[0].number]
            if tuple(listed) != log.segments:
                return False  # it came back and wrote
            appender.advance(log.start.last_segment)
            line = encode_commit(Seal(format_ts(environment.time()), self.clock + 1, agent))
            fence.append(appender, agent, line)
            return True

        return seal_all(backend, idle, seal)


def look(backend: Backend, environment: Environment) -> Ends:
    """Reads the undo window of each log, and lists all of them; errors as of `survey_state`."""
    looked = environment.monotonic()

    def ends(_: Manifest) -> Ends:
        found = survey_state(backend)
        window = found.manifest.settings.undo_window
        return Ends(found, {log.agent: find_recent(backend, log, window) for log in found.logs}, looked)

    manifests = ManifestStore(backend)
    return manifests.read_consistently(manifests.newest, ends)
