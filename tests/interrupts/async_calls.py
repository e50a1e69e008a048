"""The interrupted calls of asyncio's store, like those of the other store in `tests.interrupts.calls`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any, NamedTuple

import opslog
from opslog.aio import AsyncStore
from tests.interrupts.calls import (
    States,
    archived,
    compacted,
    nothing,
    pending,
    sets,
    unchanged,
    with_pending,
)
from tests.interrupts.stage import Documents, Stage


class AsyncCall(NamedTuple):
    """Like `tests.interrupts.calls.Call`.

    :ivar decides: whether it is a transaction, which raises the error of the thread that decides it: nobody else would
        get that error.
    :ivar lost: further states that the documents may be in if buffered commits were lost and the store said so.
    """

    name: str
    run: Callable[[AsyncStore[Any], Stage], Coroutine[Any, Any, object]]
    possible: Callable[[Documents], States] = unchanged
    prepare: Callable[[Stage], None] = nothing
    is_write: bool = False
    has_buffered: bool = False
    closes: bool = False
    decides: bool = False
    lost: Callable[[Documents], States] = lambda before: []


async def _batch(store: AsyncStore[Any], stage: Stage) -> None:
    async with store.batch() as batch:
        await batch.set("x", {"v": 3})
        await batch.set("new", {"v": 3})
        await batch.delete("y")


async def _at_once(store: AsyncStore[Any], stage: Stage) -> None:
    """Three tasks, of which only this one is cancelled."""
    stage.tasks += [asyncio.ensure_future(store.set(f"task-{number}", {"v": 1})) for number in range(2)]
    await store.set("x", {"v": 3})


async def _refresh(store: AsyncStore[Any], stage: Stage) -> None:
    stage.hand_out(await store.refresh())


async def _watch(store: AsyncStore[Any], stage: Stage) -> None:
    count = 0
    async with aclosing(store.watch(poll_seconds=0.0)) as watching:  # type: ignore[type-var]
        async for commit in watching:
            stage.hand_out([commit])
            count += 1
            if count == 2:
                break


async def _iterate(store: AsyncStore[Any], stage: Stage) -> None:
    assert [id async for id in store]


async def _open(store: AsyncStore[Any], stage: Stage) -> None:
    async with opslog.aio.open(stage.url, agent="c", compact_after=None) as opened:
        assert await opened.contains("x")


def created(before: Documents) -> States:
    return [before, before | {"new": {"v": 3}}]


ASYNC_CALLS = [
    AsyncCall("set", lambda store, stage: store.set("x", {"v": 3}), sets, is_write=True),
    AsyncCall(
        "three sets",
        _at_once,
        lambda before: [state | {"task-0": {"v": 1}, "task-1": {"v": 1}} for state in sets(before)],
        is_write=True,
        lost=lambda before: [*sets(before), sets(before)[-1] | {"task-0": {"v": 1}}],
    ),
    AsyncCall(
        "delete",
        lambda store, stage: store.delete("x"),
        lambda before: [before, {id: document for id, document in before.items() if id != "x"}],
        is_write=True,
    ),
    AsyncCall(
        "batch",
        _batch,
        lambda before: [
            before,
            {id: document for id, document in before.items() if id != "y"} | {"x": {"v": 3}, "new": {"v": 3}},
        ],
        is_write=True,
    ),
    AsyncCall("create", lambda store, stage: store.create("new", {"v": 3}), created, is_write=True, decides=True),
    AsyncCall(
        "modify",
        lambda store, stage: store.modify("x", lambda document: {"v": 3}),
        sets,
        is_write=True,
        decides=True,
    ),
    AsyncCall(
        "undo", lambda store, stage: store.undo(), lambda before: [before, before | {"y": {"v": 1}}], is_write=True
    ),
    AsyncCall("refresh", _refresh),
    AsyncCall("watch", _watch),
    AsyncCall("iterate", _iterate),
    AsyncCall("history", lambda store, stage: store.history("x")),
    AsyncCall(
        "archive",
        lambda store, stage: store.archive(lambda document: document["v"] == 1, "old"),
        archived,
        is_write=True,
    ),
    AsyncCall("compact", lambda store, stage: store.compact(), prepare=compacted, is_write=True),
    AsyncCall("flush", lambda store, stage: store.flush(), with_pending, pending, is_write=True, has_buffered=True),
    AsyncCall(
        "close",
        lambda store, stage: store.close(),
        with_pending,
        pending,
        is_write=True,
        has_buffered=True,
        closes=True,
    ),
    AsyncCall("open", _open),
]
