"""Questions without an index, and the making of indexes, read only some fields of the stored documents. Their answers
are those of plain Python, wherever a document is stored and whatever was written over it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.errors import CorruptError
from opslog.format.commits import Set
from opslog.kernel import IS_USED
from opslog.log import reader
from opslog.query import rows
from opslog.query.question import question
from opslog.snapshot import runs
from opslog.store import replica_of

Document = dict[str, Any]
KINDS = [0, 1, -1, 2.5, "a", "ü", "", None, True, False, 10**18, 2**63, -(2**63), 1e300, 'q"', "\n", [], {}]


@pytest.fixture(params=["kernel", "python"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(rows, "fields", None)
    elif not IS_USED:
        pytest.skip("the kernel is not used")


@pytest.fixture(params=["in memory", "on storage"])
def placed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "on storage":
        monkeypatch.setattr(runs, "LOADED_BYTES", 0)


def document(chance: random.Random) -> Document:
    fields: dict[str, Callable[[], Any]] = {
        "kind": lambda: chance.choice(KINDS),
        "number": lambda: chance.randrange(20),
        "due": lambda: {"year": chance.randrange(3), "days": [chance.randrange(3)]},
        "tags": lambda: [chance.choice(["a", "b", 1]) for _ in range(chance.randrange(3))],
        "text": lambda: "x" * chance.randrange(40),
    }
    return {name: make() for name, make in fields.items() if chance.random() < 0.8}


def write(store: opslog.Store[Document], chance: random.Random, count: int) -> None:
    for number in range(count):
        id = f"task-{chance.randrange(300):03}"
        action = chance.random()
        if action < 0.1:
            store.pop(id, None)
        elif action < 0.13:
            store.undo()
        elif action < 0.2:
            store.modify(f"shared-{number % 9}", lambda _: document(chance))
        else:
            store[id] = document(chance)


@pytest.fixture(params=["one run", "three runs", "a log", "a log over a run", "winners alone"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: None, placed: None
) -> Iterator[opslog.Store[Document]]:
    # A short log then has chunks in which the lines stay lines.
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(reader, "_LAST_BYTES", 500)
    chance, layers = random.Random(7), request.param
    with opslog.open(tmp_path, agent="a", durability="buffered", compact_after=None) as store:
        for number in range(250):
            store[f"task-{number:03}"] = document(chance)
        for _ in range({"one run": 1, "three runs": 3, "a log over a run": 1}.get(layers, 0)):
            write(store, chance, 70)
            store.compact()
        if layers == "a log over a run":
            for number in range(0, 250, 2):
                store[f"task-{number:03}"] = document(chance)
        write(store, chance, 40)
        if layers == "winners alone":
            yield store
            return
    with opslog.open(tmp_path, agent="a", durability="buffered", compact_after=None) as store:
        state = replica_of(store).state
        assert len(state.runs) == {"one run": 1, "three runs": 3, "a log over a run": 1}.get(layers, 0)
        if IS_USED and "log" in layers:
            assert state.lines is not None
        write(store, chance, 10)
        yield store


def number_is(test: Callable[[Any], bool]) -> Callable[[str, Document], bool]:
    return lambda id, document: type(document.get("number")) is int and test(document["number"])


CONDITIONS: list[tuple[str, Callable[[str, Document], bool]]] = [
    ("number != 3", lambda id, document: document.get("number") != 3),
    ("not number < 3", lambda id, document: not number_is(lambda value: value < 3)(id, document)),
    ("number >= 3", number_is(lambda value: value >= 3)),
    ("exists due", lambda id, document: "due" in document),
    ("not exists kind or kind = null", lambda id, document: document.get("kind") is None),
    (
        "kind in [1, true, ü]",
        lambda id, document: any(
            document.get("kind") == value and type(document["kind"]) is type(value) for value in (1, True, "ü")
        ),
    ),
    ("due.year = 1", lambda id, document: document.get("due", {}).get("year") == 1),
    ("due.days[0] != 1", lambda id, document: document.get("due", {}).get("days", [None])[0] != 1),
    ("tags[*] = a", lambda id, document: "a" in document.get("tags", [])),
    (
        "not tags[*] = a and number > 3",
        lambda id, document: "a" not in document.get("tags", []) and number_is(lambda value: value > 3)(id, document),
    ),
    ("@id > task-100 and number != 3", lambda id, document: id > "task-100" and document.get("number") != 3),
    ("@author = a and number != 3", lambda id, document: document.get("number") != 3),
    ("nothing = null", lambda id, document: True),
    ("exists nothing", lambda id, document: False),
]


@pytest.mark.parametrize("is_indexed", [False, True], ids=["every document", "indexes"])
def test_answers_are_those_of_plain_python(
    store: opslog.Store[Document], is_indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_indexed:
        monkeypatch.setattr(replica_of(store).questions, "_from_indexes", lambda answer, at, otherwise=None: None)
    everything = list(store.items())
    assert len(everything) == len(store) > 200
    for text, is_true in CONDITIONS:
        expected = [(id, document) for id, document in everything if is_true(id, document)]
        assert repr(store.find(text)) == repr(expected), text
        assert store.count(text) == len(expected), text
        assert store.find(text, limit=3, offset=2) == expected[2:5], text
        by_number = sorted(expected, key=lambda item: (item[1].get("number", -1), item[0]))
        assert store.find(text, order_by="number") == by_number, text
        assert (
            store.find(text, order_by=["number", "-@id"], limit=4)
            == sorted(
                sorted(expected, reverse=True, key=lambda item: item[0]), key=lambda item: item[1].get("number", -1)
            )[:4]
        ), text
        years = Counter(document.get("due", {}).get("year") for _, document in expected)
        assert dict(store.group("due.year", text)) == years, text
        tags = Counter(tag for _, document in expected for tag in set(document.get("tags", [])))
        assert dict(store.group("tags[*]", text)) == tags, text
    assert store.find() == everything


def test_a_field_that_no_document_can_have_is_in_none(store: opslog.Store[Document]) -> None:
    """Half of a surrogate pair, which a condition may have from foreign JSON."""
    name = "\ud800"
    assert store.find({name: 1}) == store.find({"kind": name}) == []
    assert (store.count({name: 1}), store.group("number", {name: 1})) == (0, [])
    assert store.find(order_by=name) == store.find()
    assert store.group(name) == [(None, len(store))]


def test_a_batch_is_seen_over_it(store: opslog.Store[Document]) -> None:
    with store.batch():
        store["a"] = {"number": 3}
        store["task-001"] = {"number": 4}
        store["zzz"] = {"number": 5}
        store.pop("task-002", None)
        for text in ("number != 3", "not number < 4"):
            everything = list(store.items())
            assert store.find(text) == [
                (id, document)
                for id, document in everything
                if (document.get("number") != 3 if "!=" in text else document.get("number", 9) >= 4)
            ]


def test_rows_are_those_of_the_call_whatever_is_written_since(store: opslog.Store[Document]) -> None:
    with store.batch():
        store["task-001"] = {"number": 1}
        read = replica_of(store).questions.rows(("number",))
        store["task-001"] = {"number": 2}
        store["task-002"] = {"number": 3}
        before = {record.id: record for some in read for record in some.others if isinstance(record, Set)}
        assert before["task-001"].document == {"number": 1}
        assert before.get("task-002", before["task-001"]).document != {"number": 3}


def test_only_what_is_found_is_decoded(store: opslog.Store[Document], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run only matching documents are decoded. What was written over it is decoded."""
    decoded: list[int] = []
    sets = rows._Lines.sets

    def noted(self: Any, numbers: Sequence[int]) -> list[Set]:
        decoded.append(len(numbers))
        return sets(self, numbers)

    monkeypatch.setattr(rows._Lines, "sets", noted)
    assert replica_of(store).questions.count(question("number != 3", None, None, 0).condition)
    covered = sum(decoded)
    assert covered < 150
    matches = store.find("not number in [null, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]")
    assert sum(decoded) <= 2 * covered + len(matches)


