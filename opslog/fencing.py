"""Storage without locks on agents' names: whether an append counts, and what stands where one was to be.

On a filesystem the holder of a name is alone with its log. On an object storage it may be paused for as long as others
use its numbers, fold what they wrote and collect it; and a compaction may seal a log whose agent only seemed to be
gone. The rules here find out; where there are locks they cost one comparison.
"""

from __future__ import annotations

from opslog.backends import Backend, Position
from opslog.commits import Seal, decode_commits
from opslog.environment import Environment
from opslog.errors import CommitUnknownError, MissingFileError, OpslogError, WriteFailedError
from opslog.manifest import Manifest
from opslog.manifest_store import ManifestStore

_WRITE_SECONDS = 1.0
"""However short the tombstone TTL is, a write may take as long."""


class Fence:
    """Remembers when the newest manifest was looked at, and what it said.

    A segment is collected only when a manifest whose cut is beyond it has been the newest for the grace period. So who
    has looked within half of that has seen such a manifest, and knows that the number was used; who has not looks again
    before it says that a commit is done.

    :param newest, at: as of `look`.
    """

    def __init__(self, manifests: ManifestStore, environment: Environment, newest: Manifest, at: float) -> None:
        self._manifests = manifests
        self._environment = environment
        self.look(newest, at)

    def look(self, newest: Manifest, at: float) -> None:
        """This manifest was the newest at a time of the monotonic clock, or later: a time from before it was looked at,
        since a process can be paused after it."""
        self._newest, self._looked = newest, at

    def confirm(self, agent: str, position: Position) -> None:
        """What was appended at `position` is part of the log.

        :raises CommitUnknownError: that cannot be told, or a manifest's cut is beyond it. Then the number may have been
            used before, and nobody reads what was appended; or it was read and folded before this look.
        """
        if not self._is_recent:
            now = self._environment.monotonic()
            try:
                self.look(self._manifests.newest(), now)
            except OpslogError as error:
                raise CommitUnknownError(
                    f"whether its segment is still part of the log cannot be told: {error}"
                ) from error
        cut = self._newest.cut.get(agent)
        if cut is not None and cut.segment > position.segment:
            raise CommitUnknownError(
                f"what is in segment {position.segment} of agent {agent!r} was folded by the time this process looked: "
                "it was paused for long, and the commit is in the snapshot, unless another process had used this "
                "number before, in which case nobody reads it. Close this store, open it again, and look"
            )

    def check_recent(self) -> None:
        """What was read until now was not collected before: it is what was there when the manifest was looked at.

        :raises MissingFileError: that was too long ago. Where there are no locks, what was read may stand under a
            number that others used, folded and collected; load again.
        """
        if not self._is_recent:
            raise MissingFileError("this process stood still for long between listing the logs and reading them")

    def check_age(self, looked: float) -> None:
        """Commits rest on a look at others' that was no older than half of the tombstone TTL. They must not come into
        the log much later: what they write may have been deleted since, and the tombstone dropped.

        :param looked: the time of that look. :raises WriteFailedError: it is too long ago.
        """
        limit = max(_WRITE_SECONDS, 0.6 * self._newest.settings.tombstone_ttl_seconds)
        if self._environment.monotonic() - looked > limit:
            raise WriteFailedError(
                "this process stood still for most of the tombstone TTL since it last read what others wrote, and what "
                "it was about to write may have been deleted and forgotten meanwhile"
            )

    @property
    def _is_recent(self) -> bool:
        return self._environment.monotonic() - self._looked <= self._newest.settings.grace_seconds / 2


def read_seals(backend: Backend, path: str) -> list[Seal]:
    """The seals in a segment that holds nothing else; none where it is another writer's, or was folded and collected
    meanwhile."""
    try:
        commits = decode_commits(backend.read(path), path, 0)
    except MissingFileError:
        return []
    seals = [commit for commit in commits if isinstance(commit, Seal)]
    return seals if len(seals) == len(commits) else []
