"""Stores with an eventful life: agents with stale views, batches, undos, seals, torn tails, compactions, archives."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import opslog
from opslog.backends import open_backend
from opslog.environment import Environment
from opslog.format.commits import Set
from opslog.format.layout import segment_path
from opslog.log.reader import list_segments

IDS = ["a", "b", "c", "", "ü", "\U0001f680", "￿", 'quo"te\\', "line\nbreak", "\u2028", "task-1", "task-10", "\x7f", "Z"]
"""Ids whose order differs between code points and UTF-16 units, and ids that need escaping."""

DOCUMENTS: list[dict[str, Any]] = [
    {},
    {"n": 1},
    {"n": 1.0},
    {"n": -0.0},
    {"big": 2**64 - 1, "small": -(2**63)},
    {"z": 1, "a": 2},
    {"a": 2, "z": 1},
    {"text": '"\\/\b\f\n\r\t\u2028\u2029 ü 🚀 \x7f'},
    {"null": None, "true": True, "false": False},
    {"list": [1, "1", [], {}, None, 1e300, 5e-324]},
    {"deep": {"er": {"": [{"x": []}]}}},
    {"op": "undo", "target": 1, "id": "b", "data": {}},
]

AGENTS = ["a", "b.b", "C", "a-1", "0"]


def live(url: str, chance: random.Random, *, tear: Callable[[str, random.Random], None] | None = None) -> None:
    """Give a store a life. :param tear: called between sessions now and then."""
    start = 1_795_521_600.0
    environment = Environment(time=lambda: start + chance.random() * 1000)
    settings = opslog.Settings(
        undo_window=chance.choice([0, 1, 2, 3, 5, 32]),
        grace_seconds=0,
        undo_ttl_seconds=chance.choice([0, 86400]),
        keep_history_seconds=chance.choice([0, None]),
    )
    for session in range(chance.randrange(1, 5)):
        with ExitStack() as stack:
            stores = [
                stack.enter_context(
                    opslog.open(
                        url,
                        agent=agent,
                        settings=settings,
                        environment=environment,
                        compact_after=None,
                        version=1 + session // 2,
                        migrate=lambda document, version: document,
                        durability="buffered",
                    )
                )
                for agent in chance.sample(AGENTS, chance.randrange(1, 4))
            ]
            for _ in range(chance.randrange(25)):
                act(chance.choice(stores), chance)
            for store in stores:
                store.flush()
            if chance.random() < 0.5:
                stores[0].compact(full=chance.random() < 0.3)
        if tear is not None and chance.random() < 0.5:
            tear(url, chance)


def act(store: opslog.Store[Any], chance: random.Random) -> None:
    """One action of an agent."""
    id = chance.choice(IDS)
    match chance.randrange(13):
        case 0 | 1:
            with suppress(opslog.ConflictError):  # others have overwritten a transaction
                store.undo()
        case 2 | 3:
            store.pop(id, None)
        case 4:
            store.refresh()
        case 5:
            with store.batch():
                store[id] = chance.choice(DOCUMENTS)
                store.pop(chance.choice(IDS), None)
                store[chance.choice(IDS)] = {"of": id}
        case 6 if chance.random() < 0.3:
            store.flush()
            store.archive(lambda document: len(document) == 1, chance.choice(["2026-Q3", "2026-Q4"]))
        case 6:
            with suppress(opslog.ExistsError):
                store.create(id, chance.choice(DOCUMENTS))
        case 12:
            store.transact(lambda transaction: transact(transaction, chance))
        case 7:
            store[id] = {"long": "x" * chance.randrange(3000)}
        case _:
            store[id] = chance.choice(DOCUMENTS)


def transact(transaction: opslog.Transaction[Any], chance: random.Random) -> None:
    """The writes of one transaction."""
    for id in chance.sample(IDS, chance.randrange(1, 4)):
        if chance.random() < 0.2:
            transaction.pop(id, None)
        else:
            transaction[id] = {"seen": transaction.get(id) is not None}


def tear(url: str, chance: random.Random) -> None:
    """Leave at the end of a log in a directory what a crash may leave there."""
    with_segments = [(agent, listed) for agent, listed in list_segments(open_backend(url)).items() if listed]
    if with_segments:
        agent, listed = chance.choice(sorted(with_segments))
        with (Path(url) / segment_path(agent, listed[-1].number)).open("ab") as file:
            file.write(b'{"ts":"2026-11-24T12:00:00.000000Z","clock":99999,"ag'[: chance.randrange(1, 50)])


def row(record: Set) -> tuple[Any, ...]:
    """A document as a row of the state view."""
    author = record.by or None, record.tx or None
    return record.id, bytes(record.data).decode(), record.clock, record.agent, record.ts, record.v, *author


def state(url: str, **options: Any) -> list[tuple[Any, ...]]:
    """The documents as the library has them, by id."""
    with opslog.open(url, read_only="as_of" not in options, **options) as store:
        return [row(record) for record in store.records()]
