"""The manifest: the small numbered object that says what is live. Pure.

The manifest with the greatest number is the truth. It names the runs of the snapshot, newest first, and the cut: for
each agent, where the commits begin that are not in the snapshot. Manifest 1 is created with the store and has an empty
snapshot.
"""

from __future__ import annotations

import msgspec

from opslog.checksum import decode_checked, encode_checked
from opslog.errors import CorruptError, FormatVersionError

FORMAT = 1
"""The format version this program writes, and the newest it reads."""


class Cut(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A place in a log, at a commit boundary.

    :ivar segment: the number of the segment, from 1; `offset`: bytes from its start.
    :ivar commits: how many commits of this log lie before this place.
    :ivar there: at byte 0, whether the segment is there. If not, this is where the log goes on, should it ever.
    """

    segment: int
    offset: int
    commits: int
    there: bool = False

    @property
    def place(self) -> tuple[int, int]:
        return self.segment, self.offset

    @property
    def last_segment(self) -> int:
        """The last segment of which something lies before this place."""
        return self.segment if self.offset else self.segment - 1

    @property
    def needed_segment(self) -> int:
        """The last segment that must be there because of this cut."""
        return self.segment if self.there else self.last_segment


START = Cut(1, 0, 0)
"""Where every log begins."""


class Part(msgspec.Struct, frozen=True):
    """One immutable file of a run: its records are those from id `first` to id `last`.

    :ivar path: relative to the root; `bytes`: its length; `sha256`: of all of it.
    :ivar records: how many lines; `live`: how many of them are sets.
    """

    path: str
    records: int
    live: int
    bytes: int
    first: str
    last: str
    sha256: str


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
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What all agents of a store must agree on. Set when the store is created; `keep_history` may change later.

    :ivar undo_window: how many of an agent's newest commits are never folded.
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


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's docstring.

    :ivar created: wall clock of whoever made it.
    :ivar clock: no commit that was read for it has a greater clock. All that is folded, and every undo that was
        applied, is at or below it: so the state at any clock from here on can be rebuilt from this manifest.
    :ivar ts: likewise the greatest `ts` among all that was read; empty when there was none.
    :ivar documents: how many documents the snapshot shows.
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

    @property
    def commits(self) -> int:
        """How many commits are folded."""
        return sum(cut.commits for cut in self.cut.values())


class _Format(msgspec.Struct):
    format: int
    number: int = 0


def encode_manifest(manifest: Manifest) -> bytes:
    return encode_checked(manifest)


def decode_manifest(data: bytes, path: str, number: int) -> Manifest:
    """The manifest in a file that is named for `number`.

    :raises FormatVersionError: a newer opslog wrote it. :raises CorruptError: it is damaged, or not the one it is named
        for.
    """
    form = decode_checked(data, _Format, path)
    if form.format > FORMAT:
        raise FormatVersionError(
            f"{path}: this store has format version {form.format}, and this program reads versions up to {FORMAT}: "
            "upgrade opslog",
            form.format,
        )
    manifest = decode_checked(data, Manifest, path)
    if manifest.number != number:
        raise CorruptError(f"{path}: holds manifest number {manifest.number}: the file was renamed or copied", path, 0)
    return manifest
