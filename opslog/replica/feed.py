"""The feed: the documents that changed since a token. `Store.changes` returns it.

A `Feed` keeps a state of its own, at the positions up to which changes were read. A call reads the new commits into
that state, and compares the record of each document before and after. So the feed takes nothing from `refresh` and
`watch`, an undo needs no rule of its own, and a call costs only what is new. If the state of a token is not in memory
(another process had it, or a caller used another token meanwhile), it is loaded from the token's manifest and the logs
behind its cut.

Nothing behind the cut of a retained manifest is collected. So if the token's manifest is still retained after
everything was read, no change was missed. In every other case the answer is a reset: all documents, in place of what
the caller knew before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import msgspec

from opslog.errors import MissingFileError, UsageError
from opslog.format.commits import CLOCK_MAX, Commit, Record, Seal, Set, Stamp, Undo
from opslog.format.layout import segment_path
from opslog.format.manifest import START, Cut, Manifest
from opslog.log.gaps import missing_segment
from opslog.log.reader import Segment, Segments, least_first, log_source, until
from opslog.log.survey import at_cut, list_logs, unread
from opslog.replica.live import Layers
from opslog.replica.loading import Loader
from opslog.replica.state import State
from opslog.replica.token import Token

T = TypeVar("T")

# As the end of a log: read it as far as it goes.
EVERYTHING = (CLOCK_MAX, 0)

# For each agent, the position at which to stop reading its log.
Ends = Mapping[str, tuple[int, int]]


class Effect(NamedTuple):
    """What one commit did.

    :ivar stamp: its clock, and the agent whose log it is in.
    :ivar author: the agent that wrote it. For a transaction this is not the agent of the stamp.
    :ivar ts: when it was written, by its author's clock.
    :ivar op: set, delete, batch or undo.
    :ivar ids: the documents that it wrote. For an undo, the documents that it gave back.
    :ivar won: whether it counts for all of these documents. It does not if a newer commit wrote one of them, or if an
        undo took it back. An undo wins if it took something back.
    """

    stamp: Stamp
    author: str
    ts: str
    op: str
    ids: tuple[str, ...]
    won: bool


class Change(NamedTuple, Generic[T]):
    """A document that changed. It may be the same as at the token, because a change was undone or a new document was
    deleted again. It is listed nevertheless: a program that was stopped while it applied changes since that token may
    have the document in between.

    :ivar id: its id.
    :ivar document: the document as it is now; None if it was deleted.
    :ivar record: the set that wrote it. If the document was deleted, the delete, as far as it is known.
    :ivar existed: whether it existed at the token of the call (`since=`). False in a reset.
    """

    id: str
    document: T | None
    record: Record | None
    existed: bool


class Changes(Generic[T]):
    """The documents that changed between two tokens. An iteration returns a `Change` for each document, in order of id,
    with the document as it is at the later token. It may be repeated; documents are decoded on the way.

    :ivar token: the later token. Save it after all changes were applied, not before; `since=` takes it. It is valid
        until the store was compacted and the grace period (`Settings.grace_seconds`, or `keep_history`) is over.
    :ivar reset: whether these are all documents of the store: after a first call, or if commits in between were
        collected. Drop everything you have, the old token too, and apply them.
    :ivar commits: what each commit between the tokens did, in the order of their stamps; none with a reset.
    :ivar has_more: whether `limit` ended the call, so that more may be there already.
    """

    def __init__(
        self,
        token: str,
        changed: Callable[[], Iterator[tuple[str, Record | None, Record | None]]],
        decode: Callable[[Set], T],
        *,
        reset: bool = False,
        commits: tuple[Effect, ...] = (),
        has_more: bool = False,
    ) -> None:
        self.token = token
        self.reset = reset
        self.commits = commits
        self.has_more = has_more
        self._changed = changed
        self._decode = decode

    def __iter__(self) -> Iterator[Change[T]]:
        """:raises RetryError: in a reset, the snapshot was replaced and collected before the end was reached. Call
        `changes` again.
        """
        for id, record, before in self._changed():
            document = self._decode(record) if isinstance(record, Set) else None
            yield Change(id, document, record, isinstance(before, Set))

    def records(self) -> Iterator[tuple[str, Record | None]]:
        """The same changes as ids with their records, without decoding documents. Errors as in the iteration."""
        return ((id, record) for id, record, _ in self._changed())

    def versions(self) -> Iterator[tuple[str, Record | None, Record | None]]:
        """The same changes as ids with two records each: the current one, and the one at the token (None in a reset).
        Errors as in the iteration."""
        return self._changed()

    def __repr__(self) -> str:
        what = "reset" if self.reset else f"{len(self.commits)} commits"
        return f"<opslog.Changes {what} token={self.token[:12]}…>"


class _At(NamedTuple):
    """A state, and the token of its positions."""

    token: Token
    state: State


class _CollectedError(Exception):
    """A manifest is no longer retained."""


class Feed(Generic[T]):
    """Computes changes. Used by one thread at a time.

    :param decode: makes a document of its record.
    """

    def __init__(self, loader: Loader, decode: Callable[[Set], T]) -> None:
        self._backend = loader.backend
        self._loader = loader
        self._decode = decode
        # The state at which the last call ended, if it was kept.
        self._last: _At | None = None

    def changes(
        self, store: str, since: str | None, newest: Manifest, ends: Ends, limit: int | None
    ) -> Changes[T] | None:
        """The changes since a token. None if this would be a reset, but a compaction has collected files since `newest`
        was found: find the newest manifest again.

        :param store: the id of this store; empty if it has none.
        :param newest: the newest manifest.
        :param ends: where to stop in each log, not before the cut of `newest`. Logs that are not in it are not read.
        :param limit: stop after so many commits and return a token of that position. If each append is an object, stop
            at the end of the append. A reset has no limit.
        :raises UsageError: `since` is not a token, or belongs to another store.
        """
        token = None if since is None else Token.parse(since)
        if token is not None and store and token.store not in ("", store):
            raise UsageError(
                f"this token is of another store than {self._backend.url} (or of the one that a copy was made of): "
                "without since= the changes begin with everything"
            )
        # If an exception follows, the state may be half changed: do not keep it.
        last, self._last = self._last, None
        if token is not None:
            with suppress(MissingFileError):  # collected; or restored from a backup that is older
                at = last if last is not None and last.token == token else self._load(token)
                if at is not None and (found := self._advance(at, store, newest, ends, limit)) is not None:
                    return found
        return self._reset(store, newest, ends)

    def layers(self) -> Layers:
        """The documents of a reset, mostly undecoded. Call this right after a reset, and only on a feed of your own.

        :raises MissingFileError: the snapshot was replaced and collected meanwhile: call `changes` again.
        """
        if self._last is None:
            raise UsageError("there are layers only right after a reset")
        return self._last.state.layers()

    def _reset(self, store: str, newest: Manifest, ends: Ends) -> Changes[T] | None:
        def choose() -> Manifest:
            if not self._is_retained(newest.number):
                raise _CollectedError
            return newest

        def load(manifest: Manifest) -> tuple[State, Callable[[], Iterator[Set]]]:
            state = self._load_at(manifest, ends)
            return state, state.snapshot()

        try:
            state, records = self._loader.manifests.read_consistently(choose, load)
        except _CollectedError:
            return None
        self._persist(state.manifest, {}, state)
        token = self._keep(store, state, state.manifest)
        return Changes(token, lambda: ((record.id, record, None) for record in records()), self._decode, reset=True)

    def _load(self, token: Token) -> _At | None:
        """The state of a token; None if it can no longer be loaded.

        :raises MissingFileError: files that it needs were collected.
        """
        manifest = self._loader.manifests.read(token.manifest)
        if not token.is_from(manifest) or not self._is_retained(manifest.number):
            return None
        state = self._load_at(manifest, token.ends(manifest))
        return _At(token, state) if token.fits(state.cursors) else None

    def _load_at(self, manifest: Manifest, ends: Ends) -> State:
        """The state up to these positions, none of which is before the cut of the manifest."""
        found = list_logs(self._backend, manifest, at_cut(manifest))
        found = msgspec.structs.replace(found, segments=self._clipped(found.segments, ends, manifest))
        return self._loader.load_from(found)

    def _advance(self, at: _At, store: str, newest: Manifest, ends: Ends, limit: int | None) -> Changes[T] | None:
        """Read new commits into a state and return what changed. None if commits were collected before they were
        read."""
        token, state = at
        before = state.ends
        listed = list_logs(self._backend, newest, state.cursors).segments
        if self._is_short(state, listed, ends):
            return None
        clipped = {agent: until(segments, ends[agent]) for agent, segments in listed.items() if agent in ends}
        commits, touched, is_all = self._read(state, unread(state.cursors, clipped), ends, limit)
        if commits:
            self._persist(newest, before, state)
        if (commits or newest.number != token.manifest) and not self._is_retained(token.manifest):
            return None
        # The cut alone does not say what a snapshot has: an undo behind the cut is in it if its target is before the
        # cut. But everything that a compaction read existed before its manifest was found.
        base = newest if is_all else self._loader.manifests.read(token.manifest)
        effects = tuple(sorted(_effects(commits, state)))
        changed = tuple(_changed(touched, state))
        token_now = self._keep(store, state, base)
        return Changes(token_now, partial(iter, changed), self._decode, commits=effects, has_more=not is_all)

    def _is_short(self, state: State, listed: Segments, ends: Ends) -> bool:
        """Whether a log does not reach the position up to which to read it: commits were compacted and collected before
        this listing."""
        return any(
            state.cursors.get(agent, START).position < end
            and missing_segment(listed.get(agent, []), Cut(*end, 0), START) is not None
            for agent, end in ends.items()
            if end != EVERYTHING
        )

    def _read(
        self, state: State, logs: Segments, ends: Ends, limit: int | None
    ) -> tuple[list[tuple[Commit, tuple[str, ...]]], dict[str, Record | None], bool]:
        """Read new commits of logs into a state, up to `ends`.

        :returns: the commits with the ids that they touched; the record of each of these ids before; and whether
            everything was read.
        """
        commits: list[tuple[Commit, tuple[str, ...]]] = []
        touched: dict[str, Record | None] = {}
        order = least_first(logs, state.cursors)
        cursors = {agent: state.cursor(agent) for agent in order}
        source = log_source(self._backend, cursors, {agent: logs[agent] for agent in order})
        for agent in order:
            cursor = state.cursors[agent] = cursors[agent]
            for some in self._stops(logs[agent]):
                for _, commit in cursor.read(source, some):
                    commits.append((commit, state.take(commit, touched)))
                    if self._backend.segments_grow:
                        if len(commits) == limit:
                            return commits, touched, False
                        if cursor.position >= ends[agent]:
                            break  # the log may have grown since `ends` was noted
                if limit is not None and len(commits) >= limit:
                    return commits, touched, False
        return commits, touched, True

    def _stops(self, listed: list[Segment]) -> Iterable[list[Segment]]:
        """The parts of a log after which a call may stop. If each append is a segment, it may stop only between
        segments: a cursor has no position within one."""
        return [listed] if self._backend.segments_grow else [[segment] for segment in listed]

    def _keep(self, store: str, state: State, base: Manifest) -> str:
        """Keep a state for the next call, and return the token of its positions."""
        at_cut(base, state.cursors)
        token = Token.at(store, base, state.cursors)
        # If there is a newer manifest, the next call loads a state from it. That costs reading the tail, but frees the
        # records that are in the snapshot now.
        if base.number == state.manifest.number:
            self._last = _At(token, state)
        return str(token)

    def _persist(self, newest: Manifest, before: Ends, state: State) -> None:
        """Make durable what was read behind these positions."""
        if not self._backend.segments_grow:
            return
        for agent, cursor in state.cursors.items():
            cut = newest.cut.get(agent)
            start = max(before.get(agent, START.position), START.position if cut is None else cut.position)
            first, last = start[0], cursor.cut.last_segment
            for number in range(first, last + 1) if start < cursor.position else ():
                with suppress(MissingFileError):  # collected since: it was compacted, which made it durable
                    self._backend.persist([segment_path(agent, number)])

    def _clipped(self, segments: Segments, ends: Ends, manifest: Manifest) -> Segments:
        cursors = at_cut(manifest)
        return {
            agent: until(listed, ends[agent])
            for agent, listed in segments.items()
            if agent in ends and (agent not in cursors or cursors[agent].position < ends[agent])
        }

    def _is_retained(self, number: int) -> bool:
        return any(number == retained for retained, _ in self._loader.manifests.retained())


def _effects(commits: list[tuple[Commit, tuple[str, ...]]], state: State) -> Iterator[Effect]:
    for commit, ids in commits:
        if isinstance(commit, Seal):
            continue
        won = bool(ids) if isinstance(commit, Undo) else all(_is_of(state.record(id), commit) for id in ids)
        yield Effect(commit.stamp, commit.author, commit.ts, commit.op, ids, won)


def _is_of(record: Record | None, commit: Commit) -> bool:
    return record is not None and record.stamp == commit.stamp


def _changed(touched: dict[str, Record | None], state: State) -> Iterator[tuple[str, Record | None, Record | None]]:
    """The documents that were touched, each with its record now and before.

    This includes documents that are as they were before. A consumer that was stopped while it applied changes since the
    same token may have applied something that was undone since, and nothing else would correct that.
    """
    for id in sorted(touched):
        yield id, state.record(id), touched[id]
