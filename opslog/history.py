"""The past: earlier states, and the commits since, as far back as manifests and segments are retained.

A point in the past is a clock or a wall-clock time. The state at clock c is the merge of all commits with a clock up to
c; at time t, of all commits that were written by then. A commit was written at its `ts`, or when it was compacted by
the storage's clock, whichever is earlier: if a machine's clock is ahead, its commits existed at the latest when they
were compacted. The state is rebuilt from the newest retained manifest that includes nothing beyond the point. Its
snapshot, and every undo that it applied, lie before the point, and everything else is in the logs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec

from opslog.backends import Backend, Entry
from opslog.environment import Environment, format_ts, parse_time
from opslog.errors import CorruptError, HistoryGoneError, MissingFileError, UsageError
from opslog.format.commits import Commit, Record, Set, Stamp, Undo
from opslog.format.manifest import Manifest
from opslog.log.reader import Cursor, LogSource, Segment, log_source
from opslog.log.survey import Survey, check_reaches, retained, survey_history
from opslog.merge.stamps import stamp_of
from opslog.merge.undo import Reachable
from opslog.notebook import ROWS, table
from opslog.replica.loading import Loader
from opslog.replica.state import State
from opslog.snapshot.manifests import ManifestStore
from opslog.snapshot.runs import BlockRun

# A clock, or a time: a `datetime` with a zone, or such a time as text (``2026-11-20T12:00:00Z``).
Point = int | str | datetime


class Revision(msgspec.Struct, frozen=True):
    """One set or delete of a document.

    :ivar record: the set or delete, with its `ts`, `clock`, `agent` and, for a set, `data`.
    :ivar undone: whether an undo cancelled it.
    """

    record: Record
    undone: bool


class Revisions(list[Revision]):
    """A list of revisions, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = (
            [
                revision.record.op,
                bytes(revision.record.data).decode(errors="replace") if isinstance(revision.record, Set) else "",
                revision.record.author,
                str(revision.record.clock),
                revision.record.ts,
                "undone" if revision.undone else "",
            ]
            for revision in self[-ROWS:]
        )
        note = f"the newest {ROWS} of {len(self):,} revisions" if len(self) > ROWS else ""
        return table("history", ["op", "document", "author", "clock", "ts", ""], rows, note)


def load_as_of(loader: Loader, point: Point, environment: Environment) -> State:
    """The state at a point.

    :raises HistoryGoneError: it was compacted away; the error names the oldest point that is left.
    :raises UsageError: it is not a point, or lies in the future.
    """
    before, included = conditions(point)
    newest_clock, newest_ts = 0, ""

    def noted(commit: Commit) -> bool:
        nonlocal newest_clock, newest_ts
        newest_clock, newest_ts = max(newest_clock, commit.clock), max(newest_ts, commit.ts)
        return included(commit)

    state = loader.load_at(lambda: manifest_before(loader.manifests, before, point), noted)
    newest = max(newest_clock, state.manifest.clock), max(newest_ts, state.manifest.ts)
    check_past(loader.backend, point, environment, lambda: newest)
    return state


def check_past(backend: Backend, point: Point, environment: Environment, newest: Callable[[], tuple[int, str]]) -> None:
    """:param newest: returns the greatest clock and the greatest `ts` of all commits; only called if they decide.
    :raises UsageError: the point lies in the future.
    """
    if isinstance(point, int):
        clock, ts = newest()
        is_future = point > clock
    else:
        # Another machine's clock may be ahead: a time that the storage or a commit has reached is not in the future.
        time = _time(point)
        if time <= format_ts(environment.time()) or time <= format_ts(backend.now()):
            return
        clock, ts = newest()
        is_future = time > ts
    if is_future:
        what = f"the newest commit is at clock {clock} ({ts})" if clock else "nothing was written"
        raise UsageError(f"as_of={point} of {backend.url} lies in the future: {what}. Leave it out to see the newest")


def conditions(point: Point) -> tuple[Callable[[Manifest], bool], Callable[[Commit], bool]]:
    """Whether a manifest includes nothing beyond the point, and whether a commit is not beyond it."""
    if isinstance(point, int) and not isinstance(point, bool):
        clock = check_clock(point, "as_of")
        return lambda manifest: manifest.clock <= clock, lambda commit: commit.clock <= clock
    ts = _time(point)
    return lambda manifest: manifest.complete_from <= ts, lambda commit: commit.ts <= ts


def _time(point: Point) -> str:
    """:raises UsageError: it is not a time."""
    try:
        moment = point if isinstance(point, datetime) and point.tzinfo else parse_time(str(point))
        # Not by way of seconds: near the year 9999 a double has no microseconds.
        return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    except (ValueError, OverflowError) as error:
        raise UsageError(f"as_of takes a clock (an integer) or a time with a zone, not {point!r}: {error}") from error


def check_clock(clock: object, what: str) -> int:
    """Check a clock, and return it.

    :raises UsageError: it is not a clock.
    """
    if isinstance(clock, int) and not isinstance(clock, bool) and clock >= 0:
        return clock
    raise UsageError(f"{what} is a clock, an integer from 0 on, not {clock!r:.60}: commits are numbered from 1 on")


