"""Storage without locks on agents' names: whether an append counts, and what stands where one was to be.

On a filesystem the holder of a name is alone with its log. On an object storage it may be paused for as long as others
use its numbers, fold what they wrote and collect it; and a compaction may seal a log whose agent only seemed to be
gone. The rules here find out; where there are locks they cost one comparison.
"""

from __future__ import annotations

from opslog.backends import Backend, Position
from opslog.commits import Seal, decode_commits
from opslog.environment import Environment
from opslog.errors import AgentFencedError, CommitUnknownError, OpslogError
from opslog.manifest_store import ManifestStore


class Fence:
    """Remembers when the newest manifest was looked at.

    Nothing is collected that a manifest needs which is younger than the grace period. So who has looked within half of
    it cannot have created a segment whose number was used and collected; who has not looks again before it says that a
    commit is done.
    """

    def __init__(self, manifests: ManifestStore, environment: Environment, grace_seconds: float) -> None:
        self._manifests = manifests
        self._environment = environment
        self._grace_seconds = grace_seconds
        self.look()

    def look(self) -> None:
        """The newest manifest is looked at now."""
        self._looked = self._environment.monotonic()

    def confirm(self, agent: str, position: Position) -> None:
        """What was appended at `position` is part of the log.

        :raises AgentFencedError: it is not: a manifest's cut is beyond it, and nobody reads it.
        :raises CommitUnknownError: that cannot be told.
        """
        if self._environment.monotonic() - self._looked <= self._grace_seconds / 2:
            return
        self.look()
        try:
            cut = self._manifests.newest().cut.get(agent)
        except OpslogError as error:
            raise CommitUnknownError(f"whether its segment is still part of the log cannot be told: {error}") from error
        if cut is not None and cut.segment > position.segment:
            raise AgentFencedError(
                f"segment {position.segment} of agent {agent!r} was used, folded and collected while this process was "
                "paused, and nobody reads what is written there now. Close this store and open it again"
            )


def read_seals(backend: Backend, path: str) -> list[Seal]:
    """The seals in a segment that holds nothing else; none where it is another writer's."""
    commits = decode_commits(backend.read(path), path, 0)
    seals = [commit for commit in commits if isinstance(commit, Seal)]
    return seals if len(seals) == len(commits) else []
