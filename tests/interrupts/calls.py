"""The calls that are interrupted: the preparation of each, and the states allowed after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import opslog
from opslog.backends import open_backend
from opslog.bulk.copying import copy
from opslog.bulk.ingest import ingest, ingest_archives
from opslog.importers import ImportedCommit, ImportedOp
from opslog.verify.verify import verify
from tests.interrupts.stage import Documents, Stage

States = list[Documents]


def nothing(stage: Stage) -> None:
    """No preparation."""


def unchanged(before: Documents) -> States:
    return [before]


def sound(stage: Stage) -> list[str]:
    """There is nothing else to check."""
    return []


class Call(NamedTuple):
    """One call: a row of the table.

    :ivar possible: given the documents before the call, as a fresh reader finds them, the states that they may be in
        afterwards. In the first state nothing has happened, in the last state everything has. A call that returned must
        have led to the last one.
    :ivar prepare: prepares a new stage for the call.
    :ivar is_write: whether the store may have to be reopened after it.
    :ivar has_buffered: whether its commits were acknowledged earlier, by calls that wrote into a buffer.
    :ivar closes: whether the store is closed afterwards.
    :ivar also: finds problems that only this call can leave.
    """

    name: str
    run: Callable[[Stage], object]
    possible: Callable[[Documents], States] = unchanged
    prepare: Callable[[Stage], None] = nothing
    is_write: bool = False
    has_buffered: bool = False
    closes: bool = False
    also: Callable[[Stage], list[str]] = sound


class Refused(Exception):
    """Raised to end a batch in these tests."""


# Writing


def _batch(stage: Stage) -> None:
    store = stage.store
    with store.batch():
        store["x"] = {"v": 3}
        store["new"] = {"v": 3}
        del store["y"]


def _nested(stage: Stage) -> None:
    store = stage.store
    with store.batch():
        store["x"] = {"v": 3}
        with store.batch():
            store["new"] = {"v": 3}
        with suppress(Refused), store.batch():
            store["never"] = {}
            raise Refused


def _failing_batch(stage: Stage) -> None:
    store = stage.store
    with suppress(Refused), store.batch():
        store["never"] = {}
        del store["x"]
        raise Refused


def _without(documents: Documents, *ids: str) -> Documents:
    return {id: document for id, document in documents.items() if id not in ids}


def batched(stage: Stage) -> None:
    with stage.store.batch():
        stage.store["x"] = {"v": 7}
        stage.store["new"] = {"v": 7}
    stage.store.flush()


def sets(before: Documents) -> States:
    return [before, before | {"x": {"v": 3}}]


# Transactions


def _modified(documents: Documents, id: str) -> Documents:
    return documents | {id: {"v": documents[id]["v"] + 10}}


def _modify(stage: Stage) -> None:
    stage.store.modify("b-2", lambda document: {"v": (document or {"v": 0})["v"] + 10})


def _transact(stage: Stage) -> None:
    def move(transaction: opslog.Transaction[dict[str, int]]) -> None:
        transaction["x"] = {"v": 3}
        transaction["new"] = {"v": len(transaction.filter(lambda it: it["v"] == 3)) + 2}
        del transaction["y"]

    stage.store.transact(move)


def _in_block(stage: Stage) -> None:
    with stage.store.transaction() as transaction:
        transaction["x"] = {"v": transaction["b-3"]["v"] + 2}
        with stage.store.batch():
            stage.store["new"] = {"v": 3}


def guarded(stage: Stage) -> None:
    """A document that transactions have written, and nothing that is not read."""
    stage.store.create("guarded", {"v": 1})
    _refresh(stage)


def raced(stage: Stage) -> None:
    """Another agent's transaction that this agent has not read."""
    stage.other.create("raced", {"v": 1})
    stage.of_others.append(("transactions", stage.other.stats().clock))


# Others' writes


def _refresh(stage: Stage) -> None:
    stage.hand_out(stage.store.refresh())


def _watch(count: int) -> Callable[[Stage], None]:
    def run(stage: Stage) -> None:
        watching = stage.store.watch(poll_seconds=0.0)
        for commit in islice(watching, count):
            stage.hand_out([commit])
        watching.close()  # type: ignore[attr-defined]

    return run


def read_all(stage: Stage) -> None:
    _refresh(stage)


# Maintenance


