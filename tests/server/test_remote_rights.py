"""Remote agents with tokens, of whose calls the server also checks what they mean for the store."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opslog
import tests.support.bucket  # noqa: F401  (bucket:// URLs)
from opslog.backends import Position, Range, open_backend, register
from opslog.backends.remote.backend import RemoteBackend
from opslog.backends.remote.protocol import (
    Append,
    AppendAt,
    Change,
    CloseLog,
    Create,
    Delete,
    Lock,
    OpenLane,
    OpenLog,
)
from opslog.environment import REAL, format_ts
from opslog.errors import InvalidNameError, OpslogError, RetryError, UsageError, WriteFailedError
from opslog.format.commits import CLOCK_MAX, encode_commit
from opslog.format.layout import TRANSACTIONS, archive_path, index_path, segment_path
from opslog.format.snapshot import File, Row, build_archive
from opslog.server.stores.contents import last_commit
from opslog.server.stores.rights import Client
from opslog.server.stores.served import ServedStore, ServedStores
from opslog.store import replica_of
from opslog.verify.verify import verify
from tests.support.served_storage import Handing

FUTURE = "9999-12-31T23:59:59.999999Z"


_numbers = itertools.count()


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if getattr(request, "param", "directory") == "bucket":
        return f"bucket://rights-{next(_numbers)}"
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
        with pytest.raises(WriteFailedError, match="undoes only what 'mine' wrote"):
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
    with pytest.raises(WriteFailedError, match="too far above all others"):
        append(mine, a_set(clock + 1000), a_set(CLOCK_MAX, id="b"))
    appender = mine.appender("mine")
    with pytest.raises(WriteFailedError, match="too far above all others"):
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
        (lambda clock: [a_set(clock + 1000, ts=FUTURE)], "correct the clock that is wrong"),
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
        with pytest.raises((UsageError, WriteFailedError), match=message):
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
        (lambda clock: [a_set(clock + 5, "mine", ts=FUTURE)], "correct the clock that is wrong"),
        (lambda clock: [a_set(clock + 5, "mine", ts="2026-99-99T99:99:99.999999Z")], "not a time"),
        (lambda clock: [a_set(clock + 5, "mine", data=b"[1]")], "not a JSON object"),
        (lambda clock: [a_set(clock + 5, "mine", by="mine", tx="1")], "only transactions have an author"),
    ],
)
def test_no_line_keeps_others_from_reading_the_own_log(
    served: ServedStore, mine: RemoteBackend, url: str, lines: Callable[[int], list[bytes]], message: str
) -> None:
    clock = write(served, "other", {"n": 1})
    with pytest.raises((UsageError, WriteFailedError), match=message):
        in_own_log(mine, *lines(clock))
    in_own_log(mine, a_set(clock + 5, "mine", ts="2020-01-01T00:00:00.000000Z"))  # such as an import
    with pytest.raises(WriteFailedError, match="clocks must increase"):
        in_own_log(mine, a_set(clock + 5, "mine"))  # in another session
    assert served.operations().get("a").data == {"by": "mine"}
    assert is_sound(url)


def test_no_append_leaves_a_gap(served: ServedStore, mine: RemoteBackend, url: str) -> None:
    clock = write(served, "other", {"n": 1})
    with pytest.raises(WriteFailedError, match="the last segment of the log of 'mine' is 0, and not 1000"):
        in_own_log(mine, a_set(clock + 5, "mine"), floor=1000)
    with pytest.raises(UsageError, match="by a session"):
        mine.append_at("mine", Position(1000, 0), a_set(clock + 5, "mine"))
    with pytest.raises(WriteFailedError, match=r"the shared log ends at \(1, "):
        mine.append_at(TRANSACTIONS, Position(1000, 0), a_set(clock + 1000))
    assert mine.append_at(TRANSACTIONS, Position(1, 0), a_set(clock + 1000)) is None, "others have written"
    assert mine.append_at(TRANSACTIONS, Position(1, 0), a_set(clock - 500)) is None, "likewise"
    in_own_log(mine, a_set(clock + 5, "mine"))
    in_own_log(mine, a_set(clock + 6, "mine"), floor=1)
    assert is_sound(url)


def archive_of_a(url: str, **changes: Any) -> File:
    """An archive of the document `a`, with changes to its record."""
    with opslog.open(url, read_only=True) as reader:
        record = reader.record("a")
        assert record is not None
        record = msgspec.structs.replace(record, **changes)
    return build_archive("archive/2026-Q4/x.jsonl", [Row.of(record, encode_commit(record))])


def test_an_archive_is_whole_once_it_has_an_index(served: ServedStore, mine: RemoteBackend, url: str) -> None:
    write(served, "other", {"n": 1})
    good = archive_of_a(url)
    path = archive_path("2026-Q4", "ab" * 16)
    with pytest.raises(UsageError, match=r"before .*, the data that it is the index of"):
        mine.create(index_path(path), good.index)
    for bad in (b"garbage\n", good.data[:-1], good.data * 2, good.data.replace(b'"n":1', b'"n":1,"n":2')):
        with pytest.raises(UsageError, match="cannot be a file of an archive"):
            mine.create(path, bad)
    mine.create(path, good.data)
    for bad in (b"garbage", good.index[:-1], archive_of_a(url, clock=999).index):
        with pytest.raises(UsageError, match="cannot be a file of an archive"):
            mine.create(index_path(path), bad)
    mine.create(index_path(path), good.index)
    assert [entry.id for entry in served.operations().archived("2026-Q4").items] == ["a"]
    assert is_sound(url)


@pytest.mark.parametrize(
    "changes",
    [
        {"clock": CLOCK_MAX},
        {"ts": FUTURE},
        {"by": "mine"},
        {"v": 2**63 - 1},
        {"data": msgspec.Raw(b'{"n":2}')},
        {"id": "b"},
    ],
)
def test_an_archive_has_documents_of_the_store(
    served: ServedStore, mine: RemoteBackend, url: str, changes: dict[str, Any]
) -> None:
    """Nobody could delete what a client has made up, and it could outrank what others have archived."""
    write(served, "other", {"n": 1})
    with pytest.raises(RetryError, match="Nothing was archived"):
        mine.create(archive_path("2026-Q4", "ab" * 16), archive_of_a(url, **changes).data)
    served.operations("other").set("a", {"n": 2})
    served.operations("other").delete("a")
    assert mine.list("archive/") == []


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


@contextmanager
def restarted(url: str) -> Iterator[RemoteBackend]:
    """The storage of a server that was started just now, as `mine` has it."""
    stores = ServedStores({"tasks": url}, "main")
    service = stores.find("tasks").storage
    client = Client("mine", writes=True, operates=False)
    backend = RemoteBackend("http://server/tasks", transport=Handing(lambda: service, client))
    yield backend
    backend.close()
    stores.close()


@pytest.mark.parametrize("log", ["mine", TRANSACTIONS])
@pytest.mark.parametrize("url", ["directory", "bucket"], indirect=True)
def test_clocks_do_not_go_back_behind_a_compaction(url: str, log: str) -> None:
    """Nor where the server was restarted since, and has read nothing of the log. Open readers could not read on."""
    settings = opslog.Settings(undo_window=0)
    with opslog.open(url, agent="mine", compact_after=None, settings=settings) as store:
        store["plain"] = {}
        store.create("guarded", {})
        newest = replica_of(store).state.clock
        ends = replica_of(store).state.cursors
        assert store.compact().commits == 2
    end = Position(*ends[TRANSACTIONS].position)
    with restarted(url) as backend:
        calls: dict[str, Callable[[], object]] = {
            "mine": lambda: in_own_log(backend, a_set(1, "mine")),
            TRANSACTIONS: lambda: backend.append_at(TRANSACTIONS, end, a_set(newest)),
        }
        with pytest.raises(WriteFailedError, match="clocks must increase"):
            calls[log]()
    assert is_sound(url)


@pytest.mark.parametrize("length", [10, 100_000, 1_000_000])
@pytest.mark.parametrize("scheme", ["memory", "bucket"])
def test_the_last_commit_of_a_log_is_found_however_long_it_is(scheme: str, length: int) -> None:
    backend = open_backend(f"{scheme}://last-{next(_numbers)}")
    appender = backend.appender("mine")
    appender.append(a_set(1, "mine"))
    line = a_set(2, "mine", data=b'{"text":"%b"}' % (b"x" * length))
    place = appender.append(line)
    end = (place.segment, place.offset + len(line)) if backend.segments_grow else (place.segment + 1, 0)
    last = last_commit(backend, "mine", end)
    assert last is not None
    assert last.clock == 2
    assert last_commit(backend, "mine", (9, 100)) is None
    appender.close()


def test_nobody_names_a_segment_before_the_first_or_continues_from_one_that_is_not_there(
    served: ServedStore, mine: RemoteBackend, url: str
) -> None:
    clock = write(served, "other", {})
    mine.channel.change(lambda _: OpenLog("mine", "session", "pid 1"))
    mine.channel.change(lambda _: CloseLog("mine", "session"))
    line = a_set(clock + 5, "mine")
    for end, floor in (((999, -1), 999), ((-1, 0), 0), ((0, 0), -1), ((1000, 0), 1000), ((1000, 0), 1001)):
        with pytest.raises(OpslogError):
            mine.channel.change(lambda again: Append("mine", "session", end, floor, line, bool(again)))  # noqa: B023
    for segment in (0, -1):
        with pytest.raises(UsageError, match="no request for a storage"):
            mine.append_at(TRANSACTIONS, Position(segment, 0), a_set(clock + 1000))
    assert [entry.path for entry in mine.list("ops/mine/")] == []
    assert is_sound(url)


def test_the_shared_log_has_no_sessions(served: ServedStore, mine: RemoteBackend, url: str) -> None:
    """A compaction from elsewhere leaves the name of one, which every reader finds."""
    clock = write(served, "other", {})
    client = Client("operator", writes=True, operates=True)
    operator = RemoteBackend("http://server/tasks", transport=Handing(lambda: served.storage, client))
    operator.channel.change(lambda _: OpenLog(TRANSACTIONS, "session", "pid 1"))
    seal = encode_commit(opslog.Seal(format_ts(time.time()), clock + 1000, TRANSACTIONS))
    for backend, name in ((mine, "mine"), (operator, "operator")):
        line = a_set(clock + 1000, by=name)
        with pytest.raises(UsageError, match="without a session"):
            backend.channel.change(lambda again: Append(TRANSACTIONS, "session", (1, 0), 0, line, bool(again)))  # noqa: B023
    with pytest.raises(UsageError, match="in the name of 'mine'"):
        append(mine, seal)
    seal = encode_commit(opslog.Seal(format_ts(time.time()), clock + 1000, TRANSACTIONS, by="mine", tx="1"))
    with pytest.raises(UsageError, match="may not seal the shared log"):
        append(mine, seal)
    operator.close()


def test_no_line_is_nested_more_deeply_than_others_can_read(served: ServedStore, mine: RemoteBackend) -> None:
    """How deep that is depends on the stack of the reader."""
    clock = write(served, "other", {})
    deep = b"[" * 900 + b"]" * 900
    plain = a_set(clock + 5, "mine")
    for line in (
        plain.replace(b'"op"', b'"more":%b,"op"' % deep),
        encode_commit(opslog.Batch(format_ts(time.time()), clock + 5, "mine", [])).replace(
            b'"ops":[', b'"ops":[{"op":"set","id":"x","data":{},"more":%b}' % deep
        ),
    ):
        with pytest.raises(UsageError, match="nobody knows the field 'more'"):
            in_own_log(mine, line)
    in_own_log(mine, plain.replace(b'"op"', b'"more":1,"op"'))
    assert served.operations().get("a").data == {"by": "mine"}


def test_an_undo_comes_after_what_it_undoes(served: ServedStore, mine: RemoteBackend) -> None:
    clock = write(served, "other", {})
    for target in (clock + 1000, clock + 2000):
        with pytest.raises(UsageError, match="does not come before it"):
            append(mine, an_undo(clock + 1000, target), a_set(clock + 2000))


def test_a_time_in_the_log_or_in_a_manifest_is_no_reason_to_refuse_transactions(
    served: ServedStore, mine: RemoteBackend, url: str
) -> None:
    """Programs use the greatest `ts` that they have found, and a wrong clock of others is not their fault."""
    ahead = format_ts(time.time() + 10 * 86400)
    clock = write(served, "other", {})
    beside = open_backend(url)
    appender = beside.appender("elsewhere")
    appender.append(a_set(clock + 5, "elsewhere", id="b", ts=ahead))
    appender.close()
    beside.close()
    served.operations().compact(full=True)
    with restarted(url) as here:
        assert append(here, a_set(clock + 1000)) is not None, "from a program that has not read the manifest"
    assert append(mine, a_set(clock + 2000, ts=ahead)) is not None
    later = format_ts(time.time() + 11 * 86400)
    with pytest.raises(WriteFailedError, match="correct the clock"):
        append(mine, a_set(clock + 3000, ts=later))
    assert is_sound(url)


def test_a_refused_append_leaves_the_store_of_a_client_usable(served: ServedStore) -> None:
    register("mine", lambda url, *, create=True: backend)
    client = Client("mine", writes=True, operates=False)
    backend = RemoteBackend("http://server/tasks", transport=Handing(lambda: served.storage, client))
    seconds = [time.time() + 25 * 3600]
    environment = replace(REAL, time=lambda: seconds[0])
    with opslog.open("mine://tasks", agent="mine", environment=environment) as store:
        with pytest.raises(WriteFailedError, match=r"nothing was written: .*correct the clock"):
            store["a"] = {}
        seconds[0] = time.time()
        store["a"] = {"n": 1}
    assert served.operations().get("a").data == {"n": 1}


def test_a_token_cannot_forge_these_calls() -> None:
    """It cannot append lines in the name of others, append unreadable lines, or write files that are not its own."""
    mine = Client("mine", writes=True, operates=False)

    def line(agent: str, by: str = "") -> bytes:
        data, tx = msgspec.Raw(b"{}"), "1" if by else ""
        return encode_commit(opslog.Set("2026-11-23T12:00:00.000000Z", 1001, agent, "a", data, 1, by=by, tx=tx))

    shared, end = line(TRANSACTIONS, "mine"), (1, 0)
    assert len(mine.check_lines(AppendAt(TRANSACTIONS, end, shared))) == 1
    assert len(mine.check_lines(Append("mine", "session", end, 0, line("mine")))) == 1
    mine.check(Create("archive/old/1.jsonl", b""))
    refused: list[tuple[Change, str]] = [
        (AppendAt(TRANSACTIONS, end, shared + line(TRANSACTIONS, "other")), "of nobody else"),
        (AppendAt(TRANSACTIONS, end, shared + b'{"by":"mine"}\n'), "not lines of a log"),
        (AppendAt(TRANSACTIONS, end, line("other", "mine")), "is one of 'other'"),
        (AppendAt("other", end, line("other")), "of nobody else"),
        (Append("other", "session", end, 0, line("other")), "of nobody else"),
        (Append("mine", "session", end, 0, line("other")), "of nobody else"),
        (Append("mine", "session", end, 0, b"torn"), "not lines of a log"),
        (Append("mine", "session", end, 0, b""), "no line"),
        (OpenLog("other", "session", "pid 1"), "of nobody else"),
        (Create("ops/other/00000000000000000001.jsonl", b""), "may not operate"),
        (Create("manifests/00000000000000000009.json", b""), "may not operate"),
        (Delete(["ops/other/00000000000000000001.jsonl"]), "may not operate"),
        (Create("archive/2027-Q1", b""), "may not operate"),
        (Lock("compaction", "x", "pid 1"), "may not operate"),
    ]
    with pytest.raises(UsageError, match="may not write"):
        Client("reader", writes=False, operates=False).check(OpenLane())
    for call, why in refused:
        check = mine.check_lines if isinstance(call, Append | AppendAt) else mine.check
        with pytest.raises(UsageError, match=why):
            check(call)  # type: ignore[arg-type]


def test_an_operator_seals_the_logs_of_others() -> None:
    """As a compaction does. It may append nothing else to those logs."""
    operator = Client("operator", writes=True, operates=True)

    def line(commit: type[opslog.Seal | opslog.Undo], agent: str, **more: Any) -> bytes:
        return encode_commit(commit("2026-11-23T12:00:00.000000Z", 1001, agent, **more))

    for agent in ("other", TRANSACTIONS):
        operator.check(OpenLog(agent, "session", "pid 1"))
        assert not operator.check_lines(Append(agent, "session", (1, 0), 0, line(opslog.Seal, agent)))
        with pytest.raises(UsageError, match="of nobody else"):
            operator.check_lines(Append(agent, "session", (1, 0), 0, line(opslog.Undo, agent, target=1000)))
        with pytest.raises(UsageError, match="of nobody else"):
            Client("mine", writes=True, operates=False).check_lines(
                Append(agent, "session", (1, 0), 0, line(opslog.Seal, agent))
            )
