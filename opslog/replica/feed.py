"""The feed: which documents changed between a token and now. `Store.changes` hands it out.

A `Feed` keeps a state of its own, at the position up to which changes were taken; what came since is read into that
state, and what it says of a document before and after is the change. So nothing is taken from `refresh` and `watch`, an
undo needs no rule of its own, and the next call costs what is new. Where the state of a token is not in memory (another
process had it, or other changes were asked for meanwhile), it is loaded from the manifest that the token names and the
logs behind its cut.

What lies behind the cut of a retained manifest is there. So a token whose manifest is retained after everything was
read has missed nothing. In every other case the answer is a reset: everything there is, in place of all that was known.
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
from opslog.replica.state import Loader, State
from opslog.replica.token import Token

T = TypeVar("T")

# The end of a log that is read as far as it goes.
EVERYTHING = (CLOCK_MAX, 0)

# Per agent where its log ends for a reader.
Ends = Mapping[str, tuple[int, int]]


class Effect(NamedTuple):
    """What one commit did.

    :ivar stamp: its clock, and the agent in whose log it stands.
    :ivar author: who wrote it: that agent, or, of a transaction, the one who made it.
    :ivar ts: when, by its author's clock.
    :ivar op: set, delete, batch or undo.
    :ivar ids: the documents that it wrote; of an undo those that it gave back.
    :ivar won: whether it is what counts for all of them. Not where a newer commit wrote one of them, or an undo took it
        back; an undo wins if it took something back.
    """

    stamp: Stamp
    author: str
    ts: str
    op: str
    ids: tuple[str, ...]
    won: bool


class Change(NamedTuple, Generic[T]):
    """A document that changed. It may be as it was at the token, where a change was taken back, or what was new was
    deleted: a program that was stopped while it applied earlier changes from that token on may have the one in between.

    :ivar id: its id.
    :ivar document: as it is now; None if it is gone.
    :ivar record: the set that wrote it. Of one that is gone the delete, as far as it is known.
    :ivar existed: whether it existed at the token from which on changes were asked for. False in a reset.
    """

    id: str
    document: T | None
    record: Record | None
    existed: bool


class Changes(Generic[T]):
    """The documents that changed between two tokens, each once, as they are at the later one: iterated, `Change` by
    `Change`, in order of id. It may be iterated many times; documents are decoded on the way.

    :ivar token: the later one. Keep it when all changes were applied, and not before; `since=` takes it. It serves
        until the store was compacted and its grace period (`Settings.grace_seconds`, or `keep_history`) is over.
    :ivar reset: whether these are all documents there are, in place of everything that was known before: with the first
        call, or where what lay between was collected. Forget what you have,
        the old token too, and apply them.
    :ivar commits: what each commit between the tokens did, in the order of their stamps; none with a reset.
    """

    def __init__(
        self,
        token: str,
        changed: Callable[[], Iterator[tuple[str, Record | None, Record | None]]],
        decode: Callable[[Set], T],
        *,
        reset: bool = False,
        commits: tuple[Effect, ...] = (),
    ) -> None:
        self.token = token
        self.reset = reset
        self.commits = commits
        self._changed = changed
        self._decode = decode

    def __iter__(self) -> Iterator[Change[T]]:
        """:raises RetryError: in a reset: the snapshot was replaced and collected before the end was reached. Ask for
        the changes again.
        """
        for id, record, before in self._changed():
            document = self._decode(record) if isinstance(record, Set) else None
            yield Change(id, document, record, isinstance(before, Set))

    def records(self) -> Iterator[tuple[str, Record | None]]:
        """The same as ids with their records, of which no document is decoded. Errors as of the iteration."""
        return ((id, record) for id, record, _ in self._changed())

    def versions(self) -> Iterator[tuple[str, Record | None, Record | None]]:
        """The same as ids with two records each: what counts now, and what counted at the token (None in a reset).
        Errors as of the iteration."""
        return self._changed()

    def __repr__(self) -> str:
        what = "reset" if self.reset else f"{len(self.commits)} commits"
        return f"<opslog.Changes {what} token={self.token[:12]}…>"


class _At(NamedTuple):
    """A state, and the token that says where it is."""

    token: Token
    state: State


class _CollectedError(Exception):
    """A manifest is not retained any more."""


class Feed(Generic[T]):
    """Computes changes. Used by one thread at a time.

    :param decode: makes a document of its record.
    """

    def __init__(self, loader: Loader, decode: Callable[[Set], T]) -> None:
        self._backend = loader.backend
        self._loader = loader
        self._decode = decode
        # Where the last call ended, if that is known.
        self._last: _At | None = None

    def changes(
        self, store: str, since: str | None, newest: Manifest, ends: Ends, limit: int | None
    ) -> Changes[T] | None:
        """What changed since a token. None where everything is asked for, and compactions have collected some of it
        since the newest manifest was found: find it again.

        :param store: the id of this store; empty where it has none.
        :param newest: the newest manifest.
        :param ends: up to where to read; nothing of logs that are not there. Not before the cut of `newest`.
        :param limit: stop behind so many commits, or behind the append that they end in where each is an object, and
            give the token of where that is. A reset has no limit.
        :raises UsageError: `since` is no token, or of another store.
        """
        token = None if since is None else Token.parse(since)
        if token is not None and store and token.store not in ("", store):
            raise UsageError(
                f"this token is of another store than {self._backend.url} (or of the one that a copy was made of): "
                "without since= the changes begin with everything"
            )
        # An exception in what follows leaves nothing half-done behind.
        last, self._last = self._last, None
        if token is not None:
            with suppress(MissingFileError):  # collected; or restored from a backup that is older
                at = last if last is not None and last.token == token else self._load(token)
                if at is not None and (found := self._advance(at, store, newest, ends, limit)) is not None:
                    return found
        return self._reset(store, newest, ends)

    def layers(self) -> Layers:
        """What a reset says, without decoding most of it. To be called right after one, by whoever has the feed alone.

        :raises MissingFileError: it was replaced and collected meanwhile: ask for the changes again.
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
        """The state of a token; None where it is not there any more.

        :raises MissingFileError: nor is what it would be made of.
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
        """Move a state on, and say what that changed; None where something of it was collected unread."""
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
        # Its cut alone does not say what a snapshot has: an undo behind the cut is in it if its target is before. But
        # all that a compaction read was there when its manifest was found.
        base = newest if is_all else self._loader.manifests.read(token.manifest)
        effects = tuple(sorted(_effects(commits, state)))
        changed = tuple(_changed(touched, state))
        return Changes(self._keep(store, state, base), partial(iter, changed), self._decode, commits=effects)

    def _is_short(self, state: State, listed: Segments, ends: Ends) -> bool:
        """Whether a log does not reach the position up to which it is to be read: what was there was compacted and
        collected before it was listed here."""
        return any(
            state.cursors.get(agent, START).position < end
            and missing_segment(listed.get(agent, []), Cut(*end, 0), START) is not None
            for agent, end in ends.items()
            if end != EVERYTHING
        )

    def _read(
        self, state: State, logs: Segments, ends: Ends, limit: int | None
    ) -> tuple[list[tuple[Commit, tuple[str, ...]]], dict[str, Record | None], bool]:
        """Read logs on into a state, up to their ends.

        :returns: the commits, with the ids that they touched; what counted before for all these ids; and whether all
            was read.
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
                            break  # it may have grown since
                if limit is not None and len(commits) >= limit:
                    return commits, touched, False
        return commits, touched, True

    def _stops(self, listed: list[Segment]) -> Iterable[list[Segment]]:
        """A log in parts, behind each of which one may stop. Where each append is a segment, the position after one is
        where the next begins, and there is none within it."""
        return [listed] if self._backend.segments_grow else [[segment] for segment in listed]

    def _keep(self, store: str, state: State, base: Manifest) -> str:
        """The token of where a state is, which is kept for the next call."""
        at_cut(base, state.cursors)
        token = Token.at(store, base, state.cursors)
        # From a newer manifest it is loaded again, which costs the tail and forgets what is in the snapshot.
        if base.number == state.manifest.number:
            self._last = _At(token, state)
        return str(token)

    def _persist(self, newest: Manifest, before: Ends, state: State) -> None:
        """What was read behind these positions is durable."""
        if not self._backend.segments_grow:
            return
        for agent, cursor in state.cursors.items():
            cut = newest.cut.get(agent)
            start = max(before.get(agent, START.position), START.position if cut is None else cut.position)
            first, last = start[0], cursor.cut.last_segment
            for number in range(first, last + 1) if start < cursor.position else ():
                with suppress(MissingFileError):  # compacted since, into what is durable, and collected
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
    """The documents that were touched, given what counted before.

    Those too that are as they were: who was stopped while applying earlier changes from the same token on may have
    applied what was taken back since, and nothing else would correct that.
    """
    for id in sorted(touched):
        yield id, state.record(id), touched[id]
