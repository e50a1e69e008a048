"""The questions that an open store is asked: which documents, how many, how many of each kind.

A question is answered with the help of an index, where that makes it read few documents; otherwise it reads all of
them. The index that it could use, and that is not there yet, is made first. Which documents an index finds, and what
they are, is read in one step, under the lock of the state; everything else is done outside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from opslog.errors import UsageError
from opslog.format.commits import Record, Set
from opslog.format.documents import Document, Schema
from opslog.notebook import documents_table
from opslog.query.conditions import EVERYTHING, Condition, compiled
from opslog.query.index import Index
from opslog.query.paths import Path
from opslog.query.plan import Access, Candidates, accesses, best, counted, wanted
from opslog.query.question import (
    Group,
    Grouping,
    Question,
    Where,
    count_of,
    groups,
    groups_of,
    keys_at,
    parse,
)
from opslog.replica.following import Following
from opslog.replica.indexes import Building, Indexes
from opslog.replica.state import State

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
A = TypeVar("A")

SCAN = "every document was read"

# An index is used for so many documents, and this share of all, at the most: to read more one by one takes longer than
# to read all.
_LOOKUPS_MAX, _LOOKED_UP_SHARE = 1000, 20


class Found(list[tuple[str, T]], Generic[T]):
    """What `find` returns: a list of (id, document) pairs. For Arrow, and for notebooks, it is a table.

    :ivar explain: what the question used: an index, or every document.
    """

    explain: str = SCAN
    # Set by `opslog.store`, which knows tables.
    table_of: ClassVar[Callable[[Callable[[Set], bytes | msgspec.Raw], Sequence[Set]], pa.Table]]

    def __init__(
        self, pairs: Iterable[tuple[str, T]] = (), source: tuple[Schema[T], Sequence[Set]] | None = None
    ) -> None:
        super().__init__(pairs)
        self._source = source

    def to_arrow(self) -> pa.Table:
        """The documents that were found, in their order, with the columns of `Store.to_arrow`; whatever became of the
        list since.

        :raises UsageError: this is a copy, such as one from another process: it does not know who wrote what.
        """
        if self._source is None:
            raise UsageError("this is a copy of what find returned, and only that itself is a table: ask again")
        schema, records = self._source
        return type(self).table_of(schema.text, records)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """The first pairs as a table, for notebooks."""
        return documents_table(f"find: {self.explain}", self, len(self))

    def __getstate__(self) -> dict[str, object]:
        return {"explain": self.explain, "_source": None}


class _TooMany(Exception):
    """An index finds more documents than it pays to look up."""


class _Missing(NamedTuple):
    """The index of this path would help."""

    path: Path


class _Answer(NamedTuple, Generic[A]):
    value: A
    explain: str


class Questions(Generic[T]):
    """Answers the questions that a replica is asked.

    :param replica: whose documents these are.
    :param overlay: gives what the caller's thread has in a batch: records that outrank everything else.
    """

    def __init__(self, replica: Following, schema: Schema[T], overlay: Callable[[], Mapping[str, Record]]) -> None:
        self._replica = replica
        self._schema = schema
        self._overlay = overlay

    def find(self, asked: Question, records: Callable[[], Iterable[Set]]) -> Found[T]:
        """As `Store.find`.

        :param records: begins an iteration over all documents.
        """
        matches, explain = self.matches(asked, records)
        found = decoded(self._schema, matches)
        found.explain = explain
        return found

    def matches(
        self, asked: Question, records: Callable[[], Iterable[Set]]
    ) -> tuple[Iterable[tuple[Set, Document | None]], str]:
        """Likewise as records, each with its document if that was read; and what was used, as of `Found.explain`. To be
        iterated once."""
        answer = self._from_indexes(partial(self._find, asked))
        if answer is None:
            return asked.matches(records(), self._schema.current), SCAN
        return answer.value, answer.explain

    def count(self, condition: Condition, records: Callable[[], Iterable[Set]]) -> int:
        """As `Store.count`."""
        answer = self._from_indexes(partial(self._count, condition))
        return count_of(condition, records(), self._schema.current) if answer is None else answer.value

    def group(self, asked: Grouping, records: Callable[[], Iterable[Set]]) -> list[Group]:
        """As `Store.group`."""
        answer = self._from_indexes(partial(self._group, asked))
        return groups_of(asked, records(), self._schema.current) if answer is None else answer.value

    def index(self, path: Path, records: Callable[[State], Iterator[Set]] = State.records) -> None:
        """Make the index of a path, unless it is there. Errors as of `Store.find`."""

        def begin(state: State) -> tuple[Indexes, Building, Iterator[Set]] | None:
            indexes = self._indexes(state)
            if indexes.use(path) is not None:
                return None
            return indexes, indexes.begin(), records(state)

        begun = self._replica.read(begin)
        if begun is None:
            return
        indexes, building, found = begun
        keys, read = keys_at(path), self._schema.current
        index = Index(path, ((record.id, keys(read(record), record)) for record in found))

        def end(state: State) -> None:
            if state.indexes is indexes:
                state.ask(lambda state: indexes.add(index, building))

        self._replica.read(end)

    def _indexes(self, state: State) -> Indexes:
        if state.indexes is None:
            state.indexes = Indexes(self._schema.current)
        return state.indexes

    def _from_indexes(self, answer: Callable[[_Asking], _Answer[A] | _Missing | None]) -> _Answer[A] | None:
        """What the indexes answer, None if they cannot. Makes one of them at the most."""

        def ask(state: State) -> _Answer[A] | _Missing | None:
            indexes = self._indexes(state)
            indexes.update(state)
            return answer(_Asking(state, indexes, self._overlay()))

        self._replica.check_open()
        for is_second in (False, True):
            found = self._replica.read(State.ask, ask)
            if not isinstance(found, _Missing):
                return found
            if not is_second:
                self.index(found.path)
        return None

    # -- under the lock

    def _find(self, asked: Question, asking: _Asking) -> _Answer[list[tuple[Set, Document | None]]] | _Missing | None:
        ways = accesses(asked.condition)
        read = self._schema.current
        candidates = asking.best(ways)
        if candidates is not None and (candidates.size <= asking.most or (asked.last is not None and not asked.order)):
            try:
                found = list(asked.matches(asking.records(candidates.ids()), read))
            except _TooMany:
                pass
            else:
                return _Answer(found, f"index on {candidates.path}: {candidates.size} documents")
        missing = asking.missing(wanted(ways))
        if missing is not None:
            return missing
        if len(asked.order) != 1 or asked.last is None or asked.last > asking.most or asking.overlay:
            return None
        path, is_descending = asked.order[0]
        index = asking.use(path)
        if index is None:
            return asking.missing([path])
        try:
            ids = index.ordered(is_descending)
            found = list(asked._replace(order=()).matches(asking.records(ids), read))
        except _TooMany:
            return None
        return _Answer(found, f"index on {path}, in its order")

    def _count(self, condition: Condition, asking: _Asking) -> _Answer[int] | _Missing | None:
        ways = accesses(condition)
        if not asking.overlay and (count := counted(condition, asking.indexes.by_path)) is not None:
            return _Answer(count, "")
        candidates = asking.best(ways)
        if candidates is not None and candidates.size <= asking.most:
            return _Answer(count_of(condition, asking.records(candidates.ids()), self._schema.current), "")
        return asking.missing(wanted(ways))

    def _group(self, asked: Grouping, asking: _Asking) -> _Answer[list[Group]] | _Missing | None:
        ways = accesses(asked.condition)
        if asked.condition == EVERYTHING and not asking.overlay:
            index = asking.use(asked.path)
            return asking.missing([asked.path]) if index is None else _Answer(groups(index.counts()), "")
        candidates = asking.best(ways)
        if candidates is not None and candidates.size <= asking.most:
            return _Answer(groups_of(asked, asking.records(candidates.ids()), self._schema.current), "")
        return asking.missing(wanted(ways))


class _Asking:
    """A state with its indexes, while a question is answered.

    :ivar most: how many documents are looked up at the most.
    """

    def __init__(self, state: State, indexes: Indexes, overlay: Mapping[str, Record]) -> None:
        self.state = state
        self.indexes = indexes
        self.overlay = overlay
        documents = max(map(len, indexes.by_path.values()), default=0)
        self.most = _LOOKUPS_MAX + documents // _LOOKED_UP_SHARE

    def use(self, path: Path) -> Index | None:
        return self.indexes.use(path)

    def best(self, ways: tuple[Access, ...]) -> Candidates | None:
        """The fewest candidates, with those that only the batch has."""
        found = best(ways, self.indexes.by_path, self.most)
        if found is None:
            return None
        for path in wanted(ways):
            if str(path) == found.path:
                self.indexes.use(path)
        if not self.overlay:
            return found
        if found.size + len(self.overlay) > self.most:
            return None
        ids = sorted({*found.ids(), *self.overlay})
        return Candidates(len(ids), lambda: iter(ids), found.path)

    def missing(self, paths: Iterable[Path]) -> _Missing | None:
        """The first index that would help and can be made."""
        known, refused = self.indexes.by_path, self.indexes.refused
        return next((_Missing(path) for path in paths if path not in known and path not in refused), None)

    def records(self, ids: Iterable[str]) -> Iterator[Set]:
        """The documents that have these ids.

        :raises _TooMany: more than `most`.
        """
        overlay, get = self.overlay, self.state.get
        for number, id in enumerate(ids):
            if number == self.most:
                raise _TooMany
            record = overlay[id] if id in overlay else get(id)
            if isinstance(record, Set):
                yield record


# -- without an index


def scan(schema: Schema[T], records: Iterable[Set], asked: Question) -> Found[T]:
    """The answer to a question, of these records, in order of id."""
    return decoded(schema, asked.matches(records, schema.current))


def decoded(schema: Schema[T], matches: Iterable[tuple[Set, Document | None]]) -> Found[T]:
    """What `find` returns for these matches."""
    records: list[Set] = []

    def pairs() -> Iterator[tuple[str, T]]:
        for record, document in matches:
            records.append(record)
            yield record.id, schema.decode(record) if document is None else schema.typed(document, record)

    return Found(pairs(), (schema, records))


def chooser(schema: Schema[T], where: Where | Condition | Callable[[T], object]) -> Callable[[Set], object]:
    """What says whether a condition, or a predicate, is true of a record's document."""
    if callable(where):
        return lambda record: where(schema.decode(record))
    return matcher(schema, parse(where))


def matcher(schema: Schema[T], condition: Condition) -> Callable[[Set], bool]:
    """What says whether a condition is true of a record's document."""
    is_true = compiled(condition)
    return lambda record: is_true(schema.current(record), record)
