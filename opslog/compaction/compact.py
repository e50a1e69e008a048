"""Compaction: move the cut forward and write the next snapshot and manifest, while everyone writes.

1. Take the compaction lock. It only avoids double work: what follows is safe without it.
2. Read the newest manifest and all logs to their ends, into a merge of their own. The commits that are settled there
   are exactly those that may be compacted: no undo that anybody can still write reaches them. The new cut of a log is
   where its recent commits begin.
3. Drop winners that lose against the snapshot because they were written with an old view. The others, in order of id,
   are the new run. When a size tier has four runs, they are merged into it as a stream.
4. Write the parts, make the tails that were read durable, and create the manifest with the next number. If that number
   exists, another process was first: delete the parts.
5. Collect garbage.

A compaction uses the backend alone and never the memory of an open store. So it can run in any process at any time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import msgspec

from opslog.backends import Backend
from opslog.chunks import batched
from opslog.compaction.garbage import NOTHING, Garbage, collect, find_garbage, oldest_retained
from opslog.concurrency.interpreter import short_switch_interval
from opslog.concurrency.overlapping import overlapped
from opslog.environment import Environment, format_ts
from opslog.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    MissingFileError,
    OpslogError,
    UsageError,
    WriteFailedError,
)
from opslog.format.commits import Commit, Record, Set
from opslog.format.layout import SNAPSHOTS, TRANSACTIONS, index_path, run_name, segment_path
from opslog.format.manifest import START, Cut, Manifest, Part, Run, Settings
from opslog.format.scanned import greatest_ts, last_clock
from opslog.format.snapshot import Ages, File, Row, SortedLines, build_parts, may_be_last, runs_to_merge
from opslog.kernel import Table
from opslog.log.freshness import Freshness
from opslog.log.reader import Chunk, Cursor, Segments, list_log, read_logs
from opslog.log.sealing import logs_of_the_gone, seal_all
from opslog.log.survey import Survey, survey, unread_authors
from opslog.merge.merge import Merge
from opslog.merge.ordering import in_order
from opslog.merge.stamps import outranks
from opslog.merge.undo import oldest_undoable
from opslog.snapshot.identity import ensure_identity
from opslog.snapshot.manifests import ManifestStore
from opslog.snapshot.runs import BlockRun, merge_rows

if TYPE_CHECKING:
    from opslog.kernel import _kernel

T = TypeVar("T")

LOCK = "compaction"

# How many rows are kept in one tuple, and freed together.
_TOGETHER = 1000

# How long superseded files stay for `as_of`: seconds, a duration, or forever.
KeepHistory = float | timedelta | Literal["forever"]

# Called while records are written, with how many there are so far and how many there may be at most.
Progress = Callable[[int, int], None]


class Compaction(msgspec.Struct, frozen=True):
    """What a compaction did.

    :ivar number: the manifest it published; None if there was nothing to do, or if another process was first.
    :ivar commits: how many commits it compacted.
    :ivar records: how many records the new run has.
    :ivar bytes: the size of the new run.
    :ivar runs_merged: how many older runs went into the new one.
    :ivar sealed: the idle agents whose undo window it ended.
    :ivar garbage: what it deleted.
    :ivar garbage_error: why it could not delete that, though the manifest is published; None: it could. The next
        compaction tries again.
    """

    number: int | None = None
    commits: int = 0
    records: int = 0
    bytes: int = 0
    runs_merged: int = 0
    sealed: tuple[str, ...] = ()
    garbage: Garbage = NOTHING
    garbage_error: str | None = None


def compact(
    backend: Backend,
    environment: Environment,
    *,
    full: bool = False,
    keep_history: KeepHistory | None = None,
    progress: Progress | None = None,
) -> Compaction:
    """Compact the store; see `opslog.Store.compact` for the parameters.

    :raises LockedError: another compaction is running.
    """
    with backend.lock(LOCK):
        return compact_unlocked(backend, environment, full=full, keep_history=keep_history, progress=progress)


def compact_unlocked(
    backend: Backend,
    environment: Environment,
    *,
    full: bool = False,
    keep_history: KeepHistory | None = None,
    progress: Progress | None = None,
) -> Compaction:
    """One compaction without the lock. It is as safe, but if two run at once, one of them works in vain."""
    with short_switch_interval():
        manifests = ManifestStore(backend)
        read_at = environment.monotonic()
        tail = survey(manifests, lambda found: Tail.read(backend, found))
        freshness = Freshness(manifests, environment, tail.manifest, read_at)

        def read() -> CompactionInput:
            sealed = tail.seal_idle(backend, freshness)
            return tail.input(backend, sealed, progress)

        return publish(backend, environment, tail.manifest, read, full=full, keep_history=keep_history)


class NewRows(Protocol):
    """The rows that a compaction adds to a snapshot: the settled records that win against it.

    :ivar count: how many rows there are.
    :ivar bytes: the size of their lines.
    :ivar documents: how many more documents the snapshot shows with them; negative if they delete more.
    """

    count: int
    bytes: int
    documents: int

    def write(self, run: str, merged: Sequence[Run], ages: Ages) -> Iterator[Part]:
        """Write the parts of a new run, with their indexes. It has these rows and those of the older runs in `merged`.

        :param merged: the newest runs of the snapshot, newest first.
        :param ages: decides which tombstones are left out.
        """


class CompactionInput(msgspec.Struct, frozen=True):
    """What there is to compact: the new cut, the greatest clock and `ts` of all that was read, and the settled rows.

    :ivar logs: as in `Manifest.log_ends`.
    :ivar ends: the segments in which the logs that were read end (`tail_ends`).
    :ivar sealed: agents whose undo window was ended for this.
    :ivar authors: as in `Manifest.settled_by`.
    """

    cut: dict[str, Cut]
    logs: dict[str, Cut]
    clock: int
    ts: str
    rows: NewRows
    ends: list[str]
    sealed: tuple[str, ...]
    authors: dict[str, int]


def tail_ends(segments: Segments, cut: Mapping[str, Cut]) -> list[str]:
    """The segments to make durable before a manifest relies on them. A commit can be read before its agent has made it
    durable. A power cut could then remove it although a manifest has compacted it.

    Only the last segment of a log can have bytes that are not durable: a session makes durable what it finds
    (`Backend.appender`), and whoever published the manifest made durable what lies before its cut. An empty segment is
    left out. Nothing was read from it, and its agent may remove it if it could not be made durable.
    """
    return [
        segment_path(agent, listed[-1].number)
        for agent, listed in segments.items()
        if listed and listed[-1].bytes and (listed[-1].number, listed[-1].bytes) > cut.get(agent, START).position
    ]


def passed_by_undo(
    settled_by: Mapping[str, int], oldest: Mapping[str, int], unread: Mapping[str, int]
) -> dict[str, int]:
    """The authors whose newest compacted commit a manifest has to name, with its clock. They are those who may have an
    older commit in the other log that an undo may still cancel: the undo would skip the newer one.

    :param settled_by: for each author, the clock of its newest compacted commit.
    :param oldest: as `oldest_undoable` returns, of both logs.
    :param unread: as `unread_authors` returns, for the ends up to which the logs were read. A listing takes a while. It
        may have come to one log before its author wrote a commit, and to the other one after the author wrote a newer
        commit there, which is compacted now.
    """
    return {
        author: clock
        for author, clock in sorted(settled_by.items())
        if min(oldest.get(author, clock), unread.get(author, clock)) < clock
    }


def publish(
    backend: Backend,
    environment: Environment,
    old: Manifest,
    read: Callable[[], CompactionInput],
    *,
    full: bool,
    keep_history: KeepHistory | None,
) -> Compaction:
    """Publish the next manifest. All compactions share this step; only reading and writing the rows differs.

    :param old: the manifest that the compaction began with.
    :param read: seals idle logs and returns what there is to compact. It may raise `MissingFileError` if a file was
        collected meanwhile. If there is a newer manifest by then, another process was first, and that is no error.
    """
    settings = _with_history(old.settings, keep_history)
    sealed: tuple[str, ...] = ()
    try:
        input = read()
        sealed = input.sealed
        finished = logs_of_the_gone(backend, old, input.cut)
        input = msgspec.structs.replace(input, cut=input.cut | finished)
        plan = _Plan(backend, old, input, settings, full)
        if not plan.worthwhile and not sealed:
            now = backend.now()
            garbage = find_garbage(backend, now, old.number, oldest_retained(backend, now, settings))
            if not garbage.runs and not garbage.segments:
                return Compaction()
        return plan.carry_out(environment)
    except (AlreadyExistsError, MissingFileError):
        if ManifestStore(backend).newest_number() == old.number:
            raise
        return Compaction(sealed=sealed)


def _with_history(settings: Settings, keep_history: KeepHistory | None) -> Settings:
    if keep_history is None:
        return settings
    if keep_history == "forever":
        return msgspec.structs.replace(settings, keep_history_seconds=None)
    seconds = keep_history.total_seconds() if isinstance(keep_history, timedelta) else keep_history
    settings = msgspec.structs.replace(settings, keep_history_seconds=seconds)
    if settings.fault:
        raise UsageError(f'keep_history is a number of seconds, a timedelta or "forever", not {keep_history!r:.80}')
    return settings


class Tail:
    """Everything after a manifest's cut, merged, with the positions where the next cut may be."""

    def __init__(self, found: Survey) -> None:
        self.manifest = manifest = found.manifest
        self.merge = Merge(manifest.settings.undo_window, settled_by=dict(manifest.settled_by))
        self.cursors, self.segments = found.cursors, found.segments
        self.clock, self.ts = manifest.clock, manifest.ts
        # For each agent, where the newest commits of its log begin: as many as an undo can reach.
        self._newest_positions = defaultdict[str, deque[tuple[int, int]]](lambda: deque(maxlen=self.merge.window))

    @classmethod
    def read(cls, backend: Backend, found: Survey) -> Tail:
        """Read the logs that a survey found.

        :raises MissingFileError: a segment was collected meanwhile.
        """
        tail = cls(found)
        tail.merge.load(tail._noted(read_logs(backend, tail.cursors, tail.segments, scans=True)))
        return tail

    def input(self, backend: Backend, sealed: tuple[str, ...], progress: Progress | None) -> CompactionInput:
        """What there is to compact. Call this only once: it moves the settled records into the rows."""
        rows = _Winners(backend, self, progress)
        ends = tail_ends(self.segments, self.manifest.cut)
        oldest = oldest_undoable(chain.from_iterable(self.merge.recent.values()))
        authors = passed_by_undo(self.merge.settled_by, oldest, unread_authors(backend, self.cursors))
        cut = self.cut()
        logs = {
            agent: cursor.cut
            for agent, cursor in self.cursors.items()
            if cursor.commits > cut.get(agent, START).commits
        }
        return CompactionInput(cut, logs, self.clock, self.ts, rows, ends, sealed, authors)

    def cut(self) -> dict[str, Cut]:
        """The new cut: where the recent commits of each log begin."""
        cuts = {
            agent: self._cut_of(cursor, len(self.merge.recent.get(agent, ()))) for agent, cursor in self.cursors.items()
        }
        return {agent: cut for agent, cut in cuts.items() if cut.commits}

    def _cut_of(self, cursor: Cursor, recent: int) -> Cut:
        if not recent:
            return cursor.cut
        segment, offset = self._newest_positions[cursor.agent][-recent]
        return Cut(segment, offset, cursor.commits - recent, there=offset == 0)

    def seal_idle(self, backend: Backend, freshness: Freshness) -> tuple[str, ...]:
        """End the undo window of agents that have been idle for longer than the store's undo TTL, so that their whole
        logs can be compacted. Returns the names of the agents.

        :raises MissingFileError: another compaction was first, and has collected segments that were still to be read.
        """

        def find_end(agent: str) -> Cursor | None:
            has_grown = self._read_on(backend, agent)  # it came back, wrote and left meanwhile
            return None if has_grown else self.cursors[agent]

        now = backend.now()
        idle = [
            agent
            for agent, recent in self.merge.recent.items()
            if recent and now - self.segments[agent][-1].modified > self.manifest.settings.undo_ttl_seconds
        ]
        sealed = seal_all(backend, idle, find_end, freshness)
        for agent in sealed:
            self._read_on(backend, agent)
        return sealed

    def _noted(self, chunks: Iterable[tuple[str, Chunk]]) -> Iterator[tuple[str, Sequence[Commit]]]:
        for agent, chunk in chunks:
            positions = self._newest_positions[agent]
            if len(positions) < self.merge.window:
                positions.extendleft(reversed(chunk.positions()[len(positions) - self.merge.window :]))
            self.clock = max(self.clock, last_clock(chunk.commits))
            self.ts = max(self.ts, greatest_ts(chunk.commits))
            yield agent, chunk.commits

    def _read_on(self, backend: Backend, agent: str) -> int:
        """Read the new commits of a log. Returns how many there were."""
        cursor = self.cursors[agent]
        before = cursor.commits
        self.segments[agent] = list_log(backend, agent)
        for start, commit in cursor.read(backend, self.segments[agent]):
            self.merge.apply(commit)
            self._newest_positions[agent].append(start.position)
            self.clock = max(self.clock, commit.clock)
            self.ts = max(self.ts, commit.ts)
        return cursor.commits - before


