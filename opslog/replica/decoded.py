"""A cache of decoded documents, so that a document that is read often is not decoded each time.

A caller gets a copy of its own. The cache remembers which values of a document are objects and arrays. So a copy costs
one `copy` call for each of these and no walk over the other values: a third of what decoding costs.

A document is kept with the record that won in the tail when it was read, or None if there was none. It is valid as long
as the same record wins. So writes, undos and the commits of others need not notify the cache. Code that loads another
state clears it (`clear`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from opslog.format.commits import Record
from opslog.kernel import copy as copy_plain

# How much memory the cache of a store may take, by its own estimate, unless the caller says otherwise.
# A larger cache gains less and costs more: a document that is not in the processor's caches takes as long to copy as to
# decode, and documents that are never read again take the place of others.
CACHE_BYTES = 8 * 1024 * 1024

# About how much memory each value takes beside its text, each object or array, and each document with its entry here.
_VALUE_BYTES, _CONTAINER_BYTES, _DOCUMENT_BYTES = 50, 250, 500

# When the cache is full, it remembers the ids of some documents that were read but are not kept: a sixteenth as many as
# it keeps. It keeps a document only if it is read again while its id is remembered. So reading very many documents once
# each costs hardly more than without a cache. If more documents than fit are read equally often, few replace another.
_REMEMBERED = 16
# A document that takes more than a sixteenth of the cache is not kept.
_LARGEST = 16

# The objects and arrays in an object or an array: the name or number, the value, and the objects and arrays in it.
Nested = tuple[tuple[Any, Any, "Nested"], ...]


# The twin of `find_document` in opslog/kernel/_kernel.c takes `winner` and `document` by their positions in the tuple.
class Decoded(NamedTuple):
    """A document in the cache.

    :ivar winner: the record that wins in the tail; None: there is none, and the snapshot has the document.
    :ivar document: the decoded JSON. No caller ever gets this object itself.
    :ivar size: about how much memory it takes.
    """

    winner: Record | None
    document: Any
    nested: Nested
    size: int

    def copy(self) -> Any:
        """A copy of the document, for the caller."""
        if copy_plain is not None:
            return copy_plain(self.document)
        own = self.document.copy()
        for place, value, inner in self.nested:
            own[place] = _copy(value, inner) if inner else value.copy()
        return own


class DecodedDocuments:
    """The documents of one store. Changed by one thread at a time; `by_id` may be read by any.

    :param limit: how many bytes they may take, by their own estimate; 0: none is kept.
    :ivar by_id: the documents, in the order in which they were kept.
    :ivar bytes: about how many bytes they take.
    :ivar read: the ids that were read recently and are not kept, at most `remembered`. None: there is room, and every
        document that is read is kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.by_id: OrderedDict[str, Decoded] = OrderedDict()
        self.remembered = 0
        self.read: set[str] | None = None if limit else set()

    def find(self, id: str, winner: Record | None) -> Any | None:
        """A copy of a document that was kept with this winner; None if there is none."""
        known = self.by_id.get(id)
        return None if known is None or known.winner is not winner else known.copy()

    def admits(self, id: str) -> bool:
        """Whether to keep a document that was read and is not in the cache. May be called by any thread."""
        read = self.read
        if read is None or id in read:
            return True
        if self.limit:
            if len(read) >= self.remembered:
                read.clear()
            read.add(id)
        return False

    def keep(self, id: str, winner: Record | None, document: Any, text_bytes: int) -> None:
        """Keep a document. The caller must not use this object any more.

        :param document: plain JSON.
        :param text_bytes: its length as JSON text.
        """
        nested, values, containers = _nested(document)
        size = _DOCUMENT_BYTES + text_bytes + _VALUE_BYTES * values + _CONTAINER_BYTES * containers
        if size > self.limit // _LARGEST:
            return
        self._remove(id)
        while self.by_id and self.bytes + size > self.limit:  # an interrupt may have left `bytes` too large
            self._remove(next(iter(self.by_id)))
        self.bytes += size
        self.by_id[id] = Decoded(winner, document, nested, size)
        if self.bytes > self.limit - self.limit // _LARGEST:
            self.remembered = 1 + len(self.by_id) // _REMEMBERED
            if self.read is None:
                self.read = set()

    def clear(self) -> None:
        """Drop all documents, one by one: freeing very many at once would block all threads."""
        while self.by_id:
            self.bytes -= self.by_id.popitem()[1].size
        self.bytes = 0
        if self.limit:
            self.read = None

    def _remove(self, id: str) -> None:
        known = self.by_id.pop(id, None)
        if known is not None:
            self.bytes -= known.size


def _copy(value: Any, nested: Nested) -> Any:
    own = value.copy()
    for place, item, inner in nested:
        own[place] = _copy(item, inner) if inner else item.copy()
    return own


def _nested(value: Any) -> tuple[Nested, int, int]:
    """The objects and arrays in an object or an array; the number of values in all of them; and how many they are."""
    nested, values, containers = [], len(value), 0
    for place, item in value.items() if type(value) is dict else enumerate(value):
        if type(item) is dict or type(item) is list:
            inner, inner_values, inner_containers = _nested(item)
            nested.append((place, item, inner))
            values += inner_values
            containers += 1 + inner_containers
    return tuple(nested), values, containers
