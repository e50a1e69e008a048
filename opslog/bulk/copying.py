"""Copying a store to another storage: a directory to S3, and back. The source may be in use.

The copy has every commit that was acknowledged before it began, and some of those written meanwhile. Data is copied
first and manifests last, so the target is not a store before it has all data. An interrupted copy can be continued: a
file that exists is read back and compared. A file that no copy of the source left is refused: it may be a log of
another store, whose documents the copy would then have.

With its first manifest the target is a store that others may open, and nothing shows any more whether the copy was
interrupted. From then on a copy only adds files: it goes on if nothing that is there differs from the source.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

from opslog.backends import Backend, Entry
from opslog.backends.places import overlap
from opslog.errors import UsageError
from opslog.format.layout import (
    ARCHIVE,
    OPS,
    SNAPSHOTS,
    Kind,
    kind_of,
    manifest_path,
    run_of,
    segment_of,
)
from opslog.format.manifest import Manifest, decode_manifest
from opslog.snapshot.manifests import ManifestStore
from opslog.verify.verify import Report, verify

LOCK = "copy"

_AT_ONCE = 16
# Files from this size on are copied one at a time: each is held in memory.
_LARGE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Copy:
    """The result of a copy.

    :ivar files: how many files the copy has.
    :ivar bytes: their total length.
    :ivar written: how many of them this attempt wrote; an earlier one wrote the others.
    :ivar report: the result of verifying the whole target.
    """

    files: int
    bytes: int
    written: int
    report: Report


def copy(
    source: Backend,
    target: Backend,
    progress: Callable[[int, int], None] | None = None,
    verifying: Callable[[int, int], None] | None = None,
) -> Copy:
    """Copy a store, and verify the copy.

    :param progress: called with (bytes copied, bytes to copy at most).
    :param verifying: called with (bytes of the copy verified, bytes to verify).
    :raises NotFoundError: there is no store at the source.
    :raises UsageError: the target is another store, or has other files that no copy of the source left; or one of the
        two places lies in the other.
    :raises LockedError: another process is copying to the target.
    :raises WriteFailedError: the target refused a write. Call it again to continue the copy.
    """
    check_apart(source.url, target.url)
    with target.lock(LOCK):
        work = _Work(source, target, progress)
        manifests = ManifestStore(source)
        # The manifests are written only when it is certain that every file was copied before it could be collected.
        plan = manifests.read_consistently(manifests.newest, lambda newest: work.copy_data())
        for path, data in plan.items():
            work.put(path, data)
    return Copy(len(work.done), sum(work.done.values()), work.written, verify(target, progress=verifying))


def check_apart(source: str, target: str) -> None:
    """Check that a copy from one of these URLs to the other leaves the source unchanged. Call it before making the
    target.

    :raises UsageError: both lead to the same place, or one of them leads into the other.
    """
    if overlap(source, target):
        raise UsageError(
            f"{target} cannot be a copy of {source}: both lead to one place, or one of them into the other. Copy to a "
            "place of its own"
        )


class _Work:
    """One copy.

    :ivar done: the files that are whole in the target, with their lengths.
    :ivar written: how many of them this copy wrote.
    """

    def __init__(self, source: Backend, target: Backend, progress: Callable[[int, int], None] | None) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._existing = {entry.path: entry.size for entry in target.list("")}
        self._is_store = any(kind_of(path) is Kind.MANIFEST for path in self._existing)
        self.done: dict[str, int] = {}
        self.written = 0
        self._mutex = threading.Lock()

    def copy_data(self) -> dict[str, bytes]:
        """Copy all files except the manifests; return the manifests by path, oldest first.

        :raises MissingFileError: the source collected a file before it was copied.
        """
        numbers = [number for number, _ in ManifestStore(self._source).entries()]
        manifests = {manifest_path(number): self._source.read(manifest_path(number)) for number in numbers}
        decoded = [
            decode_manifest(data, path, number) for number, (path, data) in zip(numbers, manifests.items(), strict=True)
        ]
        self._check_target(manifests, decoded[-1].oldest)
        needed = self._needed(decoded)
        self._delete_others({entry.path for entry in needed})
        self._check_lengths(needed)
        # An earlier attempt that met a collected file may have copied much. Of those files, only logs can have grown.
        entries = [entry for entry in needed if self.done.get(entry.path, -1) < entry.size]
        total, copied = sum(entry.size for entry in needed), sum(self.done.values())
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            small = pool.map(self._copy, (entry for entry in entries if entry.size < _LARGE_BYTES))
            large = (self._copy(entry) for entry in entries if entry.size >= _LARGE_BYTES)
            for size in chain(small, large):
                copied += size
                if self._progress:
                    self._progress(copied, max(total, copied))
        return manifests

    def _delete_others(self, needed: set[str]) -> None:
        """Delete files that an earlier attempt copied and a compaction has replaced since. In a whole store they stay,
        as garbage.

        :raises UsageError: the target has a file that no attempt copied. Nothing was deleted.
        """
        others = [path for path in self._existing if path not in needed and self._is_content(path)]
        if not others:
            return
        # Read after the source was listed. So its cut is behind every commit of a file that was collected before.
        newest = ManifestStore(self._source).newest()
        for path in others:
            if not _was_replaced(path, newest):
                raise UsageError(
                    f"{self._target.url} has {path}, which no copy of {self._source.url} has left there: it is from "
                    "another store or from something else, or was written since. Copy to a place of its own; or delete "
                    "the file, if nobody needs it"
                )
        for path in others:
            self.done.pop(path, None)
        if not self._is_store:
            self._target.delete(others)
            for path in others:
                del self._existing[path]

    def _is_content(self, path: str) -> bool:
        """Whether a file of the target is neither a manifest, which `_check_target` compares, nor one that is there for
        a reason of its own: a lock, a file that a killed copy left unfinished, in a whole store its id and what a
        repair moved aside, or a hidden file, which systems and tools put anywhere."""
        kind = kind_of(path)
        if kind in (Kind.STORE, Kind.REMOVED):
            return not self._is_store
        if kind is Kind.FOREIGN:
            return "/." not in f"/{path}"
        return kind not in (Kind.MANIFEST, Kind.LOCK, Kind.TEMPORARY)

    def _needed(self, manifests: list[Manifest]) -> list[Entry]:
        """Segments, archives, and the runs that manifests name; no unfinished, removed or foreign files."""
        runs = {run.name for manifest in manifests for run in manifest.runs}
        found = [entry for prefix in (OPS, ARCHIVE, SNAPSHOTS) for entry in self._source.list(prefix)]
        return [
            entry
            for entry in found
            if kind_of(entry.path) in (Kind.SEGMENT, Kind.ARCHIVE)
            or ((run := run_of(entry.path)) is not None and run[0] in runs)
        ]

    def _check_target(self, manifests: dict[str, bytes], oldest: int) -> None:
        """Check that the manifests of the target are from the source. The source may have collected older ones since;
        in the target they count as collected, too.

        :param oldest: the oldest manifest that the source retains. It has every commit after its cut, so if the newest
            manifest of the target is not older, whatever was written to the target since differs from the source.
        """
        there = sorted(path for path in self._existing if kind_of(path) is Kind.MANIFEST)
        differing = [path for path in there if self._target.read(path) != manifests.get(path)]
        first = manifest_path(oldest)
        if any(path >= first for path in differing):
            raise UsageError(
                f"{self._target.url} holds another store, or one that was written to since it was copied: copy to "
                "a place of its own"
            )
        if differing and there[-1] < first:
            raise UsageError(
                f"{self._target.url} holds an older copy of this store, whole or interrupted, or another store: the "
                f"source has no {there[-1]} to compare. Copy to a place of its own"
            )

    def _check_lengths(self, needed: list[Entry]) -> None:
        """Check that no log of a target that is a store has an end of its own, before anything is added to it."""
        if not self._is_store:
            return
        for entry in needed:
            size = self._existing.get(entry.path, entry.size)
            if size != entry.size:
                raise UsageError(
                    f"{self._target.url} holds an older copy of this store, whole or interrupted, or one that was "
                    f"written to since: {entry.path} has {size} bytes there and {entry.size} in the source. Copy to a "
                    "place of its own"
                )

    def _copy(self, entry: Entry) -> int:
        # Only the bytes of a log that were listed before the archives: later commits may delete documents that went
        # into an archive which is not copied.
        return self.put(entry.path, self._source.read(entry.path, 0, entry.size))

    def put(self, path: str, data: bytes) -> int:
        """Make sure that the target has a file with these bytes. Returns its length."""
        size = self._existing.get(path)
        if size is None or self._differs(path, size, data):
            if size is not None:
                self._target.delete([path])
            self._target.create(path, data)
            with self._mutex:
                self.written += 1
        self._existing[path] = self.done[path] = len(data)
        return len(data)

    def _differs(self, path: str, size: int, data: bytes) -> bool:
        if size == len(data) and self._target.read(path) == data:
            return False
        if self._is_store:
            raise UsageError(f"{path} of {self._target.url} is not that of the source: copy to a place of its own")
        return True


def _was_replaced(path: str, newest: Manifest) -> bool:
    """Whether a copy of a store with this newest manifest may have left a file that the store no longer has: a segment
    whose commits are all compacted, or a part of a run. Archives are never deleted."""
    if (segment := segment_of(path)) is not None:
        agent, number = segment
        return agent in newest.cut and number < newest.cut[agent].segment
    run = run_of(path)
    return run is not None and run[1] <= newest.number
