"""Documents that were read lately, kept decoded, so that a document which is read often is not decoded each time.

What is handed out is a copy, the caller's own. Where a document lies is remembered once (which of its values are
objects and arrays), so a copy costs one `copy` for each of those and no walk over the other values: a third of what
decoding costs.

A document is kept together with the record that won in the tail when it was read, None where there was none: it is
what counts as long as that very record still wins. So a write, an undo, or what others wrote needs no word to anybody
here. Whoever loads another state lets go of everything (`clear`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from opslog.format.commits import Record
from opslog.kernel import copy as copy_plain

# How much memory the documents of a store take, by their own estimate, unless the caller says otherwise.
# Larger, it gains less and costs more: what does not fit into the caches of the processor takes as long to copy as to
# decode, and what is never read again takes the place of what is.
CACHE_BYTES = 8 * 1024 * 1024

# About how much each value takes beside its text, each object or array, and each document with its entry here.
_VALUE_BYTES, _CONTAINER_BYTES, _DOCUMENT_BYTES = 50, 250, 500

# Once all of it is in use, so many ids are remembered of those that are read, as a part of the documents that are kept;
# a document is kept when it is read while its id is among them. To read very many once each costs hardly more than
# without; and of those that are all read as often, more than fit, few take the place of another.
_REMEMBERED = 16
# A document that takes more than this part of all of it is not kept.
_LARGEST = 16

# The values of an object or an array that are objects or arrays: where, which, and theirs.
Nested = tuple[tuple[Any, Any, "Nested"], ...]


# A tuple, as `opslog.kernel.find_document` takes it.
class Decoded(NamedTuple):
    """A document.

    :ivar winner: the record that wins in the tail; None: there is none, and the snapshot has the document.
    :ivar document: as JSON; nobody but this module has it.
    :ivar size: about how much memory it takes.
    """

    winner: Record | None
    document: Any
    nested: Nested
    size: int

    def copy(self) -> Any:
        """The document, the caller's own."""
        if copy_plain is not None:
            return copy_plain(self.document)
        own = self.document.copy()
        for place, value, inner in self.nested:
            own[place] = _copy(value, inner) if inner else value.copy()
        return own


class DecodedDocuments:
    """The documents of one store. Changed by one thread at a time; `by_id` may be read by any.

    :param limit: how many bytes they may take, by their own estimate; 0: none is kept.
    :ivar by_id: the documents, the first one to be kept first.
    :ivar bytes: about how many they take.
    :ivar read: the ids that were read lately and are not kept, at most `remembered`. None: there is room, and all that
        are read are kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.by_id: OrderedDict[str, Decoded] = OrderedDict()
        self.remembered = 0
        self.read: set[str] | None = None if limit else set()

    def find(self, id: str, winner: Record | None) -> Any | None:
        """A copy of a document that is kept, and was kept with this winner."""
        known = self.by_id.get(id)
        return None if known is None or known.winner is not winner else known.copy()

    def admits(self, id: str) -> bool:
        """Whether a document that is read, and is not here, is to be kept. May be called by any thread."""
        read = self.read
        if read is None or id in read:
            return True
        if self.limit:
            if len(read) >= self.remembered:
                read.clear()
            read.add(id)
        return False

    def keep(self, id: str, winner: Record | None, document: Any, text_bytes: int) -> None:
        """Keep a document, which nobody else may have from now on.

        :param document: plain JSON.
        :param text_bytes: how long it is as JSON.
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
        """Let go of all of them, one by one: to free very many at once would hold up all threads."""
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
    """Of an object or an array: those in it, how many values there are in all of them, and how many they are."""
    nested, values, containers = [], len(value), 0
    for place, item in value.items() if type(value) is dict else enumerate(value):
        if type(item) is dict or type(item) is list:
            inner, inner_values, inner_containers = _nested(item)
            nested.append((place, item, inner))
            values += inner_values
            containers += 1 + inner_containers
    return tuple(nested), values, containers
