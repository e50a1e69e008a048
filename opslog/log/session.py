"""The writer of a log, from taking its name to giving it back. Stores, imports, Spark's jobs and seals append through
a `WriterSession`, and nothing else appends.

On a filesystem the holder of an agent's name is alone with its log. On an object storage it may be paused while others
use its numbers, compact those commits and collect them; and a compaction may seal a log whose agent only seemed to be
gone. These invariants guarantee that everybody reads an acknowledged commit, and that it brings back no deleted
document. The test that shows an invariant stands after it:

1. **Name.** A session takes its name before it reads the end of its log. It waits for a name in use only while logs are
   sealed. (tests/test_ingest.py: test_an_agent_that_wrote_meanwhile_is_not_written_over, tests/test_sealing.py:
   test_a_name_is_waited_for_while_its_log_is_sealed)
2. **Durable first.** A session rests only on a durable log: `Backend.appender` makes the existing part durable.
   (tests/backends/test_fs_order.py: test_commits_of_a_killed_session_are_on_disk_before_the_next_can_rest_on_them)
3. **End.** A session begins behind everything that the cut and a listing show, so it uses no number again.
   (tests/test_ingest.py: test_a_log_that_appeared_and_was_collected_meanwhile_is_not_begun_again)
4. **Stamp.** A commit's clock is above everything that its session has read and written, so the clocks of a log grow.
   (tests/test_delayed_seals.py: test_an_idle_agent_goes_on_after_its_seal_was_collected)
5. **Age.** A commit that rests on a read most of a tombstone TTL ago does not enter the log. If the process is paused
   in the append itself, the commit is not acknowledged.
   (tests/test_delayed_writes.py: test_an_import_paused_for_long_brings_nothing_back,
   tests/store/test_sealed_writers.py: test_commits_buffered_for_too_long_get_no_new_stamps,
   tests/test_delayed_writes.py: test_a_commit_whose_append_took_most_of_the_ttl_is_not_acknowledged)
6. **Number.** Before an append, the cut of a recent manifest (`opslog.log.freshness`) shows that the next
   number was not used. (tests/test_session.py: test_a_used_number_is_found_before_the_append,
   tests/test_delayed_seals.py: test_an_idle_agent_that_has_loaded_its_seal_goes_on_after_that_was_collected)
7. **Confirmation.** After an append, the manifest of 6 is still recent; or else the cut of one that is read then is not
   beyond the append. Otherwise it may be that nobody ever reads the commit, and it is not acknowledged.
   (tests/test_delayed_writes.py:
   test_a_process_paused_before_its_append_reads_the_newest_manifest_before_it_acknowledges,
   tests/test_delayed_writes.py: test_an_append_that_was_compacted_before_it_was_confirmed_is_acknowledged)
8. **Seals.** A seal under the next number is the end of the log only if no manifest's cut is beyond it. Otherwise the
   number was used, compacted and perhaps collected, and the seal may be a delayed one that nobody reads.
   (tests/test_delayed_seals.py: test_a_delayed_seal_is_not_mistaken_for_the_end_of_the_log)
9. **Going on.** A session goes on behind a seal. Stamped commits keep their stamps, unless the log demands greater
   clocks: a commit must not outrank a transaction that its writer has not seen.
   (tests/store/test_seals_and_transactions.py:
   test_a_commit_stamped_before_a_transaction_was_read_does_not_outrank_it_behind_a_seal)
10. **Stopping.** If anything but a seal came, a session whose owner has the log in memory never writes again.
    (tests/test_session.py: test_only_a_session_without_memory_goes_on_behind_another_process,
    test_a_session_that_has_loaded_what_another_process_wrote_does_not_go_on_behind_it)

Where locks hold names, 5 and 7 cost one comparison each, and the others nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from opslog.backends import Appender, Backend, Position
from opslog.environment import Environment, format_ts
from opslog.errors import (
    AgentBusyError,
    AgentFencedError,
    ClosedError,
    CommitUnknownError,
    LockedError,
    MissingFileError,
    OpslogError,
    ReopenError,
    WriteFailedError,
)
from opslog.format.commits import Commit, Seal, decode_commits, encode_commit
from opslog.format.layout import TRANSACTIONS, segment_of, segment_path
from opslog.format.manifest import START, Cut, Manifest
from opslog.format.prepared import prepare
from opslog.log.freshness import Freshness, NewestRead
from opslog.log.reader import Cursor, Segment, list_log
from opslog.merge.clock import LamportClock

# Held while logs are sealed, and taken before any of their names. A name that is in use while nobody has this lock
# belongs to its agent, and is refused at once; while somebody has the lock, the name is worth waiting for.
SEALING_LOCK = "sealing"

# How long to wait for a name while logs are sealed: far longer than one seal takes. The names of live agents stay in
# use all the while.
WAIT_SECONDS = 10.0

_PAUSE_SECONDS = 0.01
_PAUSE_SECONDS_MAX = 0.2


def take_name(backend: Backend, agent: str, environment: Environment) -> Appender:
    """Become the one live writer of an agent's log, as `Backend.appender`, but wait for a compaction that seals it.

    :raises AgentBusyError: a live process writes under this name, or the sealing took longer than `WAIT_SECONDS`.
    """
    deadline = environment.monotonic() + WAIT_SECONDS
    pause = _PAUSE_SECONDS
    while True:
        try:
            return backend.appender(agent)
        except AgentBusyError as error:
            busy = error
        try:
            with backend.lock(SEALING_LOCK):
                return backend.appender(agent)  # nobody seals now; somebody may have done so a moment ago
        except LockedError:
            if environment.monotonic() >= deadline:
                raise busy from None
        environment.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)


class Passage(NamedTuple):
    """The position at which a log goes on if its next number was taken.

    :ivar after: the segment to go on after.
    :ivar seals: the seals up to there that the session did not know.
    :ivar clock: every commit behind the passage has a greater one.
    :ivar commits: how many commits of the log lie before it.
    """

    after: int
    seals: list[Seal]
    clock: int
    commits: int


class WriterSession:
    """The one live writer of a log. Used by one thread at a time, except `stamp` and `has_more`.

    :param appender: of the agent's name; closed by `close`.
    :param own: the end of the log, read after the name was taken.
    :param freshness: of the view that the session's commits rest on.
    :param clock: has observed all of that view.
    :param in_memory: whether the owner has the log in memory, so that it must not miss any of it. Otherwise it may
        go on behind everything compacted, and `own.commits` does not count.
    :ivar last_segment: the last segment that the owner knows.
    """

    def __init__(
        self,
        backend: Backend,
        appender: Appender,
        own: Cursor,
        freshness: Freshness,
        clock: LamportClock,
        *,
        in_memory: bool = True,
    ) -> None:
        self.agent = own.agent
        self.freshness = freshness
        self.clock = clock
        self.last_segment = own.cut.last_segment
        self._time = freshness.environment.time
        self._backend = backend
        self._appender = appender
        self._in_memory = in_memory
        # The appender writes the next segment. After a load that may be a segment that is known already: what a load
        # finds behind a manifest's cut has still to be shown to be a seal, by the appends that it blocks.
        self._after = self.last_segment
        # How many commits of the log lie before that segment.
        self._commits = own.commits
        # The clock of the last commit in the log. 0: it was not read.
        self._last_clock = own.clock
        self._was_taken = False
        appender.advance(self._after)

    def stamp(self, commit: Commit, after: int | None = None) -> bytes:
        """Give a commit its agent, ts and clock; returns its line. Errors as in `encode_commit`.

        :param after: the commit gets the next clock after this one, so it outranks nothing that it does not rest on.
            None: one above everything.
        """
        commit.agent = self.agent
        commit.ts = format_ts(self._time())
        if after is None:
            clock = self.clock
            with clock.lock:  # as `tick`, without its call, which every set would make
                clock.value = commit.clock = clock.value + 1
        else:
            commit.clock = after + 1
            self.clock.observe(commit.clock)
        return encode_commit(commit)

    def append(self, lines: bytes, read_at: float | None = None) -> Position:
        """Append the lines of commits, in the order of their stamps. On return they are durable, and part of the log.
        Errors as in `Appender.append`, and:

        :param read_at: when the data that the commits rest on was read. None: as `freshness` says.
        :raises WriteFailedError: the read was too long ago, or the storage did not answer. Nothing was written.
        :raises AgentFencedError: the next number was used. Has the segment's path if that may have been by a seal: see
            `pass_seal`. Nothing was written.
        :raises CommitUnknownError: the number of the segment may have been used before; or this process was paused in
            the append until the read was too long ago.
        """
        free = None if self._backend.segments_grow else self._check_number()
        read_at = self.freshness.read_at if read_at is None else read_at
        self.freshness.check_age(read_at)
        position = self._appender.append(lines)
        self._confirm(position, read_at, free)
        self._after = position.segment
        self.last_segment = max(self.last_segment, position.segment)
        if not self._backend.segments_grow:
            self._commits += lines.count(b"\n")
            self._last_clock = _clock_of_last(lines)
        return position

    def check_name(self) -> None:
        """Check that nobody else writes this log, as far as this can be seen without a request; errors as of
        `Appender.check_name`. From any thread."""
        self._appender.check_name()

    def pass_seal(self, fenced: AgentFencedError) -> Passage:
        """Find out what blocks the next append, given the error of the last one. If it is a seal, the owner takes it in
        and calls `go_on`.

        Reads that segment first and the newest manifest after it: if the cut is not beyond the segment then, it was
        not collected before it was read.

        :raises AgentFencedError: `fenced` itself: another process writes this log.
        :raises WriteFailedError: the storage did not answer. Nothing was written.
        """
        taken = segment_of(fenced.path)
        if taken is None:
            raise fenced
        after = taken[1]
        try:
            seals = _read_seals(self._backend, fenced.path)
            newest = self.freshness.read_newest()
            cut = self._cut_in(newest)
            commits = self._commits + len(seals or ())
            if seals is not None and cut.segment > after:
                # It was compacted, and perhaps collected. What has its number now may come from a delayed write.
                after, commits = cut.last_segment, cut.commits
                may_go_on = not self._in_memory or self._is_sealed(newest)
                seals = [Seal(newest.ts, self._clock_of_seal(newest), self.agent)] if may_go_on else None
        except OpslogError as error:
            raise WriteFailedError(f"{fenced.path} exists already, and could not be read: {error}") from error
        if not seals:
            raise fenced
        if after <= self.last_segment:
            return Passage(after, [], self._last_clock, commits)
        return Passage(after, seals, seals[-1].clock, commits)

    def go_on(self, passage: Passage) -> None:
        """Append behind this passage from now on. Commits whose clock is not greater must be stamped again."""
        for seal in passage.seals:
            self.clock.observe(seal.clock)
        if passage.after > self.last_segment:
            self.last_segment = passage.after
            self._last_clock = passage.clock
        self._go_behind(passage.after, passage.commits)

    def has_more(self, listed: Sequence[Segment]) -> bool:
        """Whether a listing of the log shows more than its owner knows: a seal, or a write of another process."""
        if self._backend.segments_grow:
            return False
        compacted = self._cut_in(self.freshness.newest).last_segment
        return max(compacted, listed[-1].number if listed else 0) > self.last_segment

    def resume(self, own: Cursor, manifest: Manifest) -> None:
        """Note that the owner has loaded its log again, from a manifest up to a cursor, and continue behind it."""
        if self._backend.segments_grow:
            return
        self._was_taken = self._was_taken or not self._is_sealed(manifest)
        self.last_segment = max(self.last_segment, own.cut.last_segment)
        self._last_clock = own.clock
        if not self._was_taken:
            cut = self._cut_in(manifest)
            with suppress(ReopenError, ClosedError):  # the next append says so, too
                self._go_behind(cut.last_segment, cut.commits)

    def close(self) -> None:
        """Give the name back. Idempotent."""
        self._appender.close()

    def _go_behind(self, segment: int, commits: int) -> None:
        """Let the appender write behind a segment that lies farther on, up to which the log has so many commits."""
        self._appender.advance(segment)
        if segment > self._after:
            self._after, self._commits = segment, commits

    def _cut_in(self, manifest: Manifest) -> Cut:
        return manifest.cut.get(self.agent, START)

    def _clock_of_seal(self, newest: Manifest) -> int:
        """The clock of a seal that was compacted, and maybe collected.

        It is the next one after the clock of the commit before the seal, as `opslog.log.sealing` has it, if the seal is
        the only commit that the session does not know. Programs before 0.2 made seals with a clock above everything;
        but stores with transactions are no longer used by such programs. Elsewhere it is enough that it is not greater
        than the manifest's.

        :raises OpslogError: the storage did not answer.
        """
        if not (self._in_memory and self._last_clock):
            return newest.clock
        has_transactions = TRANSACTIONS in newest.cut or bool(list_log(self._backend, TRANSACTIONS))
        return self._last_clock + 1 if has_transactions else newest.clock

    def _check_number(self) -> NewestRead:
        """Check that the next number was not used before. Returns the manifest that shows it."""
        try:
            read = self.freshness.recent()
        except OpslogError as error:
            raise WriteFailedError(
                f"nothing was written, because it is unknown where the log of agent {self.agent!r} continues: {error}"
            ) from error
        if self._was_taken or self._cut_in(read.manifest).last_segment > self._after:
            raise AgentFencedError(
                f"another process wrote under the agent name {self.agent!r} of {self._backend.url}, and what it wrote "
                "is in a snapshot. Nothing of this append is in the log. Close this store; then open it under another "
                "agent name, or end the other process first",
                "" if self._was_taken else segment_path(self.agent, self._after + 1),
            )
        return read

    def _confirm(self, position: Position, read_at: float, free: NewestRead | None) -> None:
        """Check that the append at `position` is part of the log, and rests on a read that is not too old.

        :param free: the manifest that has shown before the append that its number was not used. As long as it is
            recent, nothing that had used the number until the append can have been collected, and would have made the
            append fail.
        :raises CommitUnknownError: that cannot be found out, or a manifest's cut is beyond it. In the second case
            either the number was used before, and nobody reads the append; or it was read and compacted before this
            check.
        """
        if free is None or not self.freshness.is_still_recent(free):
            self._check_not_compacted(position.segment)
        if self.freshness.is_too_old(read_at):
            raise CommitUnknownError(
                f"this process was paused for most of the tombstone TTL while it wrote segment {position.segment} of "
                f"agent {self.agent!r}. What it wrote may have been deleted meanwhile, and the tombstone dropped: then "
                "some readers see it, and others do not. Close this store, open it again, and write or delete it anew"
            )

    def _check_not_compacted(self, segment: int) -> None:
        try:
            cut = self._cut_in(self.freshness.recent().manifest)
        except OpslogError as error:
            raise CommitUnknownError(
                f"it is unknown whether segment {segment} of agent {self.agent!r} is part of its log: {error}"
            ) from error
        if cut.segment > segment:
            raise CommitUnknownError(
                f"what is in segment {segment} of agent {self.agent!r} was compacted by the time this process "
                "checked: it was paused for long, and the commit is in the snapshot, unless another process had used "
                "this number before, in which case nobody reads it. Close this store, open it again, and check"
            )

    def _is_sealed(self, manifest: Manifest) -> bool:
        """Whether a manifest has compacted only a seal, of all commits that the owner does not know. If commits stay
        recent for a while, the last commit of a log is compacted only if it is a seal."""
        more = self._cut_in(manifest).commits - self._commits
        return more <= (1 if manifest.settings.undo_window else 0)


class _Clock(msgspec.Struct):
    clock: int


prepare(_Clock)


def _clock_of_last(lines: bytes) -> int:
    """The clock of the last of some lines."""
    return msgspec.json.decode(lines[lines.rfind(b"\n", 0, -1) + 1 :], type=_Clock).clock


def _read_seals(backend: Backend, path: str) -> list[Seal] | None:
    """The seals in a segment that holds nothing else; empty if the segment is gone. None if another writer wrote
    it."""
    try:
        commits = decode_commits(backend.read(path), path, 0)
    except MissingFileError:
        return []
    seals = [commit for commit in commits if isinstance(commit, Seal)]
    return seals if len(seals) == len(commits) else None
