"""Verifying a store: reading everything, and reporting each violation of the format's rules, with file and byte
offset.

It works beside writers and compactions, and takes no lock. A file that disappears because a newer manifest replaced it
is no problem. Garbage collection deletes a manifest before the files that it names, so an absent file is missing
exactly if a manifest that needs it still exists.

Each file is read once, and the snapshot of the newest manifest once more, to count its documents. Memory holds one
chunk of a file, one line, and the names of all files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from opslog.backends import Backend
from opslog.environment import REAL, Environment
from opslog.errors import CorruptError, MissingFileError, RetryError
from opslog.format.layout import (
    ARCHIVE,
    MANIFESTS,
    STORE,
    Kind,
    archive_of,
    archive_path,
    index_path,
    kind_of,
    manifest_path,
)
from opslog.format.manifest import Manifest, Part, Run, decode_manifest
from opslog.log.reader import list_log, list_segments
from opslog.snapshot.identity import decode_identity
from opslog.snapshot.manifests import ManifestStore, first_retained
from opslog.snapshot.runs import BlockRun, merge_rows
from opslog.verify.files import FileCheck, Problem, Reader, Report
from opslog.verify.garbage import find_garbage_files
from opslog.verify.logs import LogCheck
from opslog.verify.repair import repair_all

__all__ = ["Problem", "Report", "verify"]

# How often a part of the check starts again because of compactions. Each time less remains to be checked.
_PASSES_MAX = 1000

# How often manifests are listed again because one was gone when it was read.
_LISTINGS_MAX = 10


def verify(
    backend: Backend,
    *,
    repair: bool = False,
    progress: Callable[[int, int], None] | None = None,
    environment: Environment = REAL,
) -> Report:
    """Check everything in a store.

    :param repair: make repairs that lose nothing: rebuild block indexes from whole parts, and move files that nothing
        needs into ``removed/``. `Report.repaired` lists these actions, and `Report.problems` has the results of
        a second check. Logs, manifests and the parts that they name are never touched; if a manifest cannot be read
        or is away, no part is.
    :param progress: called with (bytes read, bytes to read), from the start again for the check after a repair.
    :param environment: the source of the name of the folder in ``removed/``.
    :raises NotFoundError: there is no store.
    :raises FormatVersionError: a newer opslog wrote it.
    :raises LockedError: a compaction is running, and there is something to repair.
    """
    check = _Verification(backend, progress)
    check.run()
    if not (repair and (check.indexes or check.movable)):
        return check.report
    repaired = repair_all(backend, check.indexes, check.movable, environment.nonce())
    check = _Verification(backend, progress)
    check.run()
    check.report.repaired = repaired
    return check.report


class _Verification:
    """One check of a whole store.

    :ivar indexes: the whole parts that have no usable index.
    :ivar movable: files that nobody can need.
    """

    def __init__(self, backend: Backend, progress: Callable[[int, int], None] | None) -> None:
        self.report = Report()
        self.indexes: list[Part] = []
        self.movable: list[str] = []
        self._backend = backend
        total = sum(entry.size for entry in backend.list("") if kind_of(entry.path) is not Kind.REMOVED)
        self._reader = Reader(backend, total, progress)
        self._known: dict[int, Manifest] = {}
        self._unreadable: set[int] = set()
        self._retained: list[Manifest] = []
        # The paths of manifests that may be retained, and cannot be read or are not there. What they name is unknown.
        self._unread: list[str] = []
        # For each part the ids that are from the shared log, according to a manifest.
        self._shared: dict[str, bytes] = {}
        # The periods of the archives to which documents went, according to logs and parts.
        self._periods: set[str] = set()

    def run(self) -> None:
        unfinished = self._unfinished_archives()
        self._check_identity()
        self._read_manifests()
        if not self._known and not self._unreadable:
            self._report_no_manifest()
        self._check_runs()
        self._check_shared()
        self._check_documents()
        self._check_logs()
        self._check_archives(unfinished)
        self._check_garbage()
        self._check_sequence()
        self.report.bytes = self._reader.bytes

    # -- manifests

    def _read_manifests(self) -> list[int]:
        """Read new manifests, and note which are retained, according to the newest."""
        numbers: list[int] = []
        for _ in range(_LISTINGS_MAX):
            numbers = [number for number, _ in ManifestStore(self._backend).entries()]
            new = [number for number in numbers if number not in self._known and number not in self._unreadable]
            for number in new:
                self._read_manifest(number)
            if all(number in self._known or number in self._unreadable for number in new):
                break  # otherwise one was collected since it was listed, or is there and cannot be found
        newest = self._known.get(numbers[-1]) if numbers else None
        oldest = newest.oldest if newest is not None else 0
        first = first_retained(numbers, oldest)
        self._retained = [self._known[number] for number in numbers[first:] if number in self._known]
        # Collections delete only what is older than the oldest. Who removes another one may put it back.
        between = range(oldest or numbers[0], numbers[-1] + 1) if numbers else ()
        self._unread = [manifest_path(number) for number in between if number not in self._known]
        return numbers

    def _read_manifest(self, number: int) -> None:
        path = manifest_path(number)
        try:
            self._known[number] = decode_manifest(self._reader.read(path), path, number)
        except MissingFileError:
            return  # collected since it was listed
        except CorruptError as error:
            self._unreadable.add(number)
            self.report.error(path, 0, f"{str(error).removeprefix(f'{path}: ')}. Restore it from a copy")
            return
        self.report.manifests += 1

    def _report_no_manifest(self) -> None:
        """Report lost manifests; if there is no store at all, that is the caller's error."""
        try:
            ManifestStore(self._backend).newest()
        except CorruptError as error:
            self.report.error(MANIFESTS, None, str(error))

    def _check_shared(self) -> None:
        """Check each manifest's list of ids from the shared log. If an id is missing there, writers take it for
        unguarded."""
        for manifest in self._retained:
            for part in (part for run in manifest.runs for part in run.parts):
                found = self._shared.get(part.path)
                if found is not None and isinstance(part.shared, bytes) and part.shared != found:
                    self.report.error(
                        manifest_path(manifest.number),
                        None,
                        f"its list of the ids from the shared log in {part.path} is wrong ({len(part.shared) // 4} "
                        f"hashes, and there are {len(found) // 4}): plain sets of these documents can take back what a "
                        "transaction has decided. Restore it from a copy, or write anything and compact with full=True",
                    )

    def _check_sequence(self) -> None:
        for older, newer in pairwise(self._retained):
            for fault in _regressions(older, newer):
                self.report.error(manifest_path(newer.number), None, fault)
        numbers = self._read_manifests()
        again = set(self._read_manifests())
        if not self._retained:
            return
        first, newest = self._retained[0].number, self._retained[-1]
        if first - 1 >= newest.oldest and {number for number in numbers if number < first} & again:
            self.report.note(
                manifest_path(first - 1),
                None,
                "it is not there, though older ones are and nothing collected it: it was removed by hand. The older "
                "ones count as collected: the next garbage collection deletes them",
            )
        for number in numbers:
            if number < min(first, newest.oldest) and number in again:
                self.report.note(
                    manifest_path(number),
                    None,
                    "it counts as collected: a process was killed before it deleted it, or a delayed write brought it "
                    "back. The next garbage collection deletes it",
                )

    # -- the snapshot

    def _check_runs(self) -> None:
        checked: set[str] = set()
        while True:
            runs = {run.name: (run, manifest) for manifest in reversed(self._retained) for run in manifest.runs}
            unchecked = [(run, manifest) for name, (run, manifest) in runs.items() if name not in checked]
            if not unchecked:
                return
            for run, manifest in unchecked:
                self._check_run(run, manifest)
                checked.add(run.name)

    def _check_run(self, run: Run, manifest: Manifest) -> None:
        after: str | None = None
        for part in run.parts:
            check = FileCheck(self._reader, part.path)
            check.check_part(part, manifest, after)
            if check.missing:
                self._read_manifests()
                if not self._is_needed(run):
                    return
                for path in check.missing:
                    check.report.error(path, None, _missing(check.rebuildable))
            if check.rebuildable:
                self.indexes.append(part)
            if check.shared is not None:
                self._shared[part.path] = check.shared
            self._periods |= check.periods
            self.report.add(check.report)
            self.report.parts += 1
            after = part.last
        self.report.runs += 1

    def _is_needed(self, run: Run) -> bool:
        return any(run.name == other.name for manifest in self._retained for other in manifest.runs)

    def _check_documents(self) -> None:
        """Count the documents of the newest snapshot, unless its runs have errors."""
        for _ in range(_PASSES_MAX):
            if not self._retained or not self.report.ok:
                return
            newest = self._retained[-1]
            try:
                rows = merge_rows(BlockRun(self._backend, run).rows() for run in newest.runs)
                documents = sum(row.deleted is None for row in rows)
            except MissingFileError:
                self._read_manifests()
                self._check_runs()
                continue
            if documents != newest.documents:
                self.report.error(
                    manifest_path(newest.number),
                    None,
                    f"says that its snapshot shows {newest.documents} documents; it shows {documents}",
                )
            return
        raise _too_fast(self._backend)

    # -- logs

    def _check_logs(self) -> None:
        agents = set(list_segments(self._backend)).union(
            *(manifest.cut for manifest in self._retained), *(manifest.log_ends for manifest in self._retained)
        )
        for agent in sorted(agents):
            self._check_log(agent)

    def _check_log(self, agent: str) -> None:
        missing: list[str] = []
        for _ in range(_PASSES_MAX):
            retained = self._retained
            segments = list_log(self._backend, agent)
            if not segments and not any(agent in manifest.cut or agent in manifest.log_ends for manifest in retained):
                return
            check = LogCheck(self._reader, agent, segments, retained)
            check.run()
            self._periods |= check.periods
            # The first time may be a listing made while files came and went; a second time under the same manifests
            # means lost.
            self._read_manifests()
            if not check.missing or (check.missing == missing and retained == self._retained):
                break
            missing = check.missing
        else:
            raise _too_fast(self._backend)
        for path in check.missing:
            check.report.error(path, None, _missing(False))
        self.report.add(check.report)

    # -- archives

    def _archives(self) -> dict[str, set[str]]:
        """For each archive, by the path of its data, which of "jsonl" and "index" exist."""
        found: dict[str, set[str]] = {}
        for entry in self._backend.list(ARCHIVE):
            named = archive_of(entry.path)
            if named:
                found.setdefault(archive_path(named[0], named[1]), set()).add(named[2])
        return found

    def _unfinished_archives(self) -> set[str]:
        return {path for path, kinds in self._archives().items() if "index" not in kinds}

    def _check_archives(self, unfinished: set[str]) -> None:
        """:param unfinished: archives that had no index when the check began."""
        archives = self._archives()
        finished = {_period(path) for path, kinds in archives.items() if "index" in kinds}
        for path, kinds in sorted(archives.items()):
            check = FileCheck(self._reader, path)
            check.check_archive()
            if "index" in kinds:
                for missing in check.missing:
                    check.report.error(missing, None, _missing(False))
            elif (period := _period(path)) in self._periods - finished:
                # The deletes are written after the index.
                check.report.error(
                    index_path(path),
                    None,
                    f"it is not there, nor is the index of another archive of the period {period!r}, and documents "
                    "were moved to this period: something other than opslog removed it. Restore it from a copy",
                )
            elif path in unfinished:
                check.report.note(
                    path,
                    None,
                    "it has no index, so nobody reads it. If it is being written, or a crash ended that, its documents "
                    "are still in the store; otherwise the index was lost: restore that from a copy",
                )
            self.report.add(check.report)
            self.report.archives += "index" in kinds

    # -- everything else

    def _check_identity(self) -> None:
        try:
            decode_identity(self._reader.read(STORE))
        except MissingFileError:
            return  # it is made when it is needed
        except CorruptError as error:
            message = str(error).removeprefix(f"{STORE}: ")
            self.report.error(STORE, 0, f"{message}. Restore it from a copy; no document is affected")

    def _check_garbage(self) -> None:
        entries = self._backend.list("")
        self._read_manifests()
        garbage = find_garbage_files(entries, self._retained, self._unread, self._backend.now())
        still_there = {entry.path for entry in self._backend.list("")} if garbage else set()
        for file in garbage:
            if file.path in still_there:
                advice = ". `opslog verify --repair` moves it aside" if file.movable else ""
                self.report.note(file.path, None, f"{file.reason}{advice}")
                self.movable += [file.path] if file.movable else []


