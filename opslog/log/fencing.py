"""The one way into a log: each append of a store, an import, a Spark job or a compaction that seals is a `Fence`'s.

On a filesystem the holder of an agent's name is alone with its log. On an object storage it may be paused for as long
as others use its numbers, fold what they wrote and collect it; and a compaction may seal a log whose agent only seemed
to be gone. What guarantees that an acknowledged commit is read by everybody, and brings nothing back that was deleted:

- **Age.** A commit that rests on what its writer had read too long ago does not come into the log: a tombstone that
  outranks it may be gone.
- **Numbers.** A segment is collected only when a manifest whose cut is beyond it has been the newest for the grace
  period. So a writer that read the newest manifest less than half a grace period ago has seen that cut, and knows that
  the number is taken. One that did not reads it again: before the append, where it can still go on behind the cut, and
  after it, since it may have been paused in between.
- **Seals.** What stands under the number of the next append is a seal of this log only if no manifest's cut is beyond
  it. Otherwise that number was used, folded and perhaps collected, and the seal may be a late one that nobody reads.

Where names are held by locks all this costs one comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from opslog.backends import Appender, Backend, Position
from opslog.environment import Environment
from opslog.errors import AgentFencedError, CommitUnknownError, MissingFileError, OpslogError, WriteFailedError
from opslog.format.commits import Seal, decode_commits
from opslog.format.layout import segment_path
from opslog.format.manifest import START, Cut, Manifest
from opslog.log.reader import Cursor, Segment
from opslog.snapshot.manifests import ManifestStore

_WRITE_SECONDS = 1.0
"""However short the tombstone TTL is, a write may take as long."""


class _Look(NamedTuple):
    """A manifest, and a time of the monotonic clock at which, or after which, it was the newest."""

    newest: Manifest
    at: float


class Passage(NamedTuple):
    """Where a log goes on whose next number was taken.

    :ivar after: the segment to go on after.
    :ivar seals: what stands there, to be taken in as part of the log. Empty: the newest manifest's cut is beyond it,
        whatever stands there.
    """

    after: int
    seals: list[Seal]


class Fence:
    """Remembers the newest manifest and when it was read. Safe to use from many threads.

    :param newest, at: as of `look`; also when its owner began to read what others wrote.
    """

    def __init__(self, manifests: ManifestStore, environment: Environment, newest: Manifest, at: float) -> None:
        self._manifests = manifests
        self._environment = environment
        self._began = at
        self._look = _Look(newest, at)

    def look(self, newest: Manifest, at: float) -> None:
        """This manifest was the newest at a time of the monotonic clock, or later: a time from before it was read,
        since a process can be paused after it."""
        if newest.number >= self._look.newest.number:
            self._look = _Look(newest, at)

    @property
    def newest(self) -> Manifest:
        """The newest manifest that was read."""
        return self._look.newest

    def read_newest(self) -> Manifest:
        """The newest manifest, read now."""
        at = self._environment.monotonic()
        newest = self._manifests.newest()
        self.look(newest, at)
        return newest

    def append(self, appender: Appender, agent: str, data: bytes, read_at: float | None = None) -> Position:
        """Append whole lines to an agent's log, and make sure that they count. Errors as of `Appender.append`, and:

        :param read_at: when what the commits rest on was read, by the monotonic clock. None: when this object was made.
        :raises WriteFailedError: that was too long ago; nothing was written.
        :raises CommitUnknownError: the number of the segment may have been used before.
        """
        self._check_age(self._began if read_at is None else read_at)
        position = appender.append(data)
        self._confirm(agent, position)
        return position

    def cut(self, agent: str) -> Cut:
        """Where the cut of this log is in the newest manifest, which is read again where that is too long ago for the
        next append. :raises WriteFailedError: the storage did not answer. Nothing was written."""
        if not self._is_recent:
            try:
                self.read_newest()
            except OpslogError as error:
                raise WriteFailedError(
                    f"nothing was written, since nobody can say where the log of agent {agent!r} goes on: {error}"
                ) from error
        return self._look.newest.cut.get(agent, START)

    def pass_seal(self, backend: Backend, agent: str, number: int) -> Passage | None:
        """Where an agent's log goes on whose next append was to have this `number`, which is taken.

        Reads that segment first and the newest manifest after it: if the cut is not beyond the segment then, it was
        not collected before it was read.

        :returns: None: another process writes this log.
        :raises WriteFailedError: the storage did not answer. Nothing was written.
        """
        path = segment_path(agent, number)
        try:
            seals = _read_seals(backend, path)
            self.read_newest()
        except OpslogError as error:
            raise WriteFailedError(f"{path} exists already, and nobody can say what it is: {error}") from error
        if seals is None:
            return None
        cut = self._look.newest.cut.get(agent, START)
        if cut.segment > number:
            return Passage(cut.last_segment, [])
        return Passage(number, seals) if seals else None

    def check_recent(self) -> None:
        """What was read until now was not collected before: it is what was there when the manifest was read.

        :raises MissingFileError: that was too long ago. Where there are no locks, what was read may stand under a
            number that others used, folded and collected; load again.
        """
        if not self._is_recent:
            raise MissingFileError("this process was paused for long between listing the logs and reading them")

    def _check_age(self, read_at: float) -> None:
        """A commit rests on a view that was no older than half of the tombstone TTL. It must not come into the log much
        later: what it writes may have been deleted since, and the tombstone dropped.

        :param read_at: when others' commits were read. :raises WriteFailedError: it is too long ago.
        """
        limit = max(_WRITE_SECONDS, 0.6 * self._look.newest.settings.tombstone_ttl_seconds)
        if self._environment.monotonic() - read_at > limit:
            raise WriteFailedError(
                "this process was paused for most of the tombstone TTL since it last read what others wrote. What it "
                "was about to write may have been deleted meanwhile, and the tombstone dropped: nothing was written"
            )

    def _confirm(self, agent: str, position: Position) -> None:
        """What was appended at `position` is part of the log.

        :raises CommitUnknownError: nobody can say, or a manifest's cut is beyond it. Then the number may have been used
            before, and nobody reads what was appended; or it was read and folded before this look.
        """
        if not self._is_recent:
            try:
                self.read_newest()
            except OpslogError as error:
                raise CommitUnknownError(
                    f"nobody can say whether segment {position.segment} of agent {agent!r} is part of its log: {error}"
                ) from error
        if self._look.newest.cut.get(agent, START).segment > position.segment:
            raise CommitUnknownError(
                f"what is in segment {position.segment} of agent {agent!r} was folded by the time this process looked: "
                "it was paused for long, and the commit is in the snapshot, unless another process had used this "
                "number before, in which case nobody reads it. Close this store, open it again, and look"
            )

    @property
    def _is_recent(self) -> bool:
        newest, at = self._look
        return self._environment.monotonic() - at <= newest.settings.grace_seconds / 2


class OwnLog:
    """What a store knows of its own log where each append is a segment of its own. (Elsewhere nobody else writes it.)

    A compaction that took the agent for gone may have sealed the log: then there is one commit more than the store
    knows, and the store goes on after it. If there are others, another process took over the name, and this one must
    write no more.

    :ivar segment: the last segment that is in the store's state; `commits`: how many commits are.
    """

    def __init__(self, fence: Fence, backend: Backend, own: Cursor) -> None:
        self.segment = own.segment - 1
        self.commits = own.commits
        self._fence = fence
        self._backend = backend
        self._agent = own.agent
        self._was_taken = False

    def append(self, appender: Appender, lines: bytes, read_at: float) -> Position:
        """As `Fence.append`. :raises AgentFencedError: also where the next number was used, as the newest manifest
        says; with its path, if that may have been by a seal."""
        if not self._backend.segments_grow:
            self._check_next()
        position = self._fence.append(appender, self._agent, lines, read_at)
        self.segment = max(self.segment, position.segment)
        self.commits += lines.count(b"\n")
        return position

    def pass_seal(self, number: int, take_in: Callable[[Seal], None]) -> int | None:
        """The segment to go on after, where this one was to be written; None if another process writes this log.

        :param take_in: called with a seal that the store does not know yet. :raises WriteFailedError: as of
            `Fence.pass_seal`.
        """
        passage = self._fence.pass_seal(self._backend, self._agent, number)
        if passage is None:
            return None
        seals = passage.seals
        if not seals and passage.after > self.segment:
            newest = self._fence.newest
            if not self._is_sealed(newest):
                return None
            # Folded, and perhaps collected. What stands there now may be another one, that came too late.
            seals = [Seal(newest.ts, newest.clock, self._agent)]
        if passage.after > self.segment:
            for seal in seals:
                take_in(seal)
            self.segment = passage.after
            self.commits += len(seals)
        return passage.after

    def has_more(self, listed: Sequence[Segment]) -> bool:
        """Whether the log has more than the store knows, given its listing: a seal, or what another process wrote."""
        if self._backend.segments_grow:
            return False
        folded = self._fence.newest.cut.get(self._agent, START).last_segment
        return max(folded, listed[-1].number if listed else 0) > self.segment

    def loaded(self, own: Cursor, manifest: Manifest) -> int:
        """Note that the store has loaded its log up to a cursor, from a manifest on.

        :returns: the segment to go on after, or an earlier one.
        """
        if self._backend.segments_grow:
            return 0
        self._was_taken = self._was_taken or not self._is_sealed(manifest)
        self.segment = max(self.segment, own.segment - 1)
        self.commits = own.commits
        return 0 if self._was_taken else manifest.cut.get(self._agent, START).last_segment

    def _check_next(self) -> None:
        path = segment_path(self._agent, self.segment + 1)
        if self._was_taken or self._fence.cut(self._agent).last_segment > self.segment:
            raise AgentFencedError(
                f"another process wrote under the agent name {self._agent!r} of {self._backend.url}, and what it wrote "
                "is folded. Nothing of this append is in the log. Close this store; then open it under a name of its "
                "own, or end the other process first",
                "" if self._was_taken else path,
            )

    def _is_sealed(self, manifest: Manifest) -> bool:
        """Whether, of commits that the store does not know, nothing but a seal is folded in a manifest. Where commits
        are recent for a while, the last commit of a log is never folded, unless it is a seal."""
        more = manifest.cut.get(self._agent, START).commits - self.commits
        return more <= (1 if manifest.settings.undo_window else 0)


def _read_seals(backend: Backend, path: str) -> list[Seal] | None:
    """The seals in a segment that holds nothing else; none where it is not there any more. None where it is another
    writer's."""
    try:
        commits = decode_commits(backend.read(path), path, 0)
    except MissingFileError:
        return []
    seals = [commit for commit in commits if isinstance(commit, Seal)]
    return seals if len(seals) == len(commits) else None