def compacted(stage: Stage) -> None:
    """A compaction that has something to compact, and a snapshot to collect."""
    _refresh(stage)
    for number in range(4):
        stage.store["x"] = {"v": 10 + number}
    stage.store.compact()
    for number in range(4):
        stage.store["x"] = {"v": 20 + number}
    del stage.store["y"]
    stage.store.flush()


def _overtaken(stage: Stage) -> None:
    """Somebody else has compacted commits that "a" has not read, so "a" has to load again."""
    for number in range(4):
        stage.write_other(f"b-{number}")
    stage.other.compact()


def _archive(stage: Stage) -> None:
    stage.store.archive(lambda document: document["v"] == 1, "old")


def archived(before: Documents) -> States:
    return [before, {id: document for id, document in before.items() if document["v"] != 1}]


def _is_archived(stage: Stage) -> list[str]:
    """A document that left the store is in the archive."""
    with opslog.open(stage.url, read_only=True) as fresh:
        archived = fresh.load_archive("old") if "old" in fresh.archives() else {}
        gone = {"b-1", "b-2", "b-3"} - set(fresh) - set(archived)
    return [f"archived and in no archive: {sorted(gone)}"] if gone else []


# From outside

IMPORTED = [
    ImportedCommit("c", None, (ImportedOp("set", "c-1", {"v": 1}),), "c:1"),
    ImportedCommit("d", None, (ImportedOp("set", "d-1", {"v": 1}), ImportedOp("set", "d-2", {"v": 1})), "d:1"),
    ImportedCommit("c", None, (ImportedOp("set", "c-2", {"v": 1}),), "c:2"),
]


def _ingest(stage: Stage) -> None:
    backend = open_backend(stage.url)
    try:
        ingest(backend, IMPORTED)
    finally:
        backend.close()


def _ingested(before: Documents) -> States:
    first = before | {"c-1": {"v": 1}, "c-2": {"v": 1}}
    return [before, first, first | {"d-1": {"v": 1}, "d-2": {"v": 1}}]


def _names_are_free(stage: Stage) -> list[str]:
    for agent in ("c", "d"):
        stage.open(agent).close()
    return []


def _ingest_archives(stage: Stage) -> None:
    backend = open_backend(stage.url)
    try:
        ingest_archives(backend, [("old", "p", {"v": 1}), ("older", "q", {"v": 1})])
    finally:
        backend.close()


def _copy(stage: Stage) -> None:
    source, target = open_backend(stage.url, create=False), open_backend(stage.url_of("copy"))
    try:
        copy(source, target)
    finally:
        source.close()
        target.close()


def _can_be_copied(stage: Stage) -> list[str]:
    """Whatever an attempt has left, the next attempt can continue from it, if nothing was written meanwhile."""
    with opslog.open(stage.url_of("copy"), agent="late") as late:
        late["late"] = {"v": 1}
    return []


def _verify(repair: bool) -> Callable[[Stage], None]:
    def run(stage: Stage) -> None:
        backend = open_backend(stage.url, create=False)
        try:
            verify(backend, repair=repair)  # it reports what it could not read
        finally:
            backend.close()

    return run


# Life


def pending(stage: Stage) -> None:
    stage.store["p"] = {"v": 1}
    stage.store["q"] = {"v": 1}


def with_pending(before: Documents) -> States:
    first = before | {"p": {"v": 1}}
    return [before, first, first | {"q": {"v": 1}}]


def _open(stage: Stage, **options: object) -> None:
    stage.opened.append(opslog.open(stage.url, compact_after=None, **options))  # type: ignore[call-overload]


def _open_new(stage: Stage) -> None:
    stage.opened.append(opslog.open(stage.url_of("new"), agent="c", compact_after=None))


def _name_is_free(stage: Stage) -> list[str]:
    for store in stage.opened:
        store.close()
    stage.open("c").close()
    return []


def _new_is_free(stage: Stage) -> list[str]:
    for store in stage.opened:
        store.close()
    with opslog.open(stage.url_of("new"), agent="c") as store:
        store["c"] = {}
    return []


def _iterate(stage: Stage) -> Iterator[object]:
    yield list(stage.store)
    yield list(stage.store.values())
    yield stage.store.filter(lambda document: document["v"] == 1)


