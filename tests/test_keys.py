"""Keys of requests: a request is carried out once, whatever happens in between."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import Position
from opslog.doors.once import Once
from opslog.doors.operations import Operations
from opslog.doors.values import Op
from opslog.environment import REAL
from opslog.errors import CommitUnknownError, ExpiredKeyError, UsageError
from opslog.log.survey import survey_history
from opslog.replica import keys
from opslog.store import Store, replica_of
from tests.support.keys import key_made
from tests.support.waiting import until

Documents = dict[str, Any]


@pytest.fixture(params=["directory", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Two kinds: segments grow, or each append is a segment of its own."""
    return str(tmp_path / "store") if request.param == "directory" else f"memory://keys-{tmp_path.name}"


@pytest.fixture
def stores(url: str) -> Iterator[list[Store[Documents]]]:
    opened = [opslog.open(url, agent="server", log="shared", version=None) for _ in range(2)]
    yield opened
    for store in opened:
        store.close()


def asking(store: Store[Documents], key: str, content: bytes = b"the same") -> tuple[Operations, Once]:
    once = Once(key, content, REAL.time(), 600.0)
    return Operations(store, "planner", once), once


def commits(store: Store[Documents]) -> int:
    return len(list(store.ops()))


def test_a_call_that_loses_the_race_to_its_own_repetition_writes_nothing(stores: list[Store[Documents]]) -> None:
    first, second = stores
    key, backend = key_made(), replica_of(first).backend
    append_at, stamps = backend.append_at, list[str | None]()

    def interrupted(agent: str, end: Position, data: bytes) -> Position | None:
        if not stamps:
            repeated, _ = asking(second, key)
            stamps.append(repeated.set("y", {}).stamp)  # nothing else that the other one reads shows this
        return append_at(agent, end, data)

    backend.append_at = interrupted  # type: ignore[method-assign]
    operations, once = asking(first, key)
    assert operations.set("x", {"n": 1}).stamp == stamps[0]
    assert once.done is not None
    assert commits(first) == 1


def test_a_compaction_may_have_read_more_than_is_searched(
    stores: list[Store[Documents]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stores
    asking(second, key_made())[0].set("y", {})
    manifests = list[int | None]()

    def overtaken(*arguments: Any) -> Any:
        if not manifests:
            asking(second, key_made())[0].set("z", {})
            manifests.append(second.compact().number)
        return survey_history(*arguments)

    monkeypatch.setattr(keys, "survey_history", overtaken)
    asking(first, key_made())[0].set("x", {})
    assert manifests == [2]
    assert sorted(first) == ["x", "y", "z"]


def test_one_of_two_transactions_decided_together_writes(stores: list[Store[Documents]]) -> None:
    store, key = stores[0], key_made()
    replica = replica_of(store)
    append_at, waited = replica.backend.append_at, list[bool]()

    def slow(agent: str, end: Position, data: bytes) -> Position | None:
        if not waited:  # the append of another request, for which both wait
            waited.append(True)
            asked = replica.keys._asking
            assert replica.transactions is not None
            queue = replica.transactions._queue
            until(lambda: max(len(queue), len(asked.get(("planner", key), []))) == 2)
        return append_at(agent, end, data)

    replica.backend.append_at = slow  # type: ignore[method-assign]
    with ThreadPoolExecutor(3) as threads:
        other = threads.submit(store.set, "other", {})
        until(lambda: bool(waited))
        both = [threads.submit(asking(store, key)[0].set, "x", {"n": 1}) for _ in range(2)]
        other.result()
        assert len({each.result().stamp for each in both}) == 1
    assert commits(store) == 2


def test_an_append_whose_outcome_nobody_knew_is_found_by_its_key(stores: list[Store[Documents]]) -> None:
    first, second = stores
    key, backend = key_made(), replica_of(first).backend
    append_at = backend.append_at

    def unanswered(agent: str, end: Position, data: bytes) -> Position | None:
        append_at(agent, end, data)
        raise CommitUnknownError("no answer came")

    backend.append_at = unanswered  # type: ignore[method-assign]
    operations, _ = asking(first, key)
    with suppress(CommitUnknownError):  # an object storage can show what was written
        operations.set("x", {"n": 1})
    again, once = asking(second, key)
    again.set("x", {"n": 1})
    assert once.done is not None
    assert commits(second) == 1


@pytest.mark.parametrize("reopened", [False, True])
def test_every_process_knows_the_keys_that_were_used(stores: list[Store[Documents]], url: str, reopened: bool) -> None:
    first, second = stores
    key = key_made()
    operations, _ = asking(first, key)
    written = operations.transact([Op("set", "x", {"key": "is a word, too"}), Op("create", "y", {})])
    for number in range(50):
        second[f"z{number}"] = {}
    if reopened:
        first.compact()
    with opslog.open(url, agent="server", log="shared", version=None) as third:
        for store in (second, third, first):
            again, once = asking(store, key)
            assert again.transact([Op("set", "x", {}), Op("create", "y", {})]) == written
            assert once.done is not None
            assert once.done.ids == ("x", "y")


def test_a_request_with_other_content_or_another_author_is_another_request(stores: list[Store[Documents]]) -> None:
    store, key = stores[0], key_made()
    operations, _ = asking(store, key)
    operations.set("x", {"n": 1})
    other, _ = asking(store, key, b"another")
    with pytest.raises(UsageError, match="another request had the key"):
        other.set("x", {"n": 2})
    Operations(store, "worker", Once(key, b"the same", REAL.time(), 600.0)).set("x", {"n": 3})
    assert commits(store) == 2


def test_only_stores_that_write_to_the_shared_log_take_keys(tmp_path: Path) -> None:
    with (
        opslog.open(tmp_path, agent="a", version=None) as store,
        pytest.raises(UsageError, match='log="shared"'),
    ):
        asking(store, key_made())


def test_old_keys_are_forgotten_and_then_refused(
    stores: list[Store[Documents]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So memory is bounded. A key is not forgotten before the grace period is over."""
    monkeypatch.setattr(keys, "_KEYS", 3)
    store, made = stores[0], [key_made(seconds_ago=300) for _ in range(6)]
    for index, key in enumerate(made):
        asking(store, key)[0].set(f"d{index}", {})
    for index, key in enumerate(made):
        operations, once = asking(store, key)
        operations.set(f"d{index}", {})
        assert once.done is not None, "all of them are younger than the grace period"
    count = commits(store)
    for index, key in enumerate(made[:3]):
        once = Once(key, b"the same", REAL.time() + 1000, 600.0)
        with pytest.raises(ExpiredKeyError):
            Operations(store, "planner", once).set(f"d{index}", {})
    assert commits(store) == count


def test_a_key_of_another_program_does_no_harm(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="server", log="shared", version=None) as store:
        store["x"] = {"key": 1}
    (log,) = (tmp_path / "ops" / "transactions").iterdir()
    line = log.read_bytes().replace(b'"tx":"', b'"key":[7],"tx":"')
    log.write_bytes(line)
    with opslog.open(tmp_path, agent="server", log="shared", version=None) as store:
        operations, once = asking(store, key_made())
        operations.set("x", {"n": 2})
        assert once.done is None
        assert operations.get("x").data == {"n": 2}
