"""Keys of requests: which request each retained line of the shared log was written for.

A client that got no answer sends its request again with the same key. A line with a key is appended only if the log was
searched for that key up to its very end. So a request is carried out at most once, whichever processes get it, and
whatever ended the earlier attempt.

This holds as long as the lines are retained. A key has the time when it was made (UUIDv7). A key from before the oldest
retained line is refused, since it is unknown whether that request was carried out.
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

# How many keys are kept at least.
_KEYS = 10_000
# For how many commits it remembers the documents that they wrote, for undos: more than an undo window has.
_RECENT = 1000


class Done(msgspec.Struct):
    """The commit that was written for a request.

    :ivar request: the digest of the request.
    :ivar stamp: the commit's stamp.
    :ivar ts: the commit's time.
    :ivar ids: the documents that it wrote; for an undo, those that it gave back, as far as they are known.
    :ivar data: for a single set, the document.
    :ivar target: for an undo, the clock of the commit that it took back.
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
    """The text of a key in a line."""
    return f"{key}/{request}"


class Keys:
    """The keys of one store. Only the thread that decides transactions may call the methods; any thread may call
    `alone`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._manifests = ManifestStore(backend)
        self._cursor: Cursor | None = None
        self._done: OrderedDict[tuple[str, str], Done] = OrderedDict()
        self._recent: dict[int, tuple[str, ...]] = {}
        # All lines after this time are known, in seconds since 1970; 0: all lines that there ever were.
        self._since = 0.0
        self._lock = threading.Lock()
        self._asking: dict[tuple[str, str], list[threading.Lock]] = {}

    @contextmanager
    def alone(self, author: str, key: str) -> Iterator[None]:
        """A block in which no other thread of this process works on the same key. This is needed because transactions
        that are decided together do not see each other's lines."""
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
        """The commit that was written for this key up to this end of the shared log; None: there is none among the
        retained ones.

        :raises RetryError: compactions collect the log faster than it can be read.
        """
        for _ in range(3):
            try:
                self._read_on(end)
            except MissingFileError:  # the next segment was collected meanwhile
                self._cursor = None
                continue
            return self._done.get((author, key))
        raise RetryError("compactions collect the log faster than it is searched for keys: try again")

    def covers(self, time: float) -> bool:
        """Whether all lines that were written at this time or later are known."""
        return time > self._since

    def forget_before(self, time: float) -> None:
        """Forget keys that were written before this time, but keep at least `_KEYS` keys."""
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
        """Read all retained lines. All lines that were collected had been read before the oldest manifest was made."""
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
