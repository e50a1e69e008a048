"""Tokens of the feed: the position in each log up to which changes were read. Pure.

A token names a manifest. For each log that was read beyond the cut of that manifest, it has the reader's position. So
its size grows with the logs that are not compacted to their ends, not with all logs that ever existed. It is valid as
long as the manifest is retained: nothing after the cut of a retained manifest is collected.

Its text is compressed JSON in base64 for URLs.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping

import msgspec

from opslog.errors import UsageError
from opslog.format.manifest import START, Manifest
from opslog.format.prepared import prepare
from opslog.log.reader import Cursor

# No real token is longer, and nobody can make this process unpack more.
_BYTES_MAX = 64 * 1024 * 1024


class SavedCursor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a log was read. There are `commits` commits before this position, and the last has this `clock` and
    `mark`.

    After a restore from a backup other commits may be written in place of those that were lost, with the same clocks
    and of the same lengths, but not with the same mark (`mark_of`).

    :ivar mark: in tokens of older programs, only its beginning, or empty.
    """

    segment: int
    offset: int
    commits: int
    clock: int
    mark: str = ""

    @classmethod
    def of(cls, cursor: Cursor) -> SavedCursor:
        return cls(cursor.segment, cursor.offset, cursor.commits, cursor.clock, cursor.mark)

    @property
    def position(self) -> tuple[int, int]:
        return self.segment, self.offset

    def is_of(self, cursor: Cursor) -> bool:
        """Whether the cursor is at this position. (The beginning of a segment is the end of the one before it.)"""
        same_clock = (self.commits, self.clock) == (cursor.commits, cursor.clock)
        same_commit = same_clock and cursor.mark.startswith(self.mark)
        return same_commit and (self.offset == 0 or self.position == cursor.position)


class Token(msgspec.Struct, frozen=True):
    """A token; the module's docstring describes it.

    :ivar store: the store's id; empty if it has none.
    :ivar manifest: the number of a manifest. Its `clock` and `created` distinguish it from another manifest of the same
        number, which a store may get that was restored from a backup.
    :ivar logs: the reader's position in each log that was read beyond the cut of that manifest.
    """

    store: str
    manifest: int
    clock: int
    created: str
    logs: dict[str, SavedCursor]

    @classmethod
    def at(cls, store: str, manifest: Manifest, cursors: Mapping[str, Cursor]) -> Token:
        """The token of a reader at these cursors. None of them may be before the cut of this manifest."""
        logs = {
            agent: SavedCursor.of(cursor)
            for agent, cursor in sorted(cursors.items())
            if cursor.commits > manifest.cut.get(agent, START).commits
        }
        return cls(store, manifest.number, manifest.clock, manifest.created, logs)

    def is_from(self, manifest: Manifest) -> bool:
        """Whether the token names this manifest."""
        named = (self.manifest, self.clock, self.created)
        return named == (manifest.number, manifest.clock, manifest.created)

    def ends(self, manifest: Manifest) -> dict[str, tuple[int, int]]:
        """The position up to which each log was read, given the manifest that the token names."""
        return {agent: cut.position for agent, cut in manifest.cut.items()} | {
            agent: saved.position for agent, saved in self.logs.items()
        }

    def fits(self, cursors: Mapping[str, Cursor]) -> bool:
        """Whether these cursors are at the token's positions. They are not if a log ends before, or has another commit
        there."""
        return all(agent in cursors and saved.is_of(cursors[agent]) for agent, saved in self.logs.items())

    def __str__(self) -> str:
        packed = zlib.compress(msgspec.json.encode(self), 9)
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Token:
        """:raises UsageError: the text is not a token."""
        try:
            packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            unpacking = zlib.decompressobj()
            body = unpacking.decompress(packed, _BYTES_MAX)
            if not unpacking.eof or unpacking.unused_data:
                raise ValueError("it was cut short, or something was added")
            return msgspec.json.decode(body, type=cls)
        except (ValueError, TypeError, zlib.error) as error:
            raise UsageError(
                f"{str(text)[:40]!r} is not a token of changes: keep the text of `Changes.token` as it is ({error})"
            ) from error


prepare(Token)
