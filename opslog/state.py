"""The state of a store in memory: the snapshot, with the winners of the tail over it.

A state starts from a manifest and takes in commits; it answers for every document as the merge of both says. It does no
locking of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from opslog.backends import Backend
from opslog.commits import Commit, Record, Set, decode_record
from opslog.errors import MissingFileError
from opslog.log import Cursor, Segments, all_logs, cost_after, list_log, list_segments, log_source
from opslog.manifest import Manifest, Run
from opslog.manifest_store import ManifestStore
from opslog.merge import Merge
from opslog.runs import LoadedRun

_FORGET_AFTER = 10_000
"""So many commits that others folded, and the state is better loaded again than kept beside the snapshot."""


class State:
    """What one reader knows.

    :ivar manifest: what it started from; `runs`: the snapshot, newest first.
    :ivar visible: the winners of the tail that also win against the snapshot, tombstones included.
    :ivar documents: how many documents there are.
    :ivar cursors: per agent how far its log was read; `clock`, `commits`: the greatest clock and the number of commits,
        folded ones included; `tail_cost`: what it takes to read the logs after the manifest's cut
        (`cost_after`), when it was loaded.
    """

    def __init__(self, manifest: Manifest, runs: list[LoadedRun]) -> None:
        self.manifest = manifest
        self.runs = runs
        self.merge = Merge(manifest.settings.undo_window)
        self.visible: dict[str, Record] = {}
        self.documents = manifest.documents
        self.clock = manifest.clock
        self.commits = manifest.commits
        self.tail_cost = 0
        self.cursors = {agent: Cursor.at(agent, cut) for agent, cut in manifest.cut.items()}

    def apply(self, commit: Commit) -> None:
        """Take in the next commit of its log."""
        self.clock = max(self.clock, commit.clock)
        self.commits += 1
        for record in self.merge.apply(commit):
            self._show(record.id)

    def is_behind(self, newest: Manifest, skip: str | None) -> bool:
        """Whether commits were folded that were not read here, or so much of this state is in the snapshot by now that
        the winners of the old tail had better be forgotten. :param skip: an agent whose log is known anyway."""
        return newest.commits - self.manifest.commits > _FORGET_AFTER or any(
            cut.commits > (self.cursors[agent].commits if agent in self.cursors else 0)
            for agent, cut in newest.cut.items()
            if agent != skip
        )

    def get(self, id: str) -> Set | None:
        """The record of a document, None where there is none."""
        record = self.visible.get(id) or self.stored(id)
        return record if isinstance(record, Set) else None

    def stored(self, id: str) -> Record | None:
        """What the snapshot says of a document: its newest run that knows the id."""
        for run in self.runs:
            line = run.lines.get(id)
            if line is not None:
                return decode_record(line)
        return None

    def contains(self, id: str) -> bool:
        record = self.visible.get(id)
        return self._stored_live(id) if record is None else isinstance(record, Set)

    def records(self, overlay: dict[str, Record] | None = None) -> Iterator[Set]:
        """All documents' records in order of id, as they are at the call, however long the iteration takes.

        :param overlay: records that outrank everything else (those of an open batch).
        """
        top = {**self.visible, **overlay} if overlay else dict(self.visible)
        return self._records(list(self.runs), top)

    def _records(self, runs: list[LoadedRun], top: dict[str, Record]) -> Iterator[Set]:
        for id in sorted(set(top).union(*(run.lines for run in runs))):
            record = top.get(id)
            if record is None:
                record = next(found for run in runs if (found := run.get(id)) is not None)
            if isinstance(record, Set):
                yield record

    def _stored_live(self, id: str) -> bool:
        for run in self.runs:
            if id in run.lines:
                return id not in run.dead
        return False

    def _show(self, id: str) -> None:
        """Decide anew who wins a document, and count."""
        before = self.contains(id)
        winner = self.merge.winner(id)
        if winner is not None and ((stored := self.stored(id)) is None or winner.stamp > stamp_of(stored)):
            self.visible[id] = winner
        else:
            self.visible.pop(id, None)
        self.documents += self.contains(id) - before


def stamp_of(record: Record) -> tuple[int, str]:
    return record.clock, record.agent


class Loader:
    """Builds states from storage. Keeps loaded runs, which are immutable, so that loading again costs what is new."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.manifests = ManifestStore(backend)
        self._runs: dict[str, LoadedRun] = {}

    def load(self) -> State:
        """The newest state.

        :raises NotFoundError: there is no store. :raises CorruptError: something cannot be read.
        """
        return self.load_at(self.manifests.newest, lambda commit: True)

    def load_at(self, choose: Callable[[], Manifest], included: Callable[[Commit], bool]) -> State:
        """An earlier state: the manifest that `choose` picks, with those later commits that are `included`."""
        return self.manifests.read_consistently(choose, lambda manifest: self._load(manifest, included))

    def _load(self, manifest: Manifest, included: Callable[[Commit], bool]) -> State:
        state = State(manifest, self._load_runs(manifest.runs))
        segments = list_segments(self.backend, state.cursors)
        state.tail_cost = cost_after(segments, manifest.cut)
        for commit in read_new(self.backend, state.cursors, segments):
            if included(commit):
                state.apply(commit)
        return state

    def _load_runs(self, runs: Iterable[Run]) -> list[LoadedRun]:
        loaded = {run.name: self._runs.get(run.name) or LoadedRun(self.backend, run) for run in runs}
        self._runs = loaded
        return list(loaded.values())


def read_new(
    backend: Backend, cursors: dict[str, Cursor], segments: Segments, skip: str | None = None
) -> Iterator[Commit]:
    """The commits that the cursors have not seen yet, log by log; moves the cursors, and adds those of new logs.

    :param segments: a listing of all logs made just before; `skip`: an agent whose log is left alone.
    :raises MissingFileError: a log does not go on where its cursor is; load again.
    """
    logs = all_logs(segments, cursors)
    if skip is not None:
        logs.pop(skip, None)
    for agent in logs:
        cursors.setdefault(agent, Cursor(agent))
    source = log_source(backend, cursors, logs)
    for agent, listed in logs.items():
        for _, commit in cursors[agent].read(source, listed):
            yield commit


def read_between(backend: Backend, old: dict[str, Cursor], state: State, skip: str | None) -> tuple[list[Commit], bool]:
    """What a state that was loaded anew took in at once: the commits after the `old` cursors, up to the state's own;
    and whether these are all, or some were folded and collected before they could be read.

    :param skip: an agent whose log is left alone.
    """
    commits: list[Commit] = []
    complete = True
    for agent, end in state.cursors.items():
        if agent != skip:
            found, all_there = _read_between(backend, old.get(agent, Cursor(agent)), end)
            commits += found
            complete = complete and all_there
    return commits, complete


def _read_between(backend: Backend, start: Cursor, end: Cursor) -> tuple[list[Commit], bool]:
    segments = list_log(backend, start.agent)
    seen = start.commits
    with suppress(MissingFileError):
        return [commit for place, commit in start.read(backend, segments) if place.commits < end.commits], True
    # Some of it was collected: take what is left, and count from the end.
    retained: list[Commit] = []
    with suppress(MissingFileError):
        cursor = Cursor(start.agent, segments[0].number if segments else end.segment)
        retained = [commit for place, commit in cursor.read(backend, segments) if place.place < end.place]
    collected = end.commits - len(retained)
    return retained[max(0, seen - collected) :], collected <= seen
