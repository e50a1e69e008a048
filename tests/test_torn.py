"""Zeros that a power cut leaves in a log: a torn tail if nothing there was acknowledged, damage if something was."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import opslog
from opslog.backends import Backend, open_backend, posix
from opslog.errors import CorruptError
from opslog.format.commits import Set, encode_commit
from opslog.format.layout import manifest_path, segment_path
from opslog.format.manifest import Manifest, encode_manifest
from opslog.format.torn import joined
from opslog.log import reader as log_module
from opslog.log.reader import Cursor, list_log
from opslog.store import replica_of
from opslog.verify.verify import verify


def line(clock: int) -> bytes:
    text = '{"ts":"no","clock":7,"agent":"a","op":"seal"}'  # like a line of its own, but not one
    data = msgspec.json.encode({"n": clock, "text": text})
    return encode_commit(Set("2026-11-24T12:00:00.000000Z", clock, "a", f"id-{clock}", msgspec.Raw(data)))


ACKNOWLEDGED = line(1) + line(2) + joined(line(3))
GROUP = line(4) + joined(line(5)) + joined(line(6)) + joined(line(7))
HOLES = [
    (start, end)
    for start, end in itertools.combinations(range(0, len(GROUP) + 1, 11), 2)
    if start % 22 == 0 or end - start < 60
]


@pytest.fixture
def backend() -> Iterator[Backend]:
    with_zeros = open_backend("memory://")
    with_zeros.create(manifest_path(1), encode_manifest(Manifest(number=1, created="2026-11-24T12:00:00.000000Z")))
    yield with_zeros
    with_zeros.close()


def forward(backend: Backend, cursor: Cursor) -> list[int]:
    return [commit.clock for _, commit in cursor.read(backend, list_log(backend, "a"))]


def backward(backend: Backend, cursor: Cursor) -> list[int]:
    chunks = list(cursor.read_newest_first(backend, list_log(backend, "a")))
    return [commit.clock for chunk in reversed(chunks) for commit in chunk.commits]


@pytest.fixture(params=[forward, backward])
def read(request: pytest.FixtureRequest) -> Callable[[Backend, Cursor], list[int]]:
    way: Callable[[Backend, Cursor], list[int]] = request.param
    return way


@pytest.fixture(params=[50, 10**6])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is read at once."""
    monkeypatch.setattr(log_module, "_READ_BYTES", request.param)
    monkeypatch.setattr(log_module, "_CHUNK_BYTES", request.param)
    monkeypatch.setattr(log_module, "_LAST_BYTES", request.param)


def put(backend: Backend, number: int, data: bytes) -> None:
    backend.delete([segment_path("a", number)])
    backend.create(segment_path("a", number), data)


def with_hole(data: bytes, start: int, end: int) -> bytes:
    return data[:start] + bytes(end - start) + data[end:]


@pytest.mark.usefixtures("chunks")
def test_zeros_in_what_was_never_acknowledged_are_a_torn_tail(
    backend: Backend, read: Callable[[Backend, Cursor], list[int]]
) -> None:
    for start, end in HOLES:
        put(backend, 1, ACKNOWLEDGED + with_hole(GROUP, start, end))
        whole = [1, 2, 3, *range(4, 4 + GROUP[:start].count(b"\n"))]
        cursor = Cursor("a")
        assert read(backend, cursor) == whole, (start, end)
        assert read(backend, cursor) == [], "and nothing is new there"
        put(backend, 2, line(8))
        assert read(backend, cursor) == [8]
        assert read(backend, Cursor("a")) == [*whole, 8]
        backend.delete([segment_path("a", 2)])


@pytest.mark.usefixtures("chunks")
def test_zeros_in_what_was_acknowledged_are_damage(
    backend: Backend, read: Callable[[Backend, Cursor], list[int]]
) -> None:
    data = GROUP + line(8)
    for start, end in HOLES:
        put(backend, 1, ACKNOWLEDGED + with_hole(data, start, end))
        with pytest.raises(CorruptError) as caught:
            read(backend, Cursor("a"))
        first = data.rfind(b"\n", 0, start) + 1
        assert (caught.value.path, caught.value.offset) == (segment_path("a", 1), len(ACKNOWLEDGED) + first)


def test_verify_distinguishes_them(backend: Backend) -> None:
    hole = (len(line(4)) + 30, len(line(4)) + 90)
    put(backend, 1, ACKNOWLEDGED + with_hole(GROUP, *hole))
    put(backend, 2, line(8))
    (problem,) = verify(backend).problems
    assert problem.severity == "note"
    assert (problem.path, problem.offset) == (segment_path("a", 1), len(ACKNOWLEDGED + line(4)))
    assert f"{len(GROUP) - len(line(4))} bytes with zeros among them" in problem.message
    assert verify(backend).commits == 5
    put(backend, 1, ACKNOWLEDGED + with_hole(GROUP, *hole) + line(8))
    put(backend, 2, line(9))
    problems = verify(backend).problems
    assert [problem.severity for problem in problems] == ["error"]
    assert problems[0].offset == len(ACKNOWLEDGED + line(4))


def test_a_line_that_zeros_left_whole_is_seen_right_behind_them(
    backend: Backend, read: Callable[[Backend, Cursor], list[int]]
) -> None:
    """Zeros that begin and end with a line join it with the next line."""
    put(backend, 1, line(1) + bytes(len(line(2))) + line(3))
    with pytest.raises(CorruptError) as caught:
        read(backend, Cursor("a"))
    assert caught.value.offset == len(line(1))
    put(backend, 1, line(1) + bytes(len(line(2))) + joined(line(3)))
    assert read(backend, Cursor("a")) == [1]


def test_commits_that_share_an_append_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commit of each append, or a single one, does not say so."""
    with opslog.open(tmp_path, agent="a", durability="buffered", buffer_seconds=1e6) as store:
        for group in (1, 3, 2):
            for number in range(group):
                store[str(number)] = {}
            store.flush()
    data = (tmp_path / segment_path("a", 1)).read_bytes()
    assert [b'"joined":true' in line for line in data.splitlines()] == [False, False, True, True, False, True]
    # Threads that wait for each other's append, too.
    syncing, go_on = threading.Event(), threading.Event()
    real = posix.datasync

    def slow(descriptor: int) -> None:
        syncing.set()
        assert go_on.wait(60)
        real(descriptor)

    with opslog.open(tmp_path, agent="b", compact_after=None) as store:
        store["begun"] = {}
        monkeypatch.setattr(posix, "datasync", slow)
        threads = [threading.Thread(target=store.set, args=(f"t{number}", {})) for number in range(4)]
        threads[0].start()
        assert syncing.wait(60)
        for thread in threads[1:]:
            thread.start()
        log = replica_of(store).log
        assert log is not None
        while len(log._queue) < 3:
            threading.Event().wait(0.001)
        go_on.set()
        for thread in threads:
            thread.join()
        assert len(store) == 3 + 5
    data = (tmp_path / segment_path("b", 1)).read_bytes()
    assert [b'"joined":true' in line for line in data.splitlines()] == [False, False, False, True, True]
