"""An index gives the same answers as a plain dictionary, and knows which questions it can answer."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from opslog.format.commits import Set
from opslog.query.conditions import Condition, Range, compiled
from opslog.query.index import Index
from opslog.query.paths import parse_path
from opslog.query.plan import accesses, best, counted, wanted
from opslog.query.question import keys_at, parse
from opslog.query.values import key_of, rank

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    1.0,
    2.5,
    2**64 - 1,
    float(2**63),
    "",
    "a",
    "b",
    "é",
    [],
    [1],
    {},
    {"a": 1},
]


def document(chance: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if chance.random() < 0.8:
        found["x"] = chance.choice(VALUES) if chance.random() < 0.7 else chance.randrange(1000)
    if chance.random() < 0.8:
        found["tags"] = chance.choices(VALUES, k=chance.randrange(4))
    return found


def record_of(id: str) -> Set:
    return Set("", 1, "a", id, msgspec.Raw(b"{}"))


def keys(path: str, id: str, found: dict[str, Any]) -> Any:
    return keys_at(parse_path(path))(found, record_of(id))


CONDITIONS = [
    *("x = 1", "x = true", "x = null", "x = a", "x in [1, b, null, [1]]", 'x = {"a": 1}', "x = nobody"),
    *(
        "x > 1",
        "x >= 1",
        "x < 2.5",
        "x <= 2.5",
        "x > a",
        'x >= ""',
        "x <= b",
        "x > true",
        "x < null",
        "x > 1 and x < 100",
    ),
    *(
        "x > 1 and x < 100",
        "x > 100 and x < 1",
        "x > 1 and x < b",
        "x > 9223372036854775807",
        "tags[*] = a",
    ),
    *("tags[*] > 0 and tags[*] < 1",),
    *("tags[*] in [1, a]", "tags[*] = null", "x = 1 or x = a", "x = 1 or tags[*] = a", "x = 1 and tags[*] = a"),
    *(
        "@id = d00001",
        "@id in [d00001, d00002, zzz]",
        "@id = d00001 or x = 1",
        "(x = 1 or x > 900) and not tags[*] = a",
    ),
]
UNINDEXED = ["not x = 1", "x != 1", "exists x", "x = 1 or y = 1", "x = 1 or not x = 2", "@id > a"]


@pytest.mark.parametrize("changes", [20, 900], ids=["few changes", "many changes"])
def test_an_index_says_what_a_plain_search_says(changes: int) -> None:
    chance = random.Random(7)
    documents = {f"d{number:05}": document(chance) for number in range(2000)}
    indexes = {
        parse_path(path): Index(parse_path(path), ((id, keys(path, id, found)) for id, found in documents.items()))
        for path in ("x", "tags[*]")
    }
    for _ in range(4):
        check(documents, indexes)
        changed: dict[str, dict[str, Any] | None] = {}
        for _ in range(changes):
            id = f"d{chance.randrange(2500):05}"
            changed[id] = None if chance.random() < 0.3 else document(chance)
        for path, index in indexes.items():
            index.change({id: None if found is None else keys(str(path), id, found) for id, found in changed.items()})
        for id, found in changed.items():
            documents.pop(id, None)
            if found is not None:
                documents[id] = found
        documents = dict(sorted(documents.items()))
        anew = Index(parse_path("x"), ((id, keys("x", id, found)) for id, found in documents.items()))
        assert anew.counts() == indexes[parse_path("x")].counts()
        assert anew.bytes == indexes[parse_path("x")].bytes
    check(documents, indexes)


def check(documents: dict[str, dict[str, Any]], indexes: dict[Any, Index]) -> None:
    index = indexes[parse_path("x")]
    assert len(index) == len(documents)
    for is_descending in (False, True):
        found = sorted(documents, key=lambda id: rank(keys("x", id, documents[id])[0]), reverse=is_descending)
        assert list(index.ordered(is_descending)) == found
    for text in CONDITIONS:
        condition = parse(text)
        true = {id for id, found in documents.items() if compiled(condition)(found, record_of(id))}
        candidates = best(accesses(condition), indexes, len(documents))
        assert candidates is not None, text
        ids = list(candidates.ids())
        assert ids == sorted(set(ids)), text
        assert true <= {*ids}, text
        assert len(ids) <= candidates.size
        count = counted(condition, indexes)
        assert count in (None, len(true)), text
        if count is None and not ids:
            assert not true
    for text in UNINDEXED:
        assert best(accesses(parse(text)), indexes, len(documents)) is None


def test_the_fewest_candidates_are_chosen_and_too_many_are_none() -> None:
    path, other = parse_path("x"), parse_path("y")
    indexes = {
        path: Index(path, ((f"d{n:03}", (n % 2,)) for n in range(100))),
        other: Index(other, ((f"d{n:03}", (n,)) for n in range(100))),
    }

    def candidates(text: str, most: int = 10) -> tuple[int, str] | None:
        found = best(accesses(parse(text)), indexes, most)
        return None if found is None else (found.size, found.path)

    assert candidates("x = 1 and y = 7") == candidates("y = 7 and x = 1") == (1, "y")
    assert candidates("x = 1 and y > 95") == (4, "y")
    assert candidates("x = 1") == (50, "x")  # all of one value, so they need not be gathered
    assert candidates("x in [0, 1]") is None
    assert candidates("y < 50") is None
    assert candidates("y = 1 or y = 2") == (2, "y")
    assert candidates("y = 1 or x = 1") is None
    assert [str(path) for path in wanted(accesses(parse("y > 3 and (a = 1 or b > 2) and x = 1 and @id = z")))] == [
        *("x", "y", "a", "b"),
    ]


def test_ranges_of_one_path_are_one_range() -> None:
    (between,) = accesses(parse("x > 1 and x < 5 and x <= 9"))
    assert len(getattr(between, "ranges")) == 3  # noqa: B009
    assert len(accesses(parse("t[*] > 1 and t[*] < 5"))) == 2, "different items may fulfil them"


def test_a_range_without_an_order_is_empty() -> None:
    path = parse_path("x")
    index = Index(path, [("a", (None,)), ("b", (key_of(True),)), ("c", (1,))])
    limits: list[Any] = [None, True, [], {}]
    for limit in limits:
        assert list(index.between([Range(path, ">=", limit)])) == []


def test_conditions_are_hashable_and_comparable() -> None:
    condition: Condition = parse("x = 1 and not y > 2")
    assert hash(condition) == hash(parse({"x": 1, "not": {"y": {">": 2}}}))
