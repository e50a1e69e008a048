"""Keys of requests: which request each retained line of the shared log was written for.

A client that got no answer asks again with the same key. A line with a key is appended only at the end up to which the
log was searched for that key. So a request is carried out at most once, by whichever process, and whatever ended the
one before.

That holds while the lines are there. Keys say when they were made (UUIDv7). One that is older than what was collected
is refused: nobody can say whether that request was carried out.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from opslog.backends import Backend
from opslog.environment import parse_ts
from opslog.errors import MissingFileError, RetryError
from opslog.format.commits import Set, Stamp, Undo
from opslog.format.layout import TRANSACTIONS
from opslog.format.manifest import Manifest
from opslog.log.reader import Chunk, Cursor, Segment, list_log, log_source, until
from opslog.log.survey import Survey, survey_history
from opslog.snapshot.manifests import ManifestStore

# How many keys are kept, and with them those that must be.
_KEYS = 10_000
# Of how many commits it is remembered which documents they wrote, for undos: more than an undo window has.
_RECENT = 1000


class Done(msgspec.Struct):
    """What was written for a request.

    :ivar request: which one it was, by its digest.
    :ivar stamp: of the commit.
    :ivar ts: when.
    :ivar ids: the documents; of an undo those that it gave back, as far as that is known.
    :ivar data: the document, of a single set.
    :ivar target: the clock of what was taken back, of an undo.
    """

    request: str
    stamp: Stamp
    ts: str
    ids: tuple[str, ...]
    data: bytes = b""
    target: int = 0


class _Keyed(msgspec.Struct):
    key: msgspec.Raw = msgspec.Raw(b'""')


_keyed = msgspec.json.Decoder(_Keyed)
_text = msgspec.json.Decoder(str)
_MARK = b'"key":'


def key_text(key: str, request: str) -> str:
    """What a line has as its key."""
    return f"{key}/{request}"


class Keys:
    """The keys of one store. All but `alone` is for whoever decides transactions: one thread at a time."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._manifests = ManifestStore(backend)
        self._cursor: Cursor | None = None
        self._done: OrderedDict[tuple[str, str], Done] = OrderedDict()
        self._recent: dict[int, tuple[str, ...]] = {}
        # Since when all lines are known, in seconds since 1970; 0: all there ever were.
        self._since = 0.0
        self._lock = threading.Lock()
        self._asking: dict[tuple[str, str], list[threading.Lock]] = {}

    @contextmanager
    def alone(self, author: str, key: str) -> Iterator[None]:
        """Nobody else in this process asks with this key meanwhile: transactions that are decided together do not see
        each other's lines."""
        name = author, key
        with self._lock:
            asking = self._asking.setdefault(name, [])
            mine = asking[0] if asking else threading.Lock()
            asking.append(mine)
        try:
            with mine:
                yield
        finally:
            with self._lock:
                asking.pop()
                if not asking:
                    del self._asking[name]

    def find(self, author: str, key: str, end: Cursor) -> Done | None:
        """What was written for this key up to this end of the shared log, as far as it is retained.

        :raises RetryError: compactions collect the log faster than it can be read.
        """
        for _ in range(3):
            try:
                self._read_on(end)
            except MissingFileError:  # what was to be read next was collected meanwhile
                self._cursor = None
                continue
            return self._done.get((author, key))
        raise RetryError("compactions collect the log faster than it is searched for keys: try again")

    def covers(self, time: float) -> bool:
        """Whether all lines are known that were written at this time or later."""
        return time > self._since

    def forget_before(self, time: float) -> None:
        """Keep keys that were written since then, and some more."""
        while len(self._done) > _KEYS:
            written = parse_ts(next(iter(self._done.values())).ts)
            if written >= time:
                break
            self._done.popitem(last=False)
            self._since = max(self._since, written)

    def _read_on(self, end: Cursor) -> None:
        if self._cursor is None:
            self._done.clear()
            self._since = 0.0
            survey_history(self._manifests, lambda oldest, found: self._load(oldest, found, end))
        elif self._cursor.position < end.position:
            self._take(self._cursor, list_log(self._backend, TRANSACTIONS), end)

    def _load(self, oldest: Manifest, found: Survey, end: Cursor) -> None:
        """Read all that is retained. What was collected had been read before the oldest manifest was made."""
        cursor = found.cursors.get(TRANSACTIONS) or Cursor(TRANSACTIONS)
        if cursor.segment > 1:
            self._since = parse_ts(oldest.folded or oldest.created)
        self._take(cursor, found.segments.get(TRANSACTIONS, []), end)

    def _take(self, cursor: Cursor, listed: list[Segment], end: Cursor) -> None:
        segments = until(listed, end.position)
        cursor.end = min(cursor.end, end.position)  # a newer manifest may know of more
        source = log_source(self._backend, {TRANSACTIONS: cursor}, {TRANSACTIONS: segments}, newest_first=True)
        found: list[tuple[tuple[str, str], Done]] = []
        recent: list[tuple[int, tuple[str, ...]]] = []
        for chunk in cursor.read_newest_first(source, segments):
            found += _keyed_in(chunk)
            newest = chunk.commits[-max(1, _RECENT - len(recent)) :]
            recent += [(commit.clock, commit.ids) for commit in reversed(newest)]
        self._recent = dict([*self._recent.items(), *reversed(recent)][-_RECENT:])
        for _, done in found:
            done.ids = done.ids or self._recent.get(done.target, ())
        self._done.update(reversed(found))
        self._cursor = cursor


def _keyed_in(chunk: Chunk) -> Iterator[tuple[tuple[str, str], Done]]:
    """The keys in a chunk, the newest first."""
    if _MARK not in chunk.lines:
        return
    for line, commit in reversed(list(zip(chunk.lines.split(b"\n"), chunk.commits, strict=False))):
        if _MARK not in line or not (text := _key_of(line)):
            continue
        key, _, request = text.partition("/")
        data = bytes(commit.data) if isinstance(commit, Set) else b""
        target = commit.target if isinstance(commit, Undo) else 0
        done = Done(request, commit.stamp, commit.ts, commit.ids, data, target)
        yield (commit.author, key), done


def _key_of(line: bytes) -> str:
    """The key of a line; empty where another program has something else under that name."""
    try:
        return _text.decode(_keyed.decode(line).key)
    except msgspec.DecodeError:
        return ""
