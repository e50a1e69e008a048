"""Planning: which indexes narrow a query down, so that it need not read every document. Pure.

An index returns a superset of the answer. The condition is always evaluated on each of these documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import merge
from typing import NamedTuple

from opslog.query.conditions import And, Condition, OneOf, Or, Range
from opslog.query.index import Index, null_and_missing
from opslog.query.paths import Path


class Between(NamedTuple):
    """Find documents whose value at a path is in all of these ranges."""

    path: Path
    ranges: tuple[Range, ...]


class AnyOf(NamedTuple):
    """Find documents that at least one of these parts finds."""

    parts: tuple[tuple[Access, ...], ...]


# A way to find all documents that fulfil a condition. It may find others, too.
Access = OneOf | Between | AnyOf


def accesses(condition: Condition) -> tuple[Access, ...]:
    """The ways to find the documents that fulfil a condition. Each way finds all of them. Equalities come first: they
    are the most likely to find few documents."""
    if isinstance(condition, OneOf):
        return (condition,)
    if isinstance(condition, Range):
        return (Between(condition.path, (condition,)),)
    if isinstance(condition, And):
        return _of_all(condition)
    if isinstance(condition, Or):
        parts = tuple(map(accesses, condition.parts))
        return (AnyOf(parts),) if all(parts) else ()
    return ()


def _of_all(condition: And) -> tuple[Access, ...]:
    found: list[Access] = []
    ranges: dict[Path, list[Range]] = {}
    for part in condition.parts:
        if isinstance(part, Range) and not part.path.has_many:
            ranges.setdefault(part.path, []).append(part)
        else:
            found += accesses(part)
    found += (Between(path, tuple(some)) for path, some in ranges.items())
    return tuple(sorted(found, key=_likeliness))


def _likeliness(access: Access) -> int:
    return [OneOf, Between, AnyOf].index(type(access))


def wanted(ways: tuple[Access, ...]) -> Iterator[Path]:
    """The paths whose indexes these ways need, the most useful paths first."""
    for access in ways:
        if isinstance(access, AnyOf):
            for part in access.parts:
                yield from wanted(part[:1])
        elif not access.path.is_id:
            yield access.path


class Candidates(NamedTuple):
    """Documents that may fulfil a condition.

    :ivar size: how many. A document that has several of the values counts once for each.
    :ivar ids: starts an iteration over them in order of id.
    :ivar path: the path whose index found them.
    """

    size: int
    ids: Callable[[], Iterator[str]]
    path: str


def best(ways: tuple[Access, ...], indexes: Mapping[Path, Index], most: int) -> Candidates | None:
    """The smallest set of candidates that any of these ways finds. None if no way has its index here, or each finds
    more than `most`. The documents of one single value may be more, because they need not be gathered."""
    found = [candidates for access in ways if (candidates := _candidates(access, indexes, most)) is not None]
    return min(found, key=lambda candidates: candidates.size, default=None)


def _candidates(access: Access, indexes: Mapping[Path, Index], most: int) -> Candidates | None:
    if isinstance(access, AnyOf):
        return _any_of(access, indexes, most)
    if isinstance(access, OneOf) and access.path.is_id:
        named = sorted(key for key in access.keys if isinstance(key, str))
        return Candidates(len(named), lambda: iter(named), "@id") if len(named) <= most else None
    index = indexes.get(access.path)
    if index is None:
        return None
    name = str(access.path)
    if isinstance(access, OneOf) and len(access.keys) == 1 and None not in access.keys:
        only = index.ids(next(iter(access.keys)))
        return Candidates(len(only), lambda: iter(only), name)
    keys = index.between(access.ranges) if isinstance(access, Between) else null_and_missing(access.keys)
    buckets, count = [], 0
    for key in keys:
        ids = index.ids(key)
        count += len(ids)
        if count > most:
            return None
        buckets.append(ids)
    if index.path.has_many:
        gathered = sorted({id for bucket in buckets for id in bucket})
    else:
        gathered = sorted(id for bucket in buckets for id in bucket)
    return Candidates(count, lambda: iter(gathered), name)


def _any_of(access: AnyOf, indexes: Mapping[Path, Index], most: int) -> Candidates | None:
    parts = []
    for ways in access.parts:
        found = best(ways, indexes, most)
        if found is None:
            return None
        parts.append(found)
    count = sum(part.size for part in parts)
    if count > most:
        return None

    def ids() -> Iterator[str]:
        last = None
        for id in merge(*(part.ids() for part in parts)):
            if id != last:
                yield id
            last = id

    return Candidates(count, ids, ", ".join(dict.fromkeys(part.path for part in parts)))


def counted(condition: Condition, indexes: Mapping[Path, Index]) -> int | None:
    """The number of documents that fulfil a condition; None if an index alone cannot say it."""
    if not isinstance(condition, OneOf | Range) or condition.path.has_many or condition.path.is_id:
        return None
    index = indexes.get(condition.path)
    if index is None:
        return None
    keys = index.between([condition]) if isinstance(condition, Range) else null_and_missing(condition.keys)
    return sum(len(index.ids(key)) for key in keys)