def _positions(cuts: dict[str, Cut]) -> dict[str, tuple[int, int]]:
    return {agent: cut.position for agent, cut in cuts.items()}


class _Winners:
    """New rows in memory, made of the settled records of a `Tail`, which loses them. Costs as much as the tail. With
    the kernel most rows stay lines and are never decoded."""

    def __init__(self, backend: Backend, tail: Tail, progress: Progress | None) -> None:
        self._backend = backend
        self._progress = progress
        self._uncompacted = tail.merge.contested
        self.documents = 0
        runs = [BlockRun(backend, run) for run in tail.manifest.runs]
        self._sets = self._take_sets(tail.merge, runs)
        winners = self._winners(tail.merge.settled, runs)
        # In tuples: Python's garbage collector skips a tuple of rows, but would traverse a list of them.
        self._rows = deque(batched(winners, _TOGETHER))
        self.count = sum(map(len, self._rows))
        self.bytes = sum(len(row.line) for some in self._rows for row in some)
        if self._sets is not None:
            count, size, documents = self._sets.figures()
            self.count += count
            self.bytes += size
            self.documents += documents

    @staticmethod
    def _take_sets(merge: Merge, runs: list[BlockRun]) -> _kernel.Winners | None:
        """Take the sets of the usual form out of `merge.settled` and compare them with the snapshot. None without the
        kernel."""
        if Table is None:
            return None
        from opslog.merge.lines import Lines
        from opslog.snapshot.merging import compare

        lines = Lines() if merge.lines is None else merge.lines
        lines.absorb(merge.settled)
        sets = lines.winners()
        for id in merge.settled:
            sets.drop(id)
        for run in runs:
            compare(sets, run, len(lines))
        return sets

    def _winners(self, settled: dict[str, Record], runs: list[BlockRun]) -> Iterator[Row]:
        """The settled records that win against the snapshot, in order of id. Adds to `documents` those that are new,
        and subtracts those that are deleted."""
        lookups = [run.ascending(len(settled)) for run in runs]
        for id in in_order(settled):
            record = settled.pop(id)  # the line is enough from now on
            stored = first_found(lookups, id) if lookups else None
            if stored is None or outranks(record, stored):
                self.documents += isinstance(record, Set) - isinstance(stored, Set)
                yield Row.new(record)

    def write(self, run: str, merged: Sequence[Run], ages: Ages) -> Iterator[Part]:
        total = self.count + sum(stored.records for stored in merged)
        written = 0
        files = build_parts(run, ages.of(self._over(merged), self._uncompacted))
        for part in overlapped(self._create, files, may_be_last):
            yield part
            written += part.records
            if self._progress:
                self._progress(written, total)

    def _create(self, file: File) -> Part:
        self._backend.create(file.part.path, file.data)
        self._backend.create(index_path(file.part.path), file.index)
        return file.part

    def _over(self, merged: Sequence[Run]) -> Iterable[Row | SortedLines]:
        """The rows of the new run, in order of id."""
        below = [BlockRun(self._backend, stored) for stored in merged]
        if self._sets is None:
            above = (row for some in _taken(self._rows) for row in some)
            return merge_rows([above, *(run.rows() for run in below)])
        from opslog.snapshot.merging import Merged, rows_from, rows_in

        return Merged([rows_from(_taken(self._rows)), self._sets, *map(rows_in, below)])


