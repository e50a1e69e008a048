"""A description of a store, for clients that see it for the first time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice

import msgspec

from opslog.doors.values import AgentSeen, Description, FieldSeen
from opslog.errors import QueryError
from opslog.format.documents import Document
from opslog.format.layout import TRANSACTIONS
from opslog.query.paths import Path
from opslog.query.text import parse_text
from opslog.replica.state import State
from opslog.store import Store, replica_of

# How many documents are sampled, and how many agents, fields and ids are named.
_SAMPLED, _AGENTS, _FIELDS, _IDS = 1000, 20, 50, 5


def described(store: Store[Document], author: str | None) -> Description:
    """Counts, fields and agents of a store as it is in memory. Samples the documents, and costs three listings.

    :param author: the author of what is written through this door.
    """
    replica, stats = replica_of(store), store.stats()
    agents = sorted(replica.read(last_clocks).items(), key=lambda item: (-item[1], item[0]))
    counts: Counter[str] = Counter()
    types: defaultdict[str, set[str]] = defaultdict(set)
    ids: list[str] = []
    sampled = 0
    for record in islice(store.records(), _SAMPLED):
        sampled += 1
        if len(ids) < _IDS:
            ids.append(record.id)
        for path, type_ in _fields(record.document):
            counts[path] += 1
            types[path].add(type_)
    return Description(
        documents=stats.documents,
        clock=stats.clock,
        agent=author,
        agents=[AgentSeen(name, clock) for name, clock in agents[:_AGENTS]],
        more_agents=max(0, len(agents) - _AGENTS),
        fields=[FieldSeen(_quoted(path), count, sorted(types[path])) for path, count in counts.most_common(_FIELDS)],
        sampled=sampled,
        ids=ids,
        settings=msgspec.structs.asdict(replica.state.manifest.settings),
        stats=msgspec.structs.asdict(stats),
    )


def last_clocks(state: State) -> dict[str, int]:
    """For each agent the clock of its newest commit, as far as was read."""
    clocks = {agent: cursor.clock for agent, cursor in state.cursors.items() if agent != TRANSACTIONS}
    for author, clock in state.merge.newest_by_author().items():
        clocks[author] = max(clock, clocks.get(author, 0))
    return clocks


_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


def _fields(document: Document) -> Iterator[tuple[str, str]]:
    """The fields of a document, and those of the objects in it, with their types."""
    for name, value in document.items():
        path = _path_of(name)
        yield path, _TYPES.get(type(value), "null")
        if isinstance(value, dict):
            for inner, each in value.items():
                yield f"{path}.{_path_of(inner)}", _TYPES.get(type(each), "null")


def _path_of(name: str) -> str:
    return str(Path((name,)))


def _quoted(path: str) -> str:
    """The path as it may stand in a condition, too. There a name that is a word of the language needs quotes."""
    try:
        parse_text(f"exists {path}")
    except QueryError:
        return f'"{path}"'
    return path