CALLS = [
    Call("set", lambda stage: stage.store.set("x", {"v": 3}), sets, is_write=True),
    Call(
        "delete",
        lambda stage: stage.store.delete("x"),
        lambda before: [before, _without(before, "x")],
        is_write=True,
    ),
    Call(
        "update",
        lambda stage: stage.store.update({"x": {"v": 3}, "new": {"v": 3}}),
        lambda before: [before, before | {"x": {"v": 3}, "new": {"v": 3}}],
        is_write=True,
    ),
    Call(
        "batch",
        _batch,
        lambda before: [before, _without(before, "y") | {"x": {"v": 3}, "new": {"v": 3}}],
        is_write=True,
    ),
    Call(
        "nested batch",
        _nested,
        lambda before: [before, before | {"x": {"v": 3}, "new": {"v": 3}}],
        is_write=True,
    ),
    Call("batch that fails", _failing_batch, is_write=True),
    Call(
        "clear",
        lambda stage: stage.store.clear(),
        lambda before: [before, _without(before, "x", "y", "b-1")],
        is_write=True,
    ),
    Call(
        "undo",
        lambda stage: stage.store.undo(),
        lambda before: [before, before | {"y": {"v": 1}}],
        is_write=True,
    ),
    Call(
        "undo a batch",
        lambda stage: stage.store.undo(),
        lambda before: [before, _without(before, "new") | {"x": {"v": 2}}],
        prepare=batched,
        is_write=True,
    ),
    Call(
        "create",
        lambda stage: stage.store.create("new", {"v": 3}),
        lambda before: [before, before | {"new": {"v": 3}}],
        prepare=raced,
        is_write=True,
    ),
    Call("modify", _modify, lambda before: [before, _modified(before, "b-2")], is_write=True),
    Call(
        "transact",
        _transact,
        lambda before: [before, _without(before, "y") | {"x": {"v": 3}, "new": {"v": 3}}],
        is_write=True,
    ),
    Call(
        "transaction",
        _in_block,
        lambda before: [before, before | {"x": {"v": 3}, "new": {"v": 3}}],
        prepare=raced,
        is_write=True,
    ),
    Call(
        "set a guarded document",
        lambda stage: stage.store.set("guarded", {"v": 3}),
        lambda before: [before, before | {"guarded": {"v": 3}}],
        prepare=guarded,
        is_write=True,
    ),
    Call(
        "undo a transaction",
        lambda stage: stage.store.undo(),
        lambda before: [before, _without(before, "guarded")],
        prepare=guarded,
        is_write=True,
    ),
    Call("refresh", _refresh),
    Call("refresh with nothing new", _refresh, prepare=read_all),
    Call("refresh after a compaction", _refresh, prepare=_overtaken),
    Call("watch, left at 1", _watch(1)),
    Call("watch, left at 2", _watch(2)),
    Call("get", lambda stage: [stage.store.get("x"), "y" in stage.store, len(stage.store)]),
    Call("iterate", lambda stage: list(_iterate(stage))),
    Call("iterate over a snapshot", lambda stage: list(_iterate(stage)), prepare=compacted),
    Call("history", lambda stage: stage.store.history("x"), is_write=True),
    Call("ops", lambda stage: list(stage.store.ops()), is_write=True),
    Call("stats", lambda stage: stage.store.stats()),
    Call("archive", _archive, archived, is_write=True, also=_is_archived),
    Call("load_archive", lambda stage: stage.store.load_archive("old"), prepare=_archive),
    Call("compact", lambda stage: stage.store.compact(), prepare=read_all, is_write=True),
    Call("compact with garbage", lambda stage: stage.store.compact(), prepare=compacted, is_write=True),
    Call("compact all", lambda stage: stage.store.compact(full=True), prepare=compacted, is_write=True),
    Call(
        "flush",
        lambda stage: stage.store.flush(),
        with_pending,
        prepare=pending,
        is_write=True,
        has_buffered=True,
    ),
    Call(
        "close",
        lambda stage: stage.store.close(),
        with_pending,
        prepare=pending,
        is_write=True,
        has_buffered=True,
        closes=True,
    ),
    Call("open", lambda stage: _open(stage, agent="c"), also=_name_is_free),
    Call("open a snapshot", lambda stage: _open(stage, agent="c"), prepare=compacted, also=_name_is_free),
    Call("open a new store", _open_new, also=_new_is_free),
    Call("open to read", lambda stage: _open(stage, read_only=True), also=_name_is_free),
    Call("open the past", lambda stage: _open(stage, as_of=2), also=_name_is_free),
    Call("import", _ingest, _ingested, also=_names_are_free),
    Call("import archives", _ingest_archives),
    Call("copy", _copy),
    Call("verify", _verify(repair=False)),
    Call("repair", _verify(repair=True)),
]
