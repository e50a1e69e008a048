"""Changes of a store as messages of the State Protocol, and what messages say of a store.

A document is a value: its store's name is the ``type``, its id the ``key``. Every commit that is taken in as a change
is named at least once, by its ``txid`` (``AGENT:CLOCK``), so that a client that wrote can wait for it; not one that a
snapshot or a difference has taken in. A change carries the txid of the commit
that made the document what it is now. A commit that left no change behind, because it lost or others followed at
once, is named by the deletion of a key that never exists, of the type ``opslog:commit``, which clients pass over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import orjson

from opslog.format.commits import Record, Set, Stamp
from opslog.replica.feed import Changes, Effect
from opslog.server.protocol import json_mode

# The type of messages that only name a commit. No store can be called so.
COMMIT = "opslog:commit"

_START = b'{"headers":{"control":"snapshot-start"}},'
_END = b'{"headers":{"control":"snapshot-end"}},'


def txid(stamp: Stamp) -> str:
    """How a commit is named in a feed."""
    return f"{stamp.agent}:{stamp.clock}"


class Messages:
    """Makes the messages of one store. Each is its JSON text and a comma, as streams keep it.

    :param name: of the store.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._type = orjson.dumps(name)
        self._commit_type = orjson.dumps(COMMIT)

    def changes(self, found: Changes[Any]) -> Iterator[bytes]:
        """What changed between two tokens, and which commits did it."""
        made = {effect.stamp: effect for effect in found.commits}
        undone = {id: effect for effect in found.commits if effect.op == "undo" and effect.won for id in effect.ids}
        named: set[Stamp] = set()
        for id, record, before in found.versions():
            by = undone.get(id) if record is None else made.get(record.stamp, undone.get(id))
            old = bytes(before.data) if isinstance(before, Set) else None
            new = bytes(record.data) if isinstance(record, Set) else None
            if by is None and _is_same(record, before):
                continue  # only commits that lost have written it
            if old is None and new is None:
                continue  # made and deleted in between
            yield from self._written(id, old, new, by)
            if by is not None:
                named.add(by.stamp)
        for effect in found.commits:
            if effect.stamp not in named:
                key = orjson.dumps(txid(effect.stamp))
                yield _line(self._commit_type, key, "delete", b"null", effect)

    def snapshot(self, documents: Iterable[tuple[str, bytes]], *, is_first: bool) -> Iterator[bytes]:
        """All documents there are, by id and JSON text.

        :param is_first: nobody has any of them yet. Otherwise they come as updates: nothing changes for readers who
            have them, and those who begin here take an update of what they do not have for an insert.
        """
        yield _START
        for id, text in documents:
            yield self._message(id, "insert" if is_first else "update", text)
        yield _END

    def difference(self, known: Mapping[str, bytes], records: Iterable[tuple[str, Record | None]]) -> Iterator[bytes]:
        """What leads from the documents that readers have to those there are.

        :param records: of all documents there are.
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
        """Apply messages to the documents that were known before them."""
        for message in _messages.decode(json_mode.array(list(records))):
            if message.type != self._name:
                continue
            if message.headers.operation == "delete":
                known.pop(message.key, None)
            else:
                known[message.key] = bytes(message.value)

    def _written(self, id: str, old: bytes | None, new: bytes | None, by: Effect | None = None) -> Iterator[bytes]:
        """What makes one document of another; None stands for none."""
        if new is None:
            yield self._message(id, "delete", b"null", by)
        elif old is None:
            yield self._message(id, "insert", new, by)
        elif _fields(old).keys() <= _fields(new).keys():
            yield self._message(id, "update", new, by)
        else:
            # StreamDB merges an update into what it has: a field that is gone would stay.
            yield self._message(id, "delete", b"null", by)
            yield self._message(id, "insert", new, by)

    def _message(self, id: str, operation: str, text: bytes, by: Effect | None = None) -> bytes:
        return _line(self._type, orjson.dumps(id), operation, text, by)


def _is_same(record: Record | None, before: Record | None) -> bool:
    return record is before or (record is not None and before is not None and record.stamp == before.stamp)


def chunks(messages: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Messages together, in chunks of about so many bytes."""
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
