"""A survey: what a store consists of at one moment. Everybody who reads a store's logs begins with one.

The newest manifest says what is compacted, up to a cut in each log; a listing made after it says what lies behind.
Neither is of use alone: while the logs are listed and read, a compaction may publish another manifest and collect what
this one needs. It collects only after it has published. So what was read is accepted if the manifest is still the
newest afterwards; otherwise all of it is read again (`ManifestStore.read_consistently`). Whoever reads behind the
oldest retained manifest accepts it if that is still the oldest: nothing behind its cut is collected before.

A store that is refreshed needs no such second listing: where a log does not go on at its cursor it says so, and
`opslog.replica.refresh` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from opslog.backends import Backend, Entry
from opslog.chunks import batched
from opslog.errors import MissingFileError
from opslog.format.commits import Commit
from opslog.format.layout import segment_path
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

# How many commits are read on at once: to take them in is a fraction of a millisecond, for which readers wait.
_COMMITS = 64


class Survey(msgspec.Struct, frozen=True):
    """What a store consists of.

    :ivar manifest: what is compacted; the newest, unless another one was asked for.
    :ivar cursors: where to read on in each log: at the manifest's cut, unless the reader began elsewhere. Reading may
        move them.
    :ivar segments: the listing. A log of which a cursor is known and no segment is there has an empty list.
    """

    manifest: Manifest
    cursors: dict[str, Cursor]
    segments: Segments

    @property
    def listed(self) -> frozenset[str]:
        """The agents of whose logs something is there."""
        return frozenset(agent for agent, listed in self.segments.items() if listed)

    @property
    def log_bytes(self) -> int:
        """How many bytes of logs lie behind the cursors."""
        return bytes_after(self.segments, self.cursors)

    @property
    def log_cost(self) -> int:
        """What it takes to read them; see `cost_after`."""
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
    """What `read` makes of a survey of a store, once that is accepted. Costs two listings of the manifests and one of
    the logs, and as many again whenever a compaction is published meanwhile.

    :param read: may raise `MissingFileError`, for what was collected before it was read.
    :param choose: picks a manifest; None: the newest.
    :param begin: where to read on in each log; None: at the cut.
    :raises NotFoundError: there is no store.
    :raises CorruptError: what the manifest needs is missing for good.
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
    """A survey by one listing, of a manifest that was just found to be the newest. Not accepted yet.

    :param known: logs that must be in it; None: all with a cursor.
    :param listed: the listing, where it was made together with that of the manifests.
    """
    segments = list_segments(backend, cursors) if listed is None else segments_in(listed)
    return Survey(manifest, cursors, all_logs(segments, cursors if known is None else known))


def at_cut(manifest: Manifest, cursors: dict[str, Cursor] | None = None) -> dict[str, Cursor]:
    """Cursors at a manifest's cut; those that are given, where they are farther on in their logs. (What lies before the
    cut is not asked for any more: it may be collected, though it was read.) They know how far the logs must go on.

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
    """What `read` makes of the oldest retained manifest and of everything behind its cut, in whole segments, once that
    is accepted. Costs and errors as of `survey`, and two more reads of a manifest."""
    return manifests.read_consistently(
        manifests.oldest,
        lambda oldest: read(oldest, retained(manifests.backend, oldest, manifests.newest(), whole_segments=True)),
    )


def retained(backend: Backend, oldest: Manifest, newest: Manifest, *, whole_segments: bool) -> Survey:
    """All commits that are there behind the cut of the oldest retained manifest.

    :param whole_segments: and those before it in the segments in which it lies. Segments before these are no part of a
        log any more, as a delayed write may have used their numbers again.
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


def unread(cursors: Mapping[str, Cursor], segments: Segments) -> Segments:
    """Of a listing the logs that do not end where their cursors are."""
    return {
        agent: listed
        for agent, listed in segments.items()
        if not (cursors.get(agent) or Cursor(agent)).is_at_end(listed)
    }


def read_on(
    backend: Backend, cursors: Mapping[str, Cursor], segments: Segments, check: Callable[[], None] | None = None
) -> Iterator[tuple[Sequence[Commit], Cursor]]:
    """The commits that the cursors have not seen yet, log by log: some of a log in a row, with the cursor after them.
    (None of them, where it only moves.) The cursors that are given stay where they are.

    :param segments: the logs to read, of a listing made just before (`unread`).
    :param check: called whenever something was read and before anything comes of it; what it raises ends the reading.
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
