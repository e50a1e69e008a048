"""The backend contract as a test suite, for the backends of opslog and for anybody's.

Subclass `BackendContract` in a test module of your own and say how to open your backend. That is a whole test module::

    import pytest

    pytest.register_assert_rewrite("opslog.backends.testing")  # shows values in failing asserts

    from opslog.backends.local.fs import FsBackend
    from opslog.backends.testing import BackendContract


    class TestFs(BackendContract):
        def open_backend(self, space):
            return FsBackend(space / "store")

Every test works in a storage of its own, and opens several backends on it. The suite takes some seconds on a local
disk. It cannot test forks, nor what only a crash or a broken disk shows (durability, `WriteFailedError`,
`CommitUnknownError`): test those where you can break your storage on purpose.

This module and those beside it that it imports (`opslog.backends.testing_names`, `opslog.backends.testing_turns`) are
the only ones of the package that need pytest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from opslog.backends.contract import Backend, ListsWithLogs, Position, Range
from opslog.errors import (
    AgentBusyError,
    AgentFencedError,
    AlreadyExistsError,
    ClosedError,
    LockedError,
    MissingFileError,
)
from opslog.format.layout import LOCKS, segment_of, segment_path

pytest.register_assert_rewrite("opslog.backends.testing_names", "opslog.backends.testing_turns")

from opslog.backends.testing_names import (  # noqa: E402  (after its rewrite is registered)
    ODD_PATHS,
    NamesContract,
    OpenBackend,
    log_of,
    paths_of,
)
from opslog.backends.testing_turns import SharedLogContract  # noqa: E402

__all__ = ["ODD_PATHS", "BackendContract"]


class BackendContract(NamesContract, SharedLogContract):
    """See the module's docstring."""

    def open_backend(self, space: Path) -> Backend:
        """Open a backend on the storage that belongs to `space`.

        `space` is an empty directory, a new one for every test. The same `space` must lead to the same storage, another
        one to another, empty storage. Storages outside the filesystem can use its text as a name.
        """
        raise NotImplementedError

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Iterator[OpenBackend]:
        """Opens one more backend on the storage of this test; all are closed at its end."""
        opened: list[Backend] = []

        def open_one() -> Backend:
            opened.append(self.open_backend(tmp_path))
            return opened[-1]

        yield open_one
        for backend in opened:
            backend.close()

    @pytest.fixture
    def backend(self, opener: OpenBackend) -> Backend:
        return opener()

    # create

    def test_create_then_read_gives_the_same_bytes(self, backend: Backend) -> None:
        data = bytes(range(256)) * 3
        backend.create("manifests/1.json", data)
        backend.create("empty", b"")
        assert backend.read("manifests/1.json") == data
        assert backend.read("empty") == b""

    def test_create_refuses_a_path_that_exists_and_leaves_it_alone(self, backend: Backend) -> None:
        backend.create("a/b", b"first")
        with pytest.raises(AlreadyExistsError) as caught:
            backend.create("a/b", b"second")
        assert caught.value.path == "a/b"
        assert backend.read("a/b") == b"first"

    def test_of_racing_creators_exactly_one_returns(self, opener: OpenBackend) -> None:
        racers, rounds = 12, 15
        backends = [opener() for _ in range(racers)]
        start = threading.Barrier(racers)

        def race(racer: int) -> list[bool]:
            won = []
            for turn in range(rounds):
                data = f"{racer} ".encode() * 5000
                start.wait(60)
                try:
                    backends[racer].create(f"race/{turn}", data)
                    won.append(True)
                except AlreadyExistsError:
                    won.append(False)
                # Whole and final, for the winner and for the others, as soon as their call has ended.
                seen = backends[racer].read(f"race/{turn}")
                assert len(set(seen.split())) == 1
                assert (seen == data) is won[-1]
            return won

        with ThreadPoolExecutor(racers) as pool:
            outcomes = list(pool.map(race, range(racers)))
        assert [sum(turn) for turn in zip(*outcomes, strict=True)] == [1] * rounds
        assert paths_of(backends[0], "race/") == sorted(f"race/{turn}" for turn in range(rounds))

    def test_a_file_of_20_megabytes(self, backend: Backend) -> None:
        data = b"0123456789abcdef" * (20 * 1024 * 1024 // 16)
        backend.create("big", data)
        assert [(entry.path, entry.size) for entry in backend.list("")] == [("big", len(data))]
        assert backend.read("big") == data
        assert backend.read("big", len(data) - 3) == b"def"
        with_log = backend.appender("big")
        with_log.append(data)
        segment, offset = with_log.append(b"next\n")
        assert (segment, offset) in ((1, len(data)), (2, 0))
        assert backend.read(segment_path("big", 1), 0, len(data)) == data
        assert backend.read(segment_path("big", segment), offset) == b"next\n"
        with_log.close()

    # read

    @pytest.mark.parametrize(
        ("start", "stop", "expected"),
        [
            (0, None, b"0123456789"),
            (0, 10, b"0123456789"),
            (3, None, b"3456789"),
            (3, 5, b"34"),
            (3, 4, b"3"),
            (3, 3, b""),
            (5, 3, b""),
            (8, 100, b"89"),
            (10, None, b""),
            (10, 20, b""),
            (100, None, b""),
            (100, 200, b""),
        ],
    )
    def test_read_ranges(self, backend: Backend, start: int, stop: int | None, expected: bytes) -> None:
        backend.create("digits", b"0123456789")
        assert backend.read("digits", start, stop) == expected
        assert backend.read_many([Range("digits", start, stop)]) == [expected]

    def test_ranges_of_an_empty_file_are_empty(self, backend: Backend) -> None:
        backend.create("empty", b"")
        assert backend.read_many([Range("empty"), Range("empty", 0, 5), Range("empty", 5)]) == [b"", b"", b""]

    @pytest.mark.parametrize("path", ["nothing", "a/nothing", "a", "a/b/c"])
    def test_reading_what_is_not_a_file(self, backend: Backend, path: str) -> None:
        backend.create("a/b", b"")
        with pytest.raises(MissingFileError) as caught:
            backend.read(path)
        assert caught.value.path == path
        assert backend.read_many([Range(path), Range("a/b"), Range(path, 3, 4)]) == [None, b"", None]

    def test_read_many_answers_in_the_order_asked_for(self, backend: Backend) -> None:
        for name in "abc":
            backend.create(name, name.encode() * 4)
        ranges = [Range("c", 1, 2), Range("a"), Range("missing"), Range("b", 2), Range("a", 0, 1), Range("a")]
        assert backend.read_many(ranges) == [b"c", b"aaaa", None, b"bb", b"a", b"aaaa"]
        assert backend.read_many([]) == []

    def test_a_mapped_file_stays_when_it_is_deleted(self, backend: Backend) -> None:
        backend.create("digits", b"0123456789")
        mapped = backend.map("digits")
        backend.delete(["digits"])
        if mapped is not None:
            assert (mapped[2:5], mapped[:], mapped.find(b"7")) == (b"234", b"0123456789", 7)
            with pytest.raises(MissingFileError) as caught:
                backend.map("digits")
            assert caught.value.path == "digits"

    def test_an_empty_file_can_be_mapped(self, backend: Backend) -> None:
        backend.create("empty", b"")
        mapped = backend.map("empty")
        assert mapped is None or (len(mapped), mapped[:], mapped.find(b"x")) == (0, b"", -1)

    # list

    def test_list_is_sorted_by_path_and_has_sizes(self, backend: Backend) -> None:
        # "." and "-" come before "/", letters after it: names of directories sort among names of files.
        paths = ["a.json", "a/b", "a-c", "a/b.c/d", "a/bb/c", "a0", "ab/z", "B", "é", "a/\U0001f600", "a/\uffee"]
        for size, path in enumerate(paths):
            backend.create(path, b"x" * size)
        entries = backend.list("")
        assert [entry.path for entry in entries] == sorted(paths)
        assert {entry.path: entry.size for entry in entries} == {path: size for size, path in enumerate(paths)}

    def test_list_of_a_prefix(self, backend: Backend) -> None:
        for path in ["ops/a/1", "ops/a/2", "ops/ab/1", "ops/a.b/1", "opsx/1", "snapshots/1/p"]:
            backend.create(path, b"")
        assert paths_of(backend, "ops/") == ["ops/a.b/1", "ops/a/1", "ops/a/2", "ops/ab/1"]
        assert paths_of(backend, "ops/a/") == ["ops/a/1", "ops/a/2"]
        assert len(paths_of(backend)) == 6

    def test_list_after_a_path(self, backend: Backend) -> None:
        for path in ["a/1", "a/2", "a/3", "a.b", "b/1"]:
            backend.create(path, b"")
        assert [entry.path for entry in backend.list("a/", "a/1")] == ["a/2", "a/3"]
        assert [entry.path for entry in backend.list("a/", "a/2x")] == ["a/3"]
        assert [entry.path for entry in backend.list("", "a/2")] == ["a/3", "b/1"]
        assert backend.list("a/", "a/3") == []

    def test_list_of_all_logs(self, backend: Backend) -> None:
        for agent in "abc":
            for number in range(1, 6):
                backend.create(segment_path(agent, number), b"")
        paths = [entry.path for entry in backend.list_logs({})]
        assert paths == [segment_path(agent, number) for agent in "abc" for number in range(1, 6)]
        if isinstance(backend, ListsWithLogs):
            files, logs = backend.list_with_logs("", paths[0], {})
            assert files == backend.list("", paths[0])
            assert logs is None or logs == backend.list_logs({})
        paths = [entry.path for entry in backend.list_logs({"a": 6, "b": 3, "x": 9})]
        assert paths == sorted(paths)
        assert {segment_path("b", number) for number in (3, 4, 5)} <= set(paths)
        assert {segment_path("c", number) for number in range(1, 6)} <= set(paths)

    def test_a_missing_prefix_is_an_empty_list(self, backend: Backend) -> None:
        assert paths_of(backend) == []
        assert backend.list("ops/") == []
        backend.create("file", b"")
        assert backend.list("file/") == []
        assert backend.list("a/b/c/") == []

    def test_a_listing_has_everything_that_was_there_before_while_others_create_and_delete(
        self, opener: OpenBackend
    ) -> None:
        writer, reader = opener(), opener()
        done = threading.Event()
        created: list[str] = []

        def write() -> None:
            for number in range(60):
                writer.create(f"kept/{number:03d}", b"")
                created.append(f"kept/{number:03d}")
                writer.create(f"snapshots/{number}/part", b"")
                writer.delete([f"snapshots/{number}/part"])
            done.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            while not done.is_set() and not writing.done():
                before = list(created)
                assert set(before) <= set(paths_of(reader))
            writing.result(60)
        assert paths_of(reader) == created

    # delete

    def test_delete_is_idempotent(self, backend: Backend) -> None:
        for path in ["snapshots/1-a/part", "snapshots/1-a/index", "archive/2026-Q4/a", "ops/a/1", "b"]:
            backend.create(path, b"")
        backend.delete(["snapshots/1-a/part", "never/was", "b", "b/c"])
        assert paths_of(backend) == ["archive/2026-Q4/a", "ops/a/1", "snapshots/1-a/index"]
        for _ in range(2):
            backend.delete(path for path in ["snapshots/1-a/index", "archive/2026-Q4/a", "ops/a/1"])
            assert paths_of(backend) == []
        backend.delete([])

    def test_a_deleted_path_can_be_created_again(self, opener: OpenBackend) -> None:
        one, other = opener(), opener()
        for turn in range(3):
            for path in ["snapshots/1-a/part", "archive/2026-Q4/a", "manifests/1"]:
                one.create(path, f"{turn}".encode())
                assert other.read(path) == f"{turn}".encode()
                other.delete([path])
                assert one.read_many([Range(path)]) == [None]

    # persist

    def test_persist_changes_nothing_that_can_be_seen(self, opener: OpenBackend) -> None:
        writer, other = opener(), opener()
        writer.create("manifests/1", b"x")
        appender = writer.appender("a")
        appender.append(b"1\n")
        before = other.list("manifests/") + other.list("ops/")
        other.persist(["manifests/1", segment_path("a", 1)])
        other.persist([])
        assert other.list("manifests/") + other.list("ops/") == before
        appender.append(b"2\n")
        assert log_of(other, "a") == b"1\n2\n"
        appender.close()

    # appender

    def test_positions_of_appends(self, backend: Backend) -> None:
        appender = backend.appender("planner")
        assert backend.list("ops/") == []
        assert appender.append(b"one\n") == Position(1, 0)
        second = appender.append(b"second\n")
        third = appender.append(b"3\n")
        if second.segment == 1:
            assert (second, third) == (Position(1, 4), Position(1, 11))
        for position, line in [(Position(1, 0), b"one\n"), (second, b"second\n"), (third, b"3\n")]:
            path = segment_path("planner", position.segment)
            assert backend.read(path, position.offset, position.offset + len(line)) == line
        assert log_of(backend, "planner") == b"one\nsecond\n3\n"
        appender.close()

    def test_every_append_is_visible_to_others_at_once(self, opener: OpenBackend) -> None:
        writer, reader = opener(), opener()
        appender = writer.appender("a")
        expected = b""
        for number in range(20):
            appender.append(b"%d\n" % number)
            expected += b"%d\n" % number
            assert log_of(reader, "a") == expected
            assert sum(entry.size for entry in reader.list("ops/a/")) == len(expected)
        appender.close()
        assert log_of(opener(), "a") == expected

    def test_a_new_appender_begins_a_new_segment(self, opener: OpenBackend) -> None:
        for session in range(1, 4):
            appender = opener().appender("a")
            before = {entry.path: entry.size for entry in opener().list("ops/")}
            position = appender.append(b"line of session %d\n" % session)
            assert position == Position(session, 0)
            appender.close()
            after = {entry.path: entry.size for entry in opener().list("ops/")}
            assert after == before | {segment_path("a", session): len(b"line of session 1\n")}

    def test_numbering_goes_on_above_the_highest_that_exists(self, backend: Backend) -> None:
        backend.create(segment_path("a", 7), b"torn")
        backend.create(segment_path("b", 100), b"")
        appender = backend.appender("a")
        assert appender.append(b"x\n") == Position(8, 0)
        appender.close()
        assert backend.read(segment_path("a", 7)) == b"torn"

    def test_advance_sets_a_floor(self, backend: Backend) -> None:
        appender = backend.appender("a")
        appender.advance(41)
        appender.advance(5)
        assert appender.append(b"x\n") == Position(42, 0)
        appender.close()
        appender = backend.appender("a")
        appender.advance(3)
        assert appender.append(b"x\n") == Position(43, 0)
        appender.close()

    def test_one_live_appender_per_agent(self, opener: OpenBackend) -> None:
        one, other = opener(), opener()
        appender = one.appender("a")
        for backend in (one, other):
            with pytest.raises(AgentBusyError) as caught:
                backend.appender("a")
            assert caught.value.agent == "a"
            assert "pid" in caught.value.holder
            assert caught.value.holder in str(caught.value)
        neighbour = other.appender("b")
        assert neighbour.append(b"b\n") == Position(1, 0)
        appender.append(b"a\n")
        appender.close()
        successor = other.appender("a")
        appender.close()  # Again: must not release the successor's name.
        with pytest.raises(AgentBusyError):
            one.appender("a")
        successor.close()
        neighbour.close()

    def test_a_name_is_kept_between_appends(self, backend: Backend) -> None:
        appender = backend.appender("agent")
        appender.check_name()
        appender.append(b"{}\n")
        appender.check_name()
        appender.close()

    def test_a_name_is_checked_while_another_thread_appends(self, backend: Backend) -> None:
        appender = backend.appender("agent")

        def append(count: int) -> None:
            for _ in range(count):
                appender.append(b"{}\n")

        with ThreadPoolExecutor(1) as pool:
            appending = pool.submit(append, 50)
            while not appending.done():
                appender.check_name()
            appending.result()
        appender.close()

    def test_a_name_is_free_while_no_appender_holds_it(self, opener: OpenBackend) -> None:
        one, other = opener(), opener()
        appender = one.appender("a")
        appender.append(b"1\n")
        assert [backend.is_free("a") for backend in (one, other)] == [False, False]
        appender.close()
        is_free = one.segments_grow  # elsewhere the answer is unknown
        assert [backend.is_free("a") for backend in (one, other)] == [is_free, is_free]
        successor = other.appender("a")
        assert successor.append(b"2\n") == Position(2, 0)
        assert not one.is_free("a")
        successor.close()

    def test_a_log_has_one_writer_also_when_lock_files_are_removed(self, opener: OpenBackend) -> None:
        """Somebody removes them as stale. The storage cannot lose what it keeps outside ``locks/``."""
        for written in (0, 1):
            agent = f"agent-{written}"
            first, acknowledged = opener().appender(agent), b""
            if written:
                first.append(b"before\n")
                acknowledged = b"before\n"
            janitor = opener()
            janitor.delete([entry.path for entry in janitor.list(LOCKS)])
            second = None
            with suppress(AgentBusyError):
                second = opener().appender(agent)
            for appender, line in [(second, b"second\n"), (first, b"first\n"), (second, b"then\n"), (first, b"last\n")]:
                with suppress(AgentFencedError):
                    if appender is not None:
                        appender.append(line)
                        acknowledged += line
            for appender in (first, second):
                if appender is not None:
                    appender.close()
            assert log_of(janitor, agent) == acknowledged
            third = opener().appender(agent)
            third.append(b"third\n")
            third.close()
            assert log_of(janitor, agent) == acknowledged + b"third\n"
            with janitor.lock("compaction"):
                pass

    def test_a_closed_appender_refuses(self, backend: Backend) -> None:
        appender = backend.appender("a")
        appender.append(b"x\n")
        appender.close()
        appender.close()
        with pytest.raises(ClosedError):
            appender.append(b"y\n")
        assert log_of(backend, "a") == b"x\n"

    def test_agents_write_at_the_same_time(self, opener: OpenBackend) -> None:
        agents = [f"agent-{number}" for number in range(8)]

        def write(agent: str) -> bytes:
            appender = opener().appender(agent)
            lines = [f"{agent} {number}\n".encode() for number in range(25)]
            for line in lines:
                appender.append(line)
            appender.close()
            return b"".join(lines)

        with ThreadPoolExecutor(len(agents)) as pool:
            written = list(pool.map(write, agents))
        reader = opener()
        assert [log_of(reader, agent) for agent in agents] == written
        assert {found[0] for entry in reader.list("ops/") if (found := segment_of(entry.path))} == set(agents)

    # lock

    def test_a_lock_excludes_everybody_until_released(self, opener: OpenBackend) -> None:
        one, other = opener(), opener()
        for _ in range(2):
            with one.lock("compaction"):
                for backend in (one, other):
                    with pytest.raises(LockedError) as caught, backend.lock("compaction"):
                        pytest.fail("the lock was held twice")
                    assert caught.value.lock == "compaction"
                    assert "pid" in caught.value.holder
                with other.lock("another"):
                    other.appender("compaction").close()
        with other.lock("compaction"):
            pass

    def test_a_lock_is_released_by_an_exception(self, opener: OpenBackend) -> None:
        one, other = opener(), opener()
        with pytest.raises(ZeroDivisionError), one.lock("compaction"):
            raise ZeroDivisionError
        with other.lock("compaction"):
            pass

    def test_a_lock_is_held_by_one_thread_at_a_time(self, opener: OpenBackend) -> None:
        holders = 0
        entered = 0
        counting = threading.Lock()

        def work(backend: Backend) -> None:
            nonlocal holders, entered
            for _ in range(30):
                try:
                    with backend.lock("shared"):
                        with counting:
                            holders += 1
                            assert holders == 1
                            entered += 1
                        with counting:
                            holders -= 1
                except LockedError:
                    continue

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, [opener() for _ in range(4)]))
        assert entered > 0

    # now

    def test_now_is_comparable_with_modified(self, backend: Backend) -> None:
        before = backend.now()
        backend.create("a", b"")
        appender = backend.appender("b")
        appender.append(b"x\n")
        appender.close()
        after = backend.now()
        # The clocks of some storages tick in steps of up to a second (S3).
        for entry in (*backend.list("ops/"), *(entry for entry in backend.list("") if entry.path == "a")):
            assert before - 1 <= entry.modified <= after + 1

    # close

    def test_a_closed_backend_refuses(self, opener: OpenBackend) -> None:
        backend = opener()
        backend.create("a", b"")
        backend.close()
        backend.close()
        calls: list[Callable[[], object]] = [
            lambda: backend.list(""),
            lambda: backend.read("a"),
            lambda: backend.read_many([Range("a")]),
            lambda: backend.map("a"),
            lambda: backend.create("b", b""),
            lambda: backend.delete(["a"]),
            lambda: backend.persist([]),
            lambda: backend.appender("a"),
            lambda: backend.lock("a").__enter__(),
            backend.now,
        ]
        for call in calls:
            with pytest.raises(ClosedError):
                call()
        assert opener().read("a") == b""

    def test_the_url_names_the_storage(self, backend: Backend) -> None:
        assert isinstance(backend.url, str)
        assert backend.url