def manifest_before(manifests: ManifestStore, before: Callable[[Manifest], bool], point: Point) -> Manifest:
    """The newest retained manifest that includes nothing beyond the point. Found by binary search: clock, ts and the
    time by the storage's clock only grow with the number.

    :param before: the first of the point's `conditions`.
    :raises HistoryGoneError: it was compacted away; the error names the oldest point that is left.
    :raises NotFoundError: there is no store.
    """
    manifests.newest()  # raises if there is no store
    retained = manifests.retained()
    oldest: Manifest | None = None
    low, high = 0, len(retained)
    chosen: Manifest | None = None
    while low < high:
        middle = (low + high) // 2
        try:
            manifest = _dated(manifests.read(retained[middle][0]), retained[middle][1])
        except MissingFileError:
            low = middle + 1  # collected since the listing, so everything older is
            continue
        if before(manifest):
            chosen, low = manifest, middle + 1
        else:
            oldest, high = manifest, middle
    if chosen is None and oldest is None:
        return manifest_before(manifests, before, point)  # all were collected since the listing
    if chosen is None:
        assert oldest is not None
        time = f" (all commits up to {oldest.complete_from})" if oldest.ts else ""
        raise HistoryGoneError(
            f"the state at {point} was compacted away; the oldest that can be had is at clock {oldest.clock}{time}. To "
            "keep more, compact with keep_history",
            oldest.clock,
        )
    return chosen


def _dated(manifest: Manifest, entry: Entry) -> Manifest:
    """A manifest with its time. If an older program made it without one, the time of its file."""
    return manifest if manifest.folded else msgspec.structs.replace(manifest, folded=format_ts(entry.modified))


def commits_since(backend: Backend, since: int | None) -> Iterator[Commit]:
    """All retained commits with a clock greater than `since`, in the order of their stamps.

    :param since: None: everything that is retained. With a clock, the result is complete, or this raises.
    :raises HistoryGoneError: some of them were compacted away.
    :raises UsageError: `since` is not a clock.
    """
    if since is not None:
        check_clock(since, "since")
    manifests = ManifestStore(backend)
    oldest, newest = manifests.oldest(), manifests.newest()
    if since is not None and since < oldest.clock:
        raise HistoryGoneError(
            f"commits from clock {since} on were partly compacted away; all of them are there from {oldest.clock} on. "
            "To keep more, compact with keep_history",
            oldest.clock,
        )
    # For everything that is retained, start at the beginning of the segments with the cuts.
    commits = _merged(backend, retained(backend, oldest, newest, whole_segments=since is None))
    return _unless_collected(backend, oldest, (commit for commit in commits if since is None or commit.clock > since))


def _merged(backend: Backend, found: Survey) -> Iterator[Commit]:
    """The commits of all logs."""
    logs = []
    for agent, listed in found.segments.items():
        cursor = found.cursors.get(agent) or Cursor(agent)
        source = log_source(backend, {agent: cursor}, {agent: listed})
        logs.append(_read_retained(source, cursor, listed, found.manifest))
    return heapq.merge(*logs, key=stamp_of)


def _unless_collected(backend: Backend, oldest: Manifest, commits: Iterator[Commit]) -> Iterator[Commit]:
    """The commits; reading them may take longer than the grace period."""
    try:
        yield from commits
    except MissingFileError as error:
        now = ManifestStore(backend).oldest()
        if now.number == oldest.number:
            raise CorruptError(f"{error}; `opslog verify` lists all that is missing", error.path) from error
        raise HistoryGoneError(
            f"a compaction collected commits before they were read here; all of them are there from {now.clock} on. To "
            "keep more, compact with keep_history",
            now.clock,
        ) from error


def _read_retained(source: LogSource, cursor: Cursor, listed: list[Segment], newest: Manifest) -> Iterator[Commit]:
    """One log from the cursor on, at least up to its cut in the newest manifest. Each undo has the commits that it took
    back, as far as they are retained."""
    reachable = Reachable(newest.settings.undo_window)
    for _, commit in cursor.read(source, listed):
        reachable.note(commit)
        yield commit
    check_reaches(cursor, newest)


def revisions(backend: Backend, id: str, included: Callable[[Commit], bool]) -> Revisions:
    """The changes of one document, oldest first, as far as they are retained: the oldest may be its record in a
    snapshot.

    Reads all retained logs; leaves out commits that are not `included`.
    """

    def read(oldest: Manifest, logs: Survey) -> Revisions:
        found: dict[Stamp, Record] = {}
        undone: set[Stamp] = set()
        for run in reversed(oldest.runs):
            record = BlockRun(backend, run).get(id)
            if record is not None:
                found = {record.stamp: record}
        for commit in filter(included, _merged(backend, logs)):
            if isinstance(commit, Undo):
                undone.add(Stamp(commit.target, commit.agent))
            for record in commit.records:
                if record.id == id:
                    found[record.stamp] = record
        return Revisions(Revision(found[stamp], stamp in undone) for stamp in sorted(found))

    return survey_history(ManifestStore(backend), read)
