"""Remote agents with tokens, of whose calls the server also checks what they mean for the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opslog
from opslog.backends import Position, Range, open_backend, register
from opslog.backends.remote.backend import RemoteBackend
from opslog.backends.remote.protocol import CloseLog
from opslog.environment import format_ts
from opslog.errors import InvalidNameError, UsageError
from opslog.format.commits import CLOCK_MAX, encode_commit
from opslog.format.layout import TRANSACTIONS, archive_path, index_path, segment_path
from opslog.server.stores.rights import Client
from opslog.server.stores.served import ServedStore, ServedStores
from opslog.verify.verify import verify
from tests.support.served_storage import Handing

FUTURE = "9999-12-31T23:59:59.999999Z"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "tasks")


@pytest.fixture
def served(url: str) -> Iterator[ServedStore]:
    stores = ServedStores({"tasks": url}, "main")
    yield stores.find("tasks")
    stores.close()


@pytest.fixture
def mine(served: ServedStore) -> Iterator[RemoteBackend]:
    """The storage, as the client with the token of the agent `mine` has it."""
    client = Client("mine", writes=True, operates=False)
    backend = RemoteBackend("http://server/tasks", transport=Handing(lambda: served.storage, client))
    yield backend
    backend.close()


def a_set(
    clock: int, agent: str = TRANSACTIONS, id: str = "a", data: bytes = b'{"by":"mine"}', ts: str = "", **fields: str
) -> bytes:
    given = {"by": "mine", "tx": f"{clock:016x}"} if agent == TRANSACTIONS else {}
    now = ts or format_ts(time.time())
    return encode_commit(opslog.Set(now, clock, agent, id, msgspec.Raw(data), 1, **(given | fields)))


def an_undo(clock: int, target: int) -> bytes:
    return encode_commit(
        opslog.Undo(format_ts(time.time()), clock, TRANSACTIONS, target, by="mine", tx=f"{clock:016x}")
    )


def is_sound(url: str) -> bool:
    backend = open_backend(url)
    try:
        return verify(backend).ok
    finally:
        backend.close()


def append(backend: RemoteBackend, *lines: bytes) -> Position | None:
    """Append to the shared log, where it ends."""
    (data,) = backend.read_many([Range(segment_path(TRANSACTIONS, 1))])
    return backend.append_at(TRANSACTIONS, Position(1, len(data or b"")), b"".join(lines))


def write(served: ServedStore, author: str, document: dict[str, Any]) -> int:
    """The clock of the transaction."""
    stamp = served.operations(author).set("a", document).stamp
    assert stamp is not None
    return int(stamp.partition("@")[0])


def test_nobody_undoes_what_others_wrote(served: ServedStore, mine: RemoteBackend) -> None:
    write(served, "other", {"n": 1})
    theirs = write(served, "other", {"n": 2})
    for target in (theirs, theirs + 500):  # that may be the clock of their next one
        with pytest.raises(UsageError, match="undoes only what 'mine' wrote"):
            append(mine, an_undo(theirs + 1000, target))
    assert served.operations().get("a").data == {"n": 2}
    own = write(served, "mine", {"n": 3})
    assert append(mine, an_undo(own + 1000, own)) is not None
    assert served.operations().get("a").data == {"n": 2}
    assert append(mine, a_set(own + 2000), an_undo(own + 3000, own + 2000)) is not None
    assert served.operations().get("a").data == {"n": 2}
    assert append(mine, an_undo(own + 4000, own)) is not None, "such as one that is sent again: it does nothing"
    assert served.operations("other").undo().undone


def test_nobody_uses_up_the_clock(served: ServedStore, mine: RemoteBackend, url: str) -> None:
    """After a commit with the greatest clock, nothing more can be written."""
    clock = write(served, "other", {})
    with pytest.raises(UsageError, match="too far above all others"):
        append(mine, a_set(clock + 1000), a_set(CLOCK_MAX, id="b"))
    appender = mine.appender("mine")
    with pytest.raises(UsageError, match="too far above all others"):
        appender.append(a_set(CLOCK_MAX, "mine"))
    appender.append(a_set(clock + 1, "mine"))
    appender.close()
    beside = open_backend(url)
    (data,) = beside.read_many([Range(segment_path(TRANSACTIONS, 1))])
    assert beside.append_at(TRANSACTIONS, Position(1, len(data or b"")), a_set(2**40, id="jump")) is not None
    beside.close()
    assert append(mine, a_set(2**40 + 1000)) is not None, "the server reads what is new before it refuses"
    assert write(served, "other", {}) > 2**40


def test_names_are_checked_and_forgotten(served: ServedStore, mine: RemoteBackend) -> None:
    """A session may end again and again, and the server remembers none of these names."""
    everybody = RemoteBackend("http://server/tasks", transport=Handing(lambda: served.storage))

    def closing(agent: str) -> Callable[[object], CloseLog]:
        return lambda _: CloseLog(agent, "session")

    with pytest.raises(InvalidNameError):
        everybody.channel.change(closing("x" * 1000))
    for number in range(3):
        everybody.channel.change(closing(f"agent-{number}"))
    everybody.appender("agent").close()
    assert not served.storage._sessions._busy
    everybody.close()


def in_own_log(backend: RemoteBackend, *lines: bytes, floor: int = 0) -> Position:
    """Append to the log of `mine`, in a session."""
    appender = backend.appender("mine")
    try:
        if floor:
            appender.advance(floor)
        return appender.append(b"".join(lines))
    finally:
        appender.close()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (lambda clock: [a_set(clock - 10)], "clocks must increase"),
        (lambda clock: [a_set(clock + 2000), a_set(clock + 1000)], "clocks must increase"),
        (lambda clock: [a_set(clock + 10)], "at least 1000 above"),
        (lambda clock: [a_set(clock + 1000, "mine")], "is one of 'mine'"),
        (lambda clock: [a_set(clock + 1000, ts="2020-01-01T00:00:00.000000Z")], "never goes back"),
        (lambda clock: [a_set(clock + 1000, ts=FUTURE)], "correct the clock"),
        (lambda clock: [a_set(clock + 1000, ts="2026-99-99T99:99:99.999999Z")], "not a time"),
        (lambda clock: [a_set(clock + 1000, data=b"[1]")], "not a JSON object"),
        (lambda clock: [a_set(clock + 1000, data=b'{"a":1,"a":2}')], "twice"),
        (lambda clock: [a_set(clock + 1000, tx="")], "has both"),
        (lambda clock: [a_set(clock + 1000, by="other")], "in the name of 'mine', and of nobody else"),
    ],
)
def test_no_line_keeps_others_from_reading_the_shared_log(
    served: ServedStore, mine: RemoteBackend, url: str, lines: Callable[[int], list[bytes]], message: str
) -> None:
    clock = write(served, "other", {"n": 1})
    for _ in range(2):  # the second time the server knows from its own append where the log ends
        with pytest.raises(UsageError, match=message):
            append(mine, *lines(clock))
        assert served.operations().get("a").data in ({"n": 1}, {"by": "mine"})
        clock += 1000
        assert append(mine, a_set(clock)) is not None
    assert is_sound(url)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (lambda clock: [a_set(clock + 5, "mine"), a_set(clock + 5, "mine")], "clocks must increase"),
        (lambda clock: [a_set(clock + 5, "other")], "of nobody else"),
        (lambda clock: [a_set(clock + 5, "mine", ts=FUTURE)], "correct the clock"),
        (lambda clock: [a_set(clock + 5, "mine", ts="2026-99-99T99:99:99.999999Z")], "not a time"),
        (lambda clock: [a_set(clock + 5, "mine", data=b"[1]")], "not a JSON object"),
        (lambda clock: [a_set(clock + 5, "mine", by="mine", tx="1")], "only transactions have an author"),
    ],
)
def test_no_line_keeps_others_from_reading_the_own_log(
    served: ServedStore, mine: RemoteBackend, url: str, lines: Callable[[int], list[bytes]], message: str
) -> None:
    clock = write(served, "other", {"n": 1})
    with pytest.raises(UsageError, match=message):
        in_own_log(mine, *lines(clock))
    in_own_log(mine, a_set(clock + 5, "mine", ts="2020-01-01T00:00:00.000000Z"))  # such as an import
    with pytest.raises(UsageError, match="clocks must increase"):
        in_own_log(mine, a_set(clock + 5, "mine"))  # in another session
    assert served.operations().get("a").data == {"by": "mine"}
    assert is_sound(url)


def test_no_append_leaves_a_gap(served: ServedStore, mine: RemoteBackend, url: str) -> None:
    clock = write(served, "other", {"n": 1})
    with pytest.raises(UsageError, match="the last segment of the log of 'mine' is 0, and not 1000"):
        in_own_log(mine, a_set(clock + 5, "mine"), floor=1000)
    with pytest.raises(UsageError, match="by a session"):
        mine.append_at("mine", Position(1000, 0), a_set(clock + 5, "mine"))
    with pytest.raises(UsageError, match=r"the shared log ends at \(1, "):
        mine.append_at(TRANSACTIONS, Position(1000, 0), a_set(clock + 1000))
    assert mine.append_at(TRANSACTIONS, Position(1, 0), a_set(clock + 1000)) is None, "others have written"
    assert mine.append_at(TRANSACTIONS, Position(1, 0), a_set(clock - 500)) is None, "likewise"
    in_own_log(mine, a_set(clock + 5, "mine"))
    in_own_log(mine, a_set(clock + 6, "mine"), floor=1)
    assert is_sound(url)


def test_an_archive_is_whole_once_it_has_an_index(served: ServedStore, mine: RemoteBackend, url: str) -> None:
    write(served, "other", {"n": 1})
    served.operations("other").archive("n = 1", "2026-Q3")
    path = next(entry.path for entry in mine.list("archive/2026-Q3/") if entry.path.endswith(".jsonl"))
    data, index = mine.read_many([Range(path), Range(index_path(path))])
    assert data is not None
    assert index is not None
    new = archive_path("2026-Q4", "ab" * 16)
    with pytest.raises(UsageError, match=r"before .*, the data that it is the index of"):
        mine.create(index_path(new), index)
    for bad in (b"garbage\n", data[:-1], data + data, data.replace(b'"n":1', b'"n":1,"n":2')):
        with pytest.raises(UsageError, match="cannot be a file of an archive"):
            mine.create(new, bad)
    mine.create(new, data)
    for bad in (b"garbage", index[:-1]):
        with pytest.raises(UsageError, match="cannot be a file of an archive"):
            mine.create(index_path(new), bad)
    other = archive_path("2026-Q4", "cd" * 16)
    mine.create(other, data.replace(b'"n":1', b'"n":2'))
    with pytest.raises(UsageError, match="cannot be a file of an archive"):
        mine.create(index_path(other), index)
    mine.create(index_path(new), index)
    assert [entry.id for entry in served.operations().archived("2026-Q4").items] == ["a"]
    assert is_sound(url)


def test_a_client_with_a_name_of_its_own_can_do_all_that_writers_do(served: ServedStore, url: str) -> None:
    """Plain writes, transactions, undos, batches, archives, in turns with others, and a seal of a compaction."""
    client = Client("mine", writes=True, operates=False)

    def backend(url: str, *, create: bool = True) -> RemoteBackend:
        return RemoteBackend("http://server/tasks", transport=Handing(lambda: served.storage, client))

    register("mine", backend)
    for number in range(3):
        with opslog.open("mine://tasks", agent="mine") as store:
            for name in ("plain", "guarded"):
                store[f"{name}-{number}"] = {"n": number}
            store.modify(f"guarded-{number}", lambda document: {"n": (document or {"n": 0})["n"] + 1})
            served.operations("other").set(f"theirs-{number}", {"n": number})
            with store.batch():
                store["both"] = {"n": number}
                store[f"theirs-{number}"] = {"n": -number}
            store["undone"] = {}
            assert store.undo()
            assert store.archive(f"n = {number}", f"2026-Q{number + 1}") >= 1
        served.operations("other").compact(full=True)
    assert is_sound(url)
    with opslog.open(url, read_only=True) as reader:
        assert "undone" not in reader
        assert {id for id in reader if id.startswith("theirs")} <= {f"theirs-{number}" for number in range(3)}
