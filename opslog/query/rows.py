"""Rows: many documents of which only some fields are read, out of lines of records. Pure.

Decoding a whole document takes several times as long as reading the fields that a query needs. The kernel checks the
rest of each document all the same. It leaves a line that it cannot read exactly to Python, which raises the error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress, repeat
from typing import Any, Protocol

from opslog.errors import CorruptError
from opslog.format.commits import Record, Set, decode_records
from opslog.format.documents import Document
from opslog.format.exact import load_documents
from opslog.kernel import fields
from opslog.query.values import MISSING

# The names of the top-level fields that a query needs. None: it needs more than that.
Names = tuple[str, ...] | None


class Rows:
    """Some records. Each is either in `ids` or in `others`.

    :ivar ids: the documents whose fields were read, in order.
    :ivar columns: for each name, the values of the field in these documents, or `MISSING`. Never modify them.
    :ivar others: the other records in order of id, deletes included. Nothing of their documents was read.
    """

    def __init__(
        self,
        ids: Sequence[str],
        columns: Mapping[str, Sequence[Any]],
        others: Sequence[Record],
        source: _Source,
        numbers: Sequence[int],
    ) -> None:
        self.ids = ids
        self.columns = columns
        self.others = others
        self._source = source
        # For each of `ids`, its number in the source.
        self._numbers = numbers

    @classmethod
    def unread(cls, records: Sequence[Record]) -> Rows:
        """Rows for records whose fields are not read."""
        return cls((), {}, records, _Decoded([], []), ())

    @property
    def last(self) -> str:
        """The greatest id."""
        return max([*self.ids[-1:], *(record.id for record in self.others[-1:])])

    def sets(self, places: Iterable[int]) -> list[Set]:
        """The records of the documents at these places in `ids`."""
        return self._source.sets([self._numbers[place] for place in places])

    def matches(self, places: Iterable[int]) -> Iterable[tuple[Set, Document | None]]:
        """These records with their documents; None: the document was not decoded. The documents belong to the caller,
        so ask for each only once."""
        numbers = [self._numbers[place] for place in places]
        sets = self._source.sets(numbers)
        return zip(sets, self._source.documents(numbers, sets), strict=True)

    def without(self, ids: Collection[str], others: Sequence[Record]) -> Rows:
        """A copy without the documents of these ids, and with `others` in place of its own."""
        kept = [id not in ids for id in self.ids]
        columns = {name: list(compress(column, kept)) for name, column in self.columns.items()}
        numbers = list(compress(self._numbers, kept))
        return Rows(list(compress(self.ids, kept)), columns, others, self._source, numbers)


def sets_of(records: Iterable[Record]) -> Iterator[Set]:
    """The records that are sets, without deletes."""
    return (record for record in records if isinstance(record, Set))


class Reader:
    """Reads the fields that a query needs out of records.

    :param names: the fields, each once.
    :param version: a document of another schema version goes to `Rows.others`, because `migrate` may change it. None:
        documents of all versions are read here.
    """

    def __init__(self, names: Names, version: int | None) -> None:
        self._names = names
        self._version = version

    def lines(self, text: bytes, path: str, offset: int) -> Rows:
        """Read whole lines of records.

        :param path: the file that they are from; messages name it.
        :param offset: where they begin in it, in bytes.
        :raises CorruptError: a line is not a record.
        """
        names = self._names
        found = None if fields is None or names is None else fields(text, names, self._version or 0, MISSING)
        if found is None or names is None:
            return self.records(decode_records(text, path, offset))
        ids, columns, left = found
        lines = _Lines(text, path, offset)
        numbers = sorted({*range(len(ids) + len(left))}.difference(left)) if left else range(len(ids))
        return Rows(ids, dict(zip(names, columns, strict=True)), lines.records(left), lines, numbers)

    def records(self, records: Sequence[Record]) -> Rows:
        """Read records that are decoded already."""
        names, version = self._names, self._version
        if names is None:
            return Rows.unread(records)
        sets = [record for record in records if type(record) is Set and version in (None, record.v)]
        documents = load_documents([record.data for record in sets])
        if documents is None:
            return Rows.unread(records)
        others: Sequence[Record] = ()
        if len(sets) < len(records):
            others = [record for record in records if type(record) is not Set or version not in (None, record.v)]
        columns = {name: [document.get(name, MISSING) for document in documents] for name in names}
        return Rows([record.id for record in sets], columns, others, _Decoded(sets, documents), range(len(sets)))


class _Source(Protocol):
    """Has the records of rows, by their numbers."""

    def sets(self, numbers: Sequence[int]) -> list[Set]: ...

    def documents(self, numbers: Sequence[int], sets: Sequence[Set]) -> Iterable[Document | None]:
        """
        :param sets: the records with these numbers.
        """


class _Lines:
    """Lines, of which only the records that are wanted will be decoded."""

    def __init__(self, text: bytes, path: str, offset: int) -> None:
        self._place = text, path, offset
        self._split: list[bytes] | None = None

    def records(self, numbers: Sequence[int]) -> list[Record]:
        """:raises CorruptError: a line is not a record."""
        if not numbers:
            return []
        text, path, offset = self._place
        if self._split is None:
            self._split = text.split(b"\n")
        lines = self._split
        try:
            return decode_records(b"".join([b"%b\n" % lines[number] for number in numbers]), path, offset)
        except CorruptError:
            decode_records(text, path, offset)  # raises an error with the right offset
            raise

    def sets(self, numbers: Sequence[int]) -> list[Set]:
        return self.records(numbers)  # type: ignore[return-value]  # the lines whose fields were read are sets

    def documents(self, numbers: Sequence[int], sets: Sequence[Set]) -> Iterable[Document | None]:
        return load_documents([record.data for record in sets]) or repeat(None, len(sets))


class _Decoded:
    """Records with their documents."""

    def __init__(self, sets: Sequence[Set], documents: Sequence[Document]) -> None:
        self._sets = sets
        self._documents = documents

    def sets(self, numbers: Sequence[int]) -> list[Set]:
        return [self._sets[number] for number in numbers]

    def documents(self, numbers: Sequence[int], sets: Sequence[Set]) -> Iterable[Document | None]:
        return [self._documents[number] for number in numbers]
