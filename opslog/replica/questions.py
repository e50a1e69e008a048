"""The questions that an open store is asked: which documents, how many, how many of each kind.

A question uses an index if it then reads few documents; otherwise it reads all of them. If there is no such index yet,
the question makes it first, unless the first documents answer a question with a limit. A question reads in one step,
under the lock of the state, which documents an index finds, and these documents. It does everything else without the
lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from opslog.errors import MissingFileError, RetryError
from opslog.format.commits import Record, Set
from opslog.format.documents import Document, Schema
from opslog.query.conditions import EVERYTHING, Condition, compiled, paths_of
from opslog.query.index import Index
from opslog.query.paths import Path
from opslog.query.plan import Access, Candidates, accesses, best, counted, wanted
from opslog.query.question import (
    Group,
    Grouping,
    Question,
    Where,
    count_of,
    entries_of,
    groups,
    groups_of,
    names_of,
    parse,
)
from opslog.query.rows import Names, Reader, Rows
from opslog.replica.following import Following
from opslog.replica.found import SCAN, Found
from opslog.replica.indexes import INDEX_BYTES_MAX, Building, Indexes
from opslog.replica.scanning import scan, unread
from opslog.replica.state import State, View

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")

# An index is used for so many documents, and this share of all, at the most: to read more one by one takes longer than
# to read all.
_LOOKUPS_MAX, _LOOKED_UP_SHARE = 1000, 20
# So many of them are looked up before the next ones.
_AT_ONCE = 256
# A question with a limit reads so many documents before it makes an index. That takes milliseconds; an index of a
# million documents takes seconds.
_FIRST = 10_000


class _TooMany(Exception):
    """An index finds more documents than it pays to look up."""


class _Missing(NamedTuple):
    """The index of this path would help.

    :ivar documents: about how many it would have.
    """

    path: Path
    indexes: Indexes
    documents: int


class _Answer(NamedTuple, Generic[A]):
    value: A
    explain: str


class Frozen:
    """Where a transaction asks: the state as it was at one moment. What has changed there since, and what is written
    over it, is read document by document; of all others the indexes of the state as it is now know.

    :param view: of that moment.
    :param overlay: records that outrank everything else.
    """

    def __init__(self, replica: Following, view: View, overlay: Mapping[str, Record]) -> None:
        self._replica = replica
        self._view = view
        self._overlay = overlay

    def read(self, query: Callable[[State], R]) -> R | None:
        """What a query says of the state; None where there is another one by now, or a part of it was collected."""

        def ask(state: State) -> R | None:
            view = self._view
            return None if state is not view.state or state.is_torn or view.is_released else query(state)

        try:
            return self._replica.change(ask)
        except MissingFileError:
            return None

    def overlay(self) -> Mapping[str, Record | None] | None:
        """What is different from the state; None where it is too much to read."""
        view = self._view
        if len(view.changed) > _LOOKUPS_MAX:
            return None
        return {id: view.record(id) for id in view.changed} | {**self._overlay}


class Questions(Generic[T]):
    """Answers the questions that a replica is asked.

    :param replica: whose documents these are.
    :param overlay: gives what the caller's thread has in a batch: records that outrank everything else.
    """

    def __init__(self, replica: Following, schema: Schema[T], overlay: Callable[[], Mapping[str, Record]]) -> None:
        self._replica = replica
        self._schema = schema
        self._overlay = overlay

    def at(self, view: View, overlay: Mapping[str, Record]) -> Frozen:
        """The place to ask in a transaction."""
        return Frozen(self._replica, view, overlay)

    def rows(self, names: Names) -> Iterator[Rows]:
        """All documents, of which these fields are read."""
        self._replica.check_open()
        return self._replica.read(scan, Reader(names, self._schema.version), self._overlay())

    def find(self, asked: Question, at: Frozen | None = None, records: Iterable[Set] = ()) -> Found[T]:
        """As `Store.find`.

        :param at: where to ask; None: the present.
        :param records: all documents there.
        """
        matches, explain = self.matches(asked, at, records)
        found = decoded(self._schema, matches)
        found.explain = explain
        return found

    def matches(
        self, asked: Question, at: Frozen | None = None, records: Iterable[Set] = ()
    ) -> tuple[Iterable[tuple[Set, Document | None]], str]:
        """Likewise as records, each with its document if that was read; and what was used, as of `Found.explain`. To be
        iterated once."""
        first = partial(self._first, asked) if at is None and asked.last is not None and not asked.order else None
        answer = self._from_indexes(partial(self._find, asked), at, first)
        if answer is None:
            matches = asked.matches(self._all(asked.names, at, records), self._schema.current)
            return matches, SCAN + self._replica.read(partial(_without_memory, asked))
        return answer.value, answer.explain

    def count(self, condition: Condition, at: Frozen | None = None, records: Iterable[Set] = ()) -> int:
        """As `Store.count`; parameters as of `find`."""
        answer = self._from_indexes(partial(self._count, condition), at)
        if answer is not None:
            return answer.value
        return count_of(condition, self._all(names_of(paths_of(condition)), at, records), self._schema.current)

    def group(self, asked: Grouping, at: Frozen | None = None, records: Iterable[Set] = ()) -> list[Group]:
        """As `Store.group`; parameters as of `find`."""
        answer = self._from_indexes(partial(self._group, asked), at)
        if answer is not None:
            return answer.value
        return groups_of(asked, self._all(asked.names, at, records), self._schema.current)

    def _all(self, names: Names, at: Frozen | None, records: Iterable[Set]) -> Iterable[Rows]:
        return self.rows(names) if at is None else unread(records)

    def index(self, path: Path, at: Frozen | None = None) -> None:
        """Make the index of a path, unless it is there. Errors as of `Store.find`.

        :param at: where to ask; what was collected there is no error, and there is no index then.
        """
        read = self._replica.read if at is None else at.read

        def begin(state: State) -> tuple[Indexes, Building, Iterator[Rows]] | None:
            indexes = self._indexes(state)
            if indexes.use(path) is not None:
                return None
            return indexes, indexes.begin(), scan(state, Reader(names_of([path]), self._schema.version))

        begun = read(begin)
        if begun is None:
            return
        indexes, building, found = begun
        try:
            index = Index(path, entries_of(path, found, self._schema.current))
        except RetryError:
            if at is None:
                raise
            return

        def end(state: State) -> None:
            if state.indexes is indexes:
                state.ask(lambda state: indexes.add(index, building))

        read(end)

    def _indexes(self, state: State) -> Indexes:
        indexes = state.indexes
        if indexes is None:
            indexes = state.indexes = Indexes(self._schema.current)
        return indexes

    def _first(self, asked: Question, missing: _Missing) -> _Answer[list[tuple[Set, Document | None]]] | None:
        """The answer to a question with a limit from the first documents, None if it takes more of them. Such questions
        together read no more documents than the index would have."""
        scanned = missing.indexes.scanned
        if scanned[missing.path] and scanned[missing.path] + _FIRST > missing.documents:
            return None
        read = 0

        def rows() -> Iterator[Rows]:
            nonlocal read
            for some in self.rows(asked.names):
                if read >= _FIRST:
                    raise _TooMany
                read += len(some.ids) + len(some.others)
                yield some

        try:
            found = list(asked.matches(rows(), self._schema.current))
        except _TooMany:
            return None
        finally:
            scanned[missing.path] += read
        return _Answer(found, SCAN if len(found) != asked.limit else f"the first {read} documents were read")

    def _from_indexes(
        self,
        answer: Callable[[_Asking], _Answer[A] | _Missing | None],
        at: Frozen | None,
        otherwise: Callable[[_Missing], _Answer[A] | None] | None = None,
    ) -> _Answer[A] | None:
        """What the indexes answer, None if they cannot. Makes one of them at the most.

        :param otherwise: is tried before that.
        """

        def ask(state: State) -> _Answer[A] | _Missing | None:
            overlay = self._overlay() if at is None else at.overlay()
            if overlay is None:
                return None
            indexes = self._indexes(state)
            indexes.update(state)
            return answer(_Asking(state, indexes, overlay, self._schema.version))

        if at is None:
            self._replica.check_open()
        read = self._replica.read if at is None else at.read
        for is_second in (False, True):
            found = read(lambda state: state.ask(ask))
            if not isinstance(found, _Missing):
                return found
            if not is_second:
                if otherwise is not None and (early := otherwise(found)) is not None:
                    return early
                self.index(found.path, at=at)
        return None

    # -- under the lock

    def _find(self, asked: Question, asking: _Asking) -> _Answer[list[tuple[Set, Document | None]]] | _Missing | None:
        ways = accesses(asked.condition)
        read = self._schema.current
        candidates = asking.best(ways)
        if candidates is not None and (candidates.size <= asking.most or (asked.last is not None and not asked.order)):
            try:
                found = list(asked.matches(asking.rows(candidates.ids(), asked.names, asked.last), read))
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
            # Unread: rows are in order of id, if some of their documents are read and some are not.
            rows = asking.rows(index.ordered(is_descending), None, asked.last)
            found = list(asked._replace(order=()).matches(rows, read))
        except _TooMany:
            return None
        return _Answer(found, f"index on {path}, in its order")

    def _count(self, condition: Condition, asking: _Asking) -> _Answer[int] | _Missing | None:
        ways = accesses(condition)
        if not asking.overlay and (count := counted(condition, asking.indexes.by_path)) is not None:
            return _Answer(count, "")
        candidates = asking.best(ways)
        if candidates is not None and candidates.size <= asking.most:
            found = asking.rows(candidates.ids(), names_of(paths_of(condition)))
            return _Answer(count_of(condition, found, self._schema.current), "")
        return asking.missing(wanted(ways))

    def _group(self, asked: Grouping, asking: _Asking) -> _Answer[list[Group]] | _Missing | None:
        ways = accesses(asked.condition)
        if asked.condition == EVERYTHING and not asking.overlay:
            index = asking.use(asked.path)
            return asking.missing([asked.path]) if index is None else _Answer(groups(index.counts()), "")
        candidates = asking.best(ways)
        if candidates is not None and candidates.size <= asking.most:
            found = asking.rows(candidates.ids(), asked.names)
            return _Answer(groups_of(asked, found, self._schema.current), "")
        return asking.missing(wanted(ways))


class _Asking:
    """A state with its indexes, while a question is answered.

    :ivar most: how many documents are looked up at the most.
    :ivar version: of the schema; None: any.
    """

    def __init__(
        self, state: State, indexes: Indexes, overlay: Mapping[str, Record | None], version: int | None
    ) -> None:
        self.state = state
        self.version = version
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
        path = next(filter(self.indexes.wants, paths), None)
        state = self.state
        documents = state.manifest.documents + len(state.winners) + (0 if state.lines is None else len(state.lines))
        return None if path is None else _Missing(path, self.indexes, documents)

    def rows(self, ids: Iterable[str], names: Names, enough: int | None = None) -> Iterator[Rows]:
        """The documents that have these ids.

        :param enough: about how many of them may be enough.
        :raises _TooMany: more than `most`.
        """
        overlay, get, reader = self.overlay, self.state.get, Reader(names, self.version)
        left, waiting = self.most, iter(ids)
        while some := list(islice(waiting, _AT_ONCE if enough is None else min(max(enough, 1), _AT_ONCE))):
            left -= len(some)
            if left < 0:
                raise _TooMany
            found = [overlay[id] if id in overlay else get(id) for id in some] if overlay else map(get, some)
            yield reader.records(list(filter(None, found)))


# -- without an index


def _without_memory(asked: Question, state: State) -> str:
    """What `explain` adds if an index would have helped, and there is no memory for it."""
    indexes = state.indexes
    if indexes is None:
        return ""
    paths = [*wanted(accesses(asked.condition)), *(order.path for order in asked.order if asked.last is not None)]
    path = next(filter(indexes.is_dropped, paths), None)
    limit = f"all indexes together take at most {INDEX_BYTES_MAX >> 20} MiB"
    return "" if path is None else f"; there is no memory for an index on {path}: {limit}"


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