@pytest.mark.usefixtures("engine", "placed")
def test_documents_of_older_versions_are_migrated(tmp_path: Path) -> None:
    def migrate(document: Document, version: int) -> Document:
        return {"state": document["status"], "was": version}

    with opslog.open(tmp_path, agent="a", compact_after=None, durability="buffered") as store:
        with store.batch():
            for number in range(50):
                store[f"old-{number:02}"] = {"status": number % 5}
        for _ in range(32):
            store["last"] = {"status": "last"}
        store.compact()
    with opslog.open(tmp_path, agent="a", compact_after=None, version=2, migrate=migrate) as store:
        with store.batch():
            for number in range(50):
                store[f"new-{number:02}"] = {"state": number % 5}
        for _ in range(32):
            store["last"] = {"state": "last"}
        store.compact()
        assert store.count("state != 3") == 81
        assert store.count("not status = null") == 0
        assert store.group("state")[:2] == [(0, 20), (1, 20)]
        assert len(store.find("state = 4")) == 20
    with opslog.open(tmp_path, read_only=True, version=None) as store:
        assert store.count("exists status") == 50


@pytest.mark.usefixtures("engine", "placed")
@pytest.mark.parametrize("data", ['{"n":1,"m":1,"m":2}', '{"n":1,"m":1e999}', '{"n":1,"m":18446744073709551616}'])
def test_what_cannot_be_read_exactly_is_an_error_also_outside_of_the_fields(tmp_path: Path, data: str) -> None:
    with opslog.open(tmp_path, agent="a", compact_after=None) as store:
        for number in range(3):
            store[f"task-{number}"] = {"n": number, "m": 0}
    (log,) = (path for path in (tmp_path / "ops").rglob("*") if path.is_file())
    text = log.read_text(encoding="utf-8")
    log.write_text(text.replace('{"n":1,"m":0}', data), encoding="utf-8")
    with opslog.open(tmp_path, read_only=True) as store:
        for ask in (
            lambda: store.count("n != 3"),
            lambda: store.find("not n = 3"),
            lambda: store.group("n", "n != 5"),
            lambda: store.index("n"),
            lambda: store.find(order_by=["-n", "m"]),
        ):
            with pytest.raises(CorruptError, match="document 'task-1'"):
                ask()
        assert store.find("n != 3", limit=1) == [("task-0", {"n": 0, "m": 0})], "it comes before"


def test_the_columns_of_a_run_are_read_without_its_records(store: opslog.Store[Document]) -> None:
    read = list(replica_of(store).questions.rows(("number",)))
    ids = [id for some in read for id in some.ids]
    others = [record.id for some in read for record in some.others if isinstance(record, Set)]
    assert sorted([*ids, *others]) == [record.id for record in store.records()]
    assert ids == sorted(ids)
