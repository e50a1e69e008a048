"""A survey: the state of a store at one moment. Everybody who reads a store's logs begins with one.

The newest manifest says what is compacted, up to a cut in each log. A listing made after it shows the segments behind
the cut. Neither is of use alone: while the logs are listed and read, a compaction may publish another manifest and
collect segments that this one needs. It collects only after it has published. So the result of a read is accepted if
the manifest is still the newest afterwards; otherwise all of it is read again (`ManifestStore.read_consistently`). A
reader of the commits behind the oldest retained manifest accepts the result if that manifest is still the oldest,
since nothing behind its cut is collected before.

A refresh of a store needs no such second listing: a log that does not go on at its cursor raises an error, and
`opslog.replica.refresh` decides what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import TypeVar

import msgspec

from opslog.backends import Backend, Entry
from opslog.chunks import batched
from opslog.errors import MissingFileError
from opslog.format.commits import Commit
from opslog.format.layout import TRANSACTIONS, log_prefix, segment_path
from opslog.format.manifest import START, Cut, Manifest
from opslog.log.reader import (
    Cursor,
    LogSource,
    Segments,
    all_logs,
    bytes_after,
    cost_after,
    list_segments,
    log_source,
    segments_in,
)
from opslog.snapshot.manifests import ManifestStore

T = TypeVar("T")

# How many commits are handed over at once: applying them takes a fraction of a millisecond, for which readers wait.
_COMMITS = 64


class Survey(msgspec.Struct, frozen=True):
    """The state of a store.

    :ivar manifest: says what is compacted; the newest, unless another one was asked for.
    :ivar cursors: the position in each log from which to read on: the manifest's cut, unless the reader began
        elsewhere. Reading may move them.
    :ivar segments: the listing. A log that has a cursor but no segments has an empty list.
    """

    manifest: Manifest
    cursors: dict[str, Cursor]
    segments: Segments

    @property
    def listed(self) -> frozenset[str]:
        """The agents whose logs have segments."""
        return frozenset(agent for agent, listed in self.segments.items() if listed)

    @property
    def log_bytes(self) -> int:
        """How many bytes of logs lie behind the cursors."""
        return bytes_after(self.segments, self.cursors)

    @property
    def log_cost(self) -> int:
        """The cost of reading them; see `cost_after`."""
        return cost_after(self.segments, self.cursors)

    @property
    def snapshot_bytes(self) -> int:
        return sum(run.bytes for run in self.manifest.runs)


def survey(
    manifests: ManifestStore,
    read: Callable[[Survey], T],
    *,
    choose: Callable[[], Manifest] | None = None,
    begin: Callable[[Manifest], dict[str, Cursor]] | None = None,
) -> T:
    """The result of `read` on a survey of a store, once that is accepted. Costs two listings of the manifests and one
    of the logs, and as many again whenever a compaction is published meanwhile.

    :param read: may raise `MissingFileError`, for files that were collected before they were read.
    :param choose: picks a manifest; None: the newest.
    :param begin: the position in each log from which to read on; None: the cut.
    :raises NotFoundError: there is no store.
    :raises CorruptError: a file that the manifest needs is missing for good.
    :raises RetryError: compactions follow each other faster than the store can be read.
    """
    return manifests.read_consistently(
        choose or manifests.newest,
        lambda manifest: read(list_logs(manifests.backend, manifest, (begin or at_cut)(manifest))),
    )


def list_logs(
    backend: Backend,
    manifest: Manifest,
    cursors: dict[str, Cursor],
    known: Iterable[str] | None = None,
    listed: Iterable[Entry] | None = None,
) -> Survey:
    """A survey by one listing, of a manifest that was just found to be the newest. It is not yet accepted.

    :param known: logs that must be in it; None: all with a cursor.
    :param listed: the listing, if it was made together with that of the manifests.
    """
    segments = list_segments(backend, cursors) if listed is None else segments_in(listed)
    return Survey(manifest, cursors, all_logs(segments, cursors if known is None else known))


def shared_log_first(backend: Backend, found: Survey, own: str) -> Survey:
    """The survey with the shared log in front of the others, and listed again if one of these has anything to read.

    Whoever writes plain commits needs this. A plain commit outranks everything that its writer has read, and it must
    not outrank a transaction that its writer has not read. But a listing takes a while: a log that it reaches late may
    have a commit that rests on a transaction made after the shared log was listed. A second listing of the shared log
    shows that transaction, because it was made before the commit. The shared log has to be read first, because the
    reading may fail or end early, and because other threads write meanwhile.

    :param own: the agent whose log needs no reading; empty: all logs need it.
    """
    segments = dict(found.segments)
    if unread(found.cursors, {agent: listed for agent, listed in segments.items() if agent not in (own, TRANSACTIONS)}):
        cursor = found.cursors.get(TRANSACTIONS) or Cursor(TRANSACTIONS)
        entries = backend.list(log_prefix(TRANSACTIONS), after=segment_path(TRANSACTIONS, cursor.segment - 1))
        listed = segments_in(entries).get(TRANSACTIONS, [])
        if listed or TRANSACTIONS in segments:
            segments[TRANSACTIONS] = listed
    if TRANSACTIONS in segments:
        segments = {TRANSACTIONS: segments[TRANSACTIONS]} | segments
    return msgspec.structs.replace(found, segments=segments)


def at_cut(manifest: Manifest, cursors: dict[str, Cursor] | None = None) -> dict[str, Cursor]:
    """Cursors at a manifest's cut; given cursors are kept if they are farther on in their logs. (Segments before the
    cut are no longer read: they may be collected, even if they were read.) They know how far the logs must go on.

    :param cursors: are moved, and returned.
    """
    moved: dict[str, Cursor] = {} if cursors is None else cursors
    for agent, cut in manifest.cut.items():
        cursor = moved.get(agent)
        if cursor is None or cursor.commits < cut.commits:
            moved[agent] = Cursor.at(agent, cut)
        else:
            moved[agent] = cursor.moved_to(cut)
    for agent, end in manifest.log_ends.items():
        cursor = moved.setdefault(agent, Cursor(agent))
        cursor.end = max(cursor.end, end.position)
    return moved


def survey_history(manifests: ManifestStore, read: Callable[[Manifest, Survey], T]) -> T:
    """The result of `read` on the oldest retained manifest and everything behind its cut, in whole segments, once that
    is accepted. Costs and errors as in `survey`, and two more reads of a manifest."""
    return manifests.read_consistently(
        manifests.oldest,
        lambda oldest: read(oldest, retained(manifests.backend, oldest, manifests.newest(), whole_segments=True)),
    )


def retained(backend: Backend, oldest: Manifest, newest: Manifest, *, whole_segments: bool) -> Survey:
    """All existing commits behind the cut of the oldest retained manifest.

    :param whole_segments: also those before the cut in the same segments. Segments before these are no longer part of
        a log, since a delayed write may have used their numbers again.
    :returns: with the newest manifest, up to whose cuts each log must reach (`check_reaches`).
    """
    cursors = {}
    for agent in {**newest.cut, **newest.log_ends}:
        cut = oldest.cut.get(agent, START)
        cursors[agent] = Cursor.at(agent, Cut(cut.segment, 0, 0, cut.there) if whole_segments else cut)
        if agent in newest.log_ends:
            cursors[agent].end = newest.log_ends[agent].position
    return list_logs(backend, newest, cursors)


def check_reaches(cursor: Cursor, newest: Manifest) -> None:
    """:raises MissingFileError: a log ends at this cursor, before its cut in the newest manifest."""
    cut = newest.cut.get(cursor.agent, START)
    if not cursor.has_reached(cut):
        path = segment_path(cursor.agent, cut.segment)
        raise MissingFileError(
            f"{path} does not reach up to byte {cut.offset}, which manifest {newest.number} knows", path
        )


def unread_authors(backend: Backend, cursors: Mapping[str, Cursor]) -> dict[str, int]:
    """The authors of commits that a new listing shows behind these cursors. Each has a clock that none of those commits
    is below. None in a store without transactions, where no author has commits in two logs.

    :raises MissingFileError: a segment was collected meanwhile.
    """
    found: dict[str, int] = {}
    segments = list_segments(backend, cursors)
    if TRANSACTIONS not in cursors and TRANSACTIONS not in segments:
        return found
    for agent, listed in unread(cursors, segments).items():
        if agent != TRANSACTIONS:
            found[agent] = 0
            continue
        cursor = copy(cursors[agent]) if agent in cursors else Cursor(agent)
        for _, commit in cursor.read(backend, listed):
            found[commit.author] = min(commit.clock, found.get(commit.author, commit.clock))
    return found


def unread(cursors: Mapping[str, Cursor], segments: Segments) -> Segments:
    """The logs of a listing that do not end at their cursors."""
    return {
        agent: listed
        for agent, listed in segments.items()
        if not (cursors.get(agent) or Cursor(agent)).is_at_end(listed)
    }


def read_on(
    backend: Backend, cursors: Mapping[str, Cursor], segments: Segments, check: Callable[[], None] | None = None
) -> Iterator[tuple[Sequence[Commit], Cursor]]:
    """The commits after the cursors, log by log: a few consecutive commits of a log, with the cursor after them. (No
    commits, if the cursor only moves.) The given cursors stay unchanged.

    :param segments: the logs to read, of a listing made just before (`unread`).
    :param check: called whenever something was read and before it is used; an error that it raises ends the reading.
    :raises MissingFileError: a log does not go on where its cursor is; load again.
    """
    starts = {agent: msgspec.structs.replace(cursors.get(agent) or Cursor(agent)) for agent in segments}
    source = log_source(backend, starts, segments)
    if check is not None:
        source = _Checked(source, check)
    for agent, listed in segments.items():
        cursor = starts[agent]
        for some in batched((commit for _, commit in cursor.read(source, listed)), _COMMITS):
            yield some, msgspec.structs.replace(cursor)
        yield (), cursor


class _Checked:
    def __init__(self, source: LogSource, check: Callable[[], None]) -> None:
        self._source = source
        self._check = check
        self.segments_grow = source.segments_grow

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        data = self._source.read(path, start, stop)
        self._check()
        return data
