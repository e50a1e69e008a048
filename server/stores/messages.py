"""Changes of a store as messages of the State Protocol, and back from messages to documents.

A document is a value: its ``type`` is the name of its store, its ``key`` is its id. A change carries the ``txid``
(``AGENT:CLOCK``) of the commit that made the document what it is now. So a client that wrote can wait for its commit. A
commit may leave no change, because it lost or because others followed at once. Then a message of the type
``opslog:commit`` names it: the deletion of a key that never exists, which clients ignore. So every commit that is read
as a change is named at least once. A commit that came with a snapshot or a difference is not named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import orjson

from opslog.format.commits import Record, Set, Stamp
from opslog.replica.feed import Changes, Effect
from opslog.server.protocol import json_mode

# The type of messages that only name a commit. No store can have this name.
COMMIT = "opslog:commit"

_START = b'{"headers":{"control":"snapshot-start"}},'
_END = b'{"headers":{"control":"snapshot-end"}},'


def txid(stamp: Stamp) -> str:
    """The name of a commit in a feed."""
    return f"{stamp.agent}:{stamp.clock}"


class Messages:
    """Makes the messages of one store. Each message is its JSON text and a comma, as streams store it.

    :param name: the name of the store.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._type = orjson.dumps(name)
        self._commit_type = orjson.dumps(COMMIT)

    def changes(self, found: Changes[Any]) -> Iterator[bytes]:
        """Messages for the changes between two tokens, and for the commits that made them."""
        made = {effect.stamp: effect for effect in found.commits}
        undone = {id: effect for effect in found.commits if effect.op == "undo" and effect.won for id in effect.ids}
        named: set[Stamp] = set()
        for id, record, before in found.versions():
            by = undone.get(id) if record is None else made.get(record.stamp, undone.get(id))
            old = bytes(before.data) if isinstance(before, Set) else None
            new = bytes(record.data) if isinstance(record, Set) else None
            if by is None and _is_same(record, before):
                continue  # only commits that lost have written this document
            if old is None and new is None:
                continue  # created and deleted between the tokens
            yield from self._written(id, old, new, by)
            if by is not None:
                named.add(by.stamp)
        for effect in found.commits:
            if effect.stamp not in named:
                key = orjson.dumps(txid(effect.stamp))
                yield _line(self._commit_type, key, "delete", b"null", effect)

    def snapshot(self, documents: Iterable[tuple[str, bytes]], *, is_first: bool) -> Iterator[bytes]:
        """Messages for all documents.

        :param documents: the id and the JSON text of each.
        :param is_first: whether no reader has any of them yet. If False, the documents come as updates. These change
            nothing for readers that have the documents, and readers that begin here take the update of an unknown
            document as an insert.
        """
        yield _START
        for id, text in documents:
            yield self._message(id, "insert" if is_first else "update", text)
        yield _END

    def difference(self, known: Mapping[str, bytes], records: Iterable[tuple[str, Record | None]]) -> Iterator[bytes]:
        """Messages that turn the documents that readers have into those of the store.

        :param records: the records of all documents of the store.
        """
        gone = set(known)
        for id, record in records:
            if isinstance(record, Set):
                gone.discard(id)
                text = bytes(record.data)
                if known.get(id) != text:
                    yield from self._written(id, known.get(id), text)
        for id in sorted(gone):
            yield self._message(id, "delete", b"null")

    def read(self, known: dict[str, bytes], records: Iterable[bytes]) -> None:
        """Apply messages to the documents `known` before them, in place."""
        for message in _messages.decode(json_mode.array(list(records))):
            if message.type != self._name:
                continue
            if message.headers.operation == "delete":
                known.pop(message.key, None)
            else:
                known[message.key] = bytes(message.value)

    def _written(self, id: str, old: bytes | None, new: bytes | None, by: Effect | None = None) -> Iterator[bytes]:
        """Messages that turn one document into another; None means that there is no document."""
        if new is None:
            yield self._message(id, "delete", b"null", by)
        elif old is None:
            yield self._message(id, "insert", new, by)
        elif _fields(old).keys() <= _fields(new).keys():
            yield self._message(id, "update", new, by)
        else:
            # StreamDB merges an update into the document that it has, so a removed field would stay.
            yield self._message(id, "delete", b"null", by)
            yield self._message(id, "insert", new, by)

    def _message(self, id: str, operation: str, text: bytes, by: Effect | None = None) -> bytes:
        return _line(self._type, orjson.dumps(id), operation, text, by)


def _is_same(record: Record | None, before: Record | None) -> bool:
    return record is before or (record is not None and before is not None and record.stamp == before.stamp)


def chunks(messages: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Join messages into chunks of about `size` bytes."""
    some: list[bytes] = []
    length = 0
    for message in messages:
        some.append(message)
        length += len(message)
        if length >= size:
            yield b"".join(some)
            some, length = [], 0
    if some:
        yield b"".join(some)


def _line(kind: bytes, key: bytes, operation: str, value: bytes, by: Effect | None) -> bytes:
    headers = {"operation": operation}
    if by is not None:
        headers |= {"txid": txid(by.stamp), "timestamp": by.ts}
    return b'{"type":%b,"key":%b,"value":%b,"headers":%b},' % (kind, key, value, orjson.dumps(headers))


class _Headers(msgspec.Struct):
    operation: str = ""


class _Message(msgspec.Struct):
    type: str = ""
    key: str = ""
    value: msgspec.Raw = msgspec.Raw(b"null")
    headers: _Headers = msgspec.field(default_factory=_Headers)


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_messages = msgspec.json.Decoder(list[_Message])