class _Plan:
    """What one compaction will write. Nothing is changed on storage before `carry_out`."""

    def __init__(self, backend: Backend, old: Manifest, input: CompactionInput, settings: Settings, full: bool) -> None:
        self.backend = backend
        self.old = old
        self.input = input
        self.settings = settings
        rows, runs = input.rows, old.runs
        merging = len(runs) + 1 if full else runs_to_merge([rows.bytes, *(run.bytes for run in runs)])
        # Without new rows there is no reason to merge runs, unless all of them are to become one.
        self.merged = runs[: merging - 1] if rows.count or full else []
        self.rewrites = full and (len(runs) > 1 or any(self._is_outdated(part) for run in runs for part in run.parts))

    def _is_outdated(self, part: Part) -> bool:
        """Whether a part has tombstones, or does not list the ids from the shared log although the store has one."""
        return part.live < part.records or (part.shared is msgspec.UNSET and TRANSACTIONS in self.input.cut)

    @property
    def worthwhile(self) -> bool:
        """Whether carrying out the plan would change more than the manifest's number."""
        if self.input.rows.count or self.rewrites or self.settings != self.old.settings:
            return True
        if self.input.logs.keys() - self.old.cut.keys() - self.old.log_ends.keys():
            return True  # no manifest says yet that these logs exist
        return _positions(self.input.cut) != _positions(self.old.cut)

    def carry_out(self, environment: Environment) -> Compaction:
        """Write the run, publish the manifest, collect garbage.

        :raises AlreadyExistsError: another process published first.
        :raises MissingFileError: another process published first, and has collected already.
        """
        ensure_identity(self.backend, environment.nonce)
        number = self.old.number + 1
        run = Run(run_name(number, environment.nonce()), [])
        ages = self._ages()
        try:
            run.parts.extend(self.input.rows.write(run.name, self.merged, ages))
        except CommitUnknownError as error:  # of a part: no manifest names it, so nothing is unknown
            self._discard(run)
            if ManifestStore(self.backend).newest_number() > self.old.number:
                raise AlreadyExistsError("another process published first, and has deleted the parts") from error
            raise WriteFailedError(f"nothing was compacted: {error}") from error
        except Exception:
            self._discard(run)
            raise
        try:
            manifest = self._manifest(number, run, environment, ages.now)
            self.backend.persist(self.input.ends)
            ManifestStore(self.backend).create(manifest)
        except (AlreadyExistsError, MissingFileError, WriteFailedError):
            # Here it is certain that no manifest names the parts. After an unknown outcome they stay, and garbage
            # collection finds out.
            self._discard(run)
            raise
        if self._is_passed(number):
            return Compaction(sealed=self.input.sealed)
        garbage, garbage_error = NOTHING, None
        try:
            garbage = collect(self.backend, number)
        except OpslogError as error:  # not raised, since it may say that nothing has happened
            garbage_error = str(error)
        return Compaction(
            number,
            manifest.commits - self.old.commits,
            run.records,
            run.bytes,
            len(self.merged),
            self.input.sealed,
            garbage,
            garbage_error,
        )

    def _ages(self) -> Ages:
        # All compacted commits were read before now, so every process could read them by now.
        now = self.backend.now()
        takes_all = len(self.merged) == len(self.old.runs)
        oldest = format_ts(max(0.0, now - self.settings.tombstone_ttl_seconds)) if takes_all else ""
        return Ages(format_ts(now), oldest)

    def _discard(self, run: Run) -> None:
        self.backend.delete([entry.path for entry in self.backend.list(f"{SNAPSHOTS}{run.name}/")])

    def _is_passed(self, number: int) -> bool:
        """Whether this process was paused for so long that others had used the number, published later ones and
        collected this one. Then nobody reads the manifest that was published here, and the next compaction deletes
        it."""
        manifests = ManifestStore(self.backend)
        return manifests.newest_number() != number and number not in dict(manifests.retained())

    def _manifest(self, number: int, run: Run, environment: Environment, folded: str) -> Manifest:
        kept = self.old.runs[len(self.merged) :]
        oldest = oldest_retained(self.backend, self.backend.now(), self.settings)
        return Manifest(
            number=number,
            created=format_ts(environment.time()),
            clock=self.input.clock,
            ts=self.input.ts,
            documents=self.old.documents + self.input.rows.documents,
            cut=self.input.cut,
            runs=[run, *kept] if run.parts else kept,
            settings=self.settings,
            oldest=min(number, oldest),
            folded=folded,
            authors=self.input.authors or msgspec.UNSET,
            # Sorted, so that the bytes are the same whichever engine has read the logs.
            logs=dict(sorted(self.input.logs.items())) or msgspec.UNSET,
        )


def _taken(rows: deque[T]) -> Iterator[T]:
    """The rows, each freed once it was taken: freeing a million at once would block all threads."""
    while rows:
        yield rows.popleft()


def first_found(lookups: Sequence[Callable[[str], Record | None]], id: str) -> Record | None:
    """The record of a document in the newest run that has one."""
    return next((record for get in lookups if (record := get(id)) is not None), None)
