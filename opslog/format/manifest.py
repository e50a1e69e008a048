"""The manifest: the small numbered object that names the live files of the snapshot. Pure.

The manifest with the greatest number counts. It names the runs of the snapshot, newest first, and the cut: for each
agent, the position of the first commit that is not in the snapshot. Manifest 1 is created with the store and has an
empty snapshot.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec

from opslog.errors import CorruptError, FormatVersionError, InvalidNameError
from opslog.format.checksum import check, decode_body, encode_checked
from opslog.format.commits import CLOCK_MAX
from opslog.format.hashes import hashes_fault
from opslog.format.layout import check_name, part_path, part_paths, run_of
from opslog.format.prepared import prepare

# The format version that this program writes, and the newest that it reads.
FORMAT = 1


class Cut(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A position in a log, at a commit boundary.

    :ivar segment: the number of the segment, from 1.
    :ivar offset: bytes from its start.
    :ivar commits: how many commits of this log lie before this position.
    :ivar there: for a position at byte 0, whether the segment exists. If not, the log's next commit will create it.
    """

    segment: int
    offset: int
    commits: int
    there: bool = False

    @property
    def position(self) -> tuple[int, int]:
        return self.segment, self.offset

    @property
    def last_segment(self) -> int:
        """The last segment that begins before this position."""
        return self.segment if self.offset else self.segment - 1

    @property
    def needed_segment(self) -> int:
        """The last segment that must exist because of this cut."""
        return self.segment if self.there else self.last_segment


# The beginning of every log.
START = Cut(1, 0, 0)


# Defined outside of the class, where `bytes` would be the field.
_SharedHashes = bytes | msgspec.UnsetType | None


class Part(msgspec.Struct, frozen=True, gc=False):
    """One immutable file of a run: its records are those from id `first` to id `last`.

    :ivar path: relative to the root.
    :ivar bytes: its length.
    :ivar sha256: the checksum of the whole file.
    :ivar records: how many lines it has.
    :ivar live: how many of them are sets.
    :ivar shared: the hashes (`opslog.format.hashes`) of the ids whose record is from the shared log; None: there are
        too many to list; unset: an older program, which does not list them, wrote it.
    """

    path: str
    records: int
    live: int
    bytes: int
    first: str
    last: str
    sha256: str
    shared: _SharedHashes = msgspec.UNSET


