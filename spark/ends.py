"""The ends of all logs: what a driver reads of them. They say how far the store has come, and what may be folded."""

from __future__ import annotations

import msgspec

from opslog.backends import Backend
from opslog.commits import Seal, encode_commit
from opslog.environment import Environment, format_ts
from opslog.errors import AgentBusyError, AgentFencedError
from opslog.log import list_log
from opslog.manifest import Manifest
from opslog.manifest_store import ManifestStore
from opslog.spark.planning import Log, Recent, Survey, find_recent, survey


class Ends(msgspec.Struct, frozen=True):
    """All logs behind the cut, with which of their commits are recent."""

    found: Survey
    recent: dict[str, Recent]

    @property
    def manifest(self) -> Manifest:
        return self.found.manifest

    @property
    def clock(self) -> int:
        return max([self.manifest.clock, *(recent.clock for recent in self.recent.values())])

    def seal_idle(self, backend: Backend, environment: Environment) -> tuple[str, ...]:
        """End the undo window of agents that have been idle for longer than the store's undo TTL. Returns their
        names."""
        since = backend.now() - self.manifest.settings.undo_ttl_seconds
        idle = [log for log in self.found.logs if self.recent[log.agent].commits and log.segments[-1].modified < since]
        seals = {log.agent: Seal(format_ts(environment.time()), self.clock + 1, log.agent) for log in idle}
        return tuple(log.agent for log in idle if _append_seal(backend, log, seals[log.agent]))


def _append_seal(backend: Backend, log: Log, seal: Seal) -> bool:
    try:
        appender = backend.appender(log.agent)
    except AgentBusyError:
        return False  # a live agent holds its name and is left alone
    try:
        listed = [segment for segment in list_log(backend, log.agent) if segment.number >= log.segments[0].number]
        if tuple(listed) != log.segments:
            return False  # it came back and wrote
        appender.advance(log.start.last_segment)
        appender.append(encode_commit(seal))
    except AgentFencedError:
        return False  # it is alive in another process, and wrote just now
    finally:
        appender.close()
    return True


def look(backend: Backend) -> Ends:
    """Reads the undo window of each log, and lists all of them; errors as of `survey`."""

    def ends(_: Manifest) -> Ends:
        found = survey(backend)
        window = found.manifest.settings.undo_window
        return Ends(found, {log.agent: find_recent(backend, log, window) for log in found.logs})

    manifests = ManifestStore(backend)
    return manifests.read_consistently(manifests.newest, ends)