def _period(path: str) -> str:
    """The period of an archive's data."""
    return path.split("/")[1]


def _missing(rebuildable: bool) -> str:
    if rebuildable:
        return "it is not there; the data beside it is whole: `opslog verify --repair` rebuilds it"
    return "it is not there, and the store needs it: something other than opslog removed it. Restore it from a copy"


def _too_fast(backend: Backend) -> RetryError:
    return RetryError(f"{backend.url}: compactions follow each other faster than the store can be checked; try again")


def _regressions(older: Manifest, newer: Manifest) -> Iterator[str]:
    """The values that went back from one manifest to a later one."""
    if newer.clock < older.clock:
        yield f"its clock is {newer.clock}, and that of manifest {older.number} was {older.clock}"
    if newer.ts < older.ts:
        yield f"its ts is {newer.ts!r}, and that of manifest {older.number} was {older.ts!r}"
    for agent, cut in older.cut.items():
        now = newer.cut.get(agent)
        if now is None:
            yield f"has no cut of {agent!r}, and manifest {older.number} had one"
        elif now.position < cut.position or now.commits < cut.commits:
            yield f"its cut of {agent!r} is at {now}, and that of manifest {older.number} was at {cut}"
    if newer.settings.undo_window != older.settings.undo_window:
        yield f"has another undo window than manifest {older.number}"