class Run(msgspec.Struct, frozen=True):
    """Winners sorted by id. An id in a newer run outranks the same id in all older runs.

    :ivar name: the folder of its parts under ``snapshots/``.
    """

    name: str
    parts: list[Part]

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)

    @property
    def live(self) -> int:
        return sum(part.live for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The settings that all agents of a store share. Set when the store is created; `keep_history` may change later.

    :ivar undo_window: how many of a log's newest commits can be undone, and are compacted only if the log is sealed.
    :ivar grace_seconds: how long files stay after the manifest that needed them was superseded.
    :ivar tombstone_ttl_seconds: how long tombstones stay in snapshots.
    :ivar undo_ttl_seconds: how long an agent is idle before its undo window may be sealed.
    :ivar keep_history_seconds: how long files stay for `as_of`; None: for ever.
    """

    undo_window: int = 32
    grace_seconds: float = 600.0
    tombstone_ttl_seconds: float = 7 * 86400.0
    undo_ttl_seconds: float = 86400.0
    keep_history_seconds: float | None = 0.0

    @property
    def fault(self) -> str | None:
        """The setting that is invalid, None if all are valid."""
        # Exact types: a manifest with another one could not be read again.
        if type(self.undo_window) is not int or not 0 <= self.undo_window <= _WINDOW_MAX:
            return f"undo_window is a number of commits from 0 to {_WINDOW_MAX}, not {self.undo_window!r:.80}"
        for name in ("grace_seconds", "tombstone_ttl_seconds", "undo_ttl_seconds", "keep_history_seconds"):
            seconds = getattr(self, name)
            if seconds is None and name == "keep_history_seconds":
                continue
            if type(seconds) not in (int, float) or not 0 <= seconds <= sys.float_info.max:
                return f"{name} is a number of seconds from 0 on, not {seconds!r:.80}"
            if float(seconds) != seconds:  # another number would be read again
                return f"{name} is a number of seconds that a float can hold exactly, not {seconds!r:.80}"
        return None


# The largest window: its commits of each log are in memory twice.
_WINDOW_MAX = 1_000_000


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's docstring.

    :ivar created: when it was made, by the wall clock of the process that made it.
    :ivar clock: no commit that was read for it has a greater clock. All compacted commits, and all applied undos, are
        at or below this clock. So the state at any clock from here on can be rebuilt from this manifest.
    :ivar ts: likewise the greatest `ts` among all commits that were read; empty if there were none.
    :ivar documents: how many documents the snapshot has.
    :ivar oldest: the number of the oldest manifest that was retained when this one was made. Those below it count as
        collected, even if one still exists, or a delayed write brings one back. 0: an older program made it.
    :ivar folded: when it was made, by the storage's clock, in the form of `ts`; empty for manifest 1, and if an older
        program made it.
    :ivar authors: see `settled_by`.
    :ivar logs: see `log_ends`.
    """

    format: int = FORMAT
    number: int
    created: str
    clock: int = 0
    ts: str = ""
    documents: int = 0
    cut: dict[str, Cut] = {}
    runs: list[Run] = []
    settings: Settings = Settings()
    oldest: int = 0
    folded: str = ""
    authors: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    logs: dict[str, Cut] | msgspec.UnsetType = msgspec.UNSET

    @property
    def log_ends(self) -> dict[str, Cut]:
        """For each log that went on after the cut, its end when this manifest was made. A log only grows, so a log that
        does not reach that position was removed or cut short."""
        return {} if isinstance(self.logs, msgspec.UnsetType) else self.logs

    @property
    def settled_by(self) -> dict[str, int]:
        """For each agent that has a commit after the cut, in its own log or in the shared log, that is older than its
        newest compacted one: the clock of the newest compacted one. Otherwise, an undo would take back an older commit
        in its place."""
        return {} if isinstance(self.authors, msgspec.UnsetType) else self.authors

    @property
    def complete_from(self) -> str:
        """The time from which on the state at any time can be rebuilt from this manifest. All commits that it
        compacted, and all undos that it applied, were written before it was made, even if a wrong clock says
        otherwise."""
        return min(self.ts, self.folded) if self.folded else self.ts

    @property
    def commits(self) -> int:
        """How many commits are compacted."""
        return sum(cut.commits for cut in self.cut.values())


class _Format(msgspec.Struct):
    format: int


prepare(Manifest, _Format)


def encode_manifest(manifest: Manifest) -> bytes:
    return encode_checked(manifest)


def decode_manifest(data: bytes, path: str, number: int) -> Manifest:
    """The manifest in the file for `number`.

    :raises FormatVersionError: a newer opslog wrote it.
    :raises CorruptError: it is damaged, or has another number.
    """
    check(data, path)
    try:
        manifest = decode_body(data, Manifest, path)
    except CorruptError:
        _check_format(decode_body(data, _Format, path).format, path)  # a newer format may have another form
        raise
    _check_format(manifest.format, path)
    if manifest.number != number:
        raise CorruptError(f"{path}: holds manifest number {manifest.number}: the file was renamed or copied", path, 0)
    for fault in _faults(manifest):
        raise CorruptError(f"{path}: the checksum is right, but {fault}: opslog did not write it", path, 0)
    return manifest


def _check_format(format: int, path: str) -> None:
    if format > FORMAT:
        raise FormatVersionError(
            f"{path}: this store has format version {format}, and this program reads versions up to {FORMAT}: "
            "upgrade opslog",
            format,
        )


def _faults(manifest: Manifest) -> Iterator[str]:
    """The problems of a manifest's contents. Another program may have written it, so its paths and names must lead only
    to parts and logs of this store."""
    if not 0 <= manifest.clock <= CLOCK_MAX:
        yield f"its clock is {manifest.clock}"
    if not 0 <= manifest.oldest <= manifest.number:
        yield f"it says that the oldest retained manifest is {manifest.oldest}"
    if not 0 <= manifest.documents <= sum(part.live for run in manifest.runs for part in run.parts):
        yield f"it says that its snapshot shows {manifest.documents} documents"
    if len({run.name for run in manifest.runs}) < len(manifest.runs):
        yield "it names a run twice"
    for run in manifest.runs:
        yield from _run_faults(run, manifest.number)
    yield from _position_faults(manifest.cut, "cut")
    yield from _position_faults(manifest.log_ends, "end")
    for author, clock in manifest.settled_by.items():
        try:
            check_name(author, "agent")
        except InvalidNameError as error:
            yield f"its authors have a strange name: {error}"
        if not 1 <= clock <= CLOCK_MAX:
            yield f"it says that {author!r} has a transaction at clock {clock}"
    if manifest.settings.fault:
        yield f"its settings cannot be: {manifest.settings.fault}"


def _position_faults(positions: dict[str, Cut], what: str) -> Iterator[str]:
    for agent, cut in positions.items():
        try:
            check_name(agent, "agent")
        except InvalidNameError as error:
            yield f"its {what} has a strange name: {error}"
        if not (1 <= cut.segment <= CLOCK_MAX and 0 <= cut.offset <= CLOCK_MAX and 1 <= cut.commits <= CLOCK_MAX):
            yield f"its {what} of {agent!r} is no position in a log: {cut}"


def _run_faults(run: Run, number: int) -> Iterator[str]:
    named = run_of(part_path(run.name, 0))
    if named is None or named[1] > number:
        yield f"it names run {run.name!r}, which cannot have been written for it"
    if not run.parts:
        yield f"it names no part of run {run.name}"
    # Opening a large store waits for the checks of very many parts. So they take few steps for a part that is right,
    # and search for the problem only if there is one.
    paths = part_paths(run.name, len(run.parts))
    if [part.path for part in run.parts] != paths:
        named_paths = zip(run.parts, paths, strict=True)
        yield from (f"it names {part.path!r} in place of {path!r}" for part, path in named_paths if part.path != path)
    after: str | None = None
    for part in run.parts:
        records, first, last = part.records, part.first, part.last
        is_possible = 0 <= part.live <= records <= part.bytes and records and first <= last
        if not is_possible or part.shared or (after is not None and first <= after):
            yield from _part_faults(part, after)
        after = last


def _part_faults(part: Part, after: str | None) -> Iterator[str]:
    """:param after: the last id of the part before it."""
    records, first, shared = part.records, part.first, part.shared
    if not (0 <= part.live <= records and 0 < records <= part.bytes and first <= part.last):
        yield f"it says of {part.path} what cannot be: {part}"
    if isinstance(shared, bytes) and shared and (fault := hashes_fault(shared, records)):
        yield f"it lists ids of {part.path} that are from the shared log as nobody can: {fault}"
    if after is not None and first <= after:
        yield f"it says that {part.path} begins with {first!r}, and the part before it ends with {after!r}"
