"""A crash of a store with `durability="buffered"` loses less than two buffers, however slow the storage is.
`docs/operations.md` says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opslog
from opslog.backends import open_backend, posix
from opslog.format.commits import decode_commits, encode_commit
from opslog.format.layout import segment_path
from opslog.format.torn import joined
from opslog.log.reader import list_log
from opslog.store import replica_of
from tests.support import bucket
from tests.support.waiting import until

BUFFER_BYTES = 16 * 1024


@contextmanager
def stalled_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No fdatasync returns inside the block. The event is set as soon as one is under way."""
    stuck, go_on, datasync = threading.Event(), threading.Event(), posix.datasync

    def stall(descriptor: int) -> None:
        stuck.set()
        go_on.wait()
        datasync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(posix, "datasync", stall)
        try:
            yield stuck
        finally:
            go_on.set()


@contextmanager
def stalled_bucket(url: str) -> Iterator[threading.Event]:
    """The same for puts."""
    stuck, go_on = threading.Event(), threading.Event()

    def stall(request: bucket.Request) -> None:
        if request.method == "put_new":
            stuck.set()
            go_on.wait()

    with bucket.BUCKETS[url.removeprefix("bucket://")].failing(stall):
        try:
            yield stuck
        finally:
            go_on.set()


@pytest.mark.parametrize("writers", [1, 4])
@pytest.mark.parametrize("storage", ["directory", "bucket"])
@pytest.mark.parametrize("size", [100, 8192, 3 * BUFFER_BYTES])
def test_a_crash_loses_less_than_two_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str, writers: int, size: int
) -> None:
    """The storage pauses, and writers continue until each of them waits. What is then acknowledged and not in the log
    is what a crash would lose."""
    url = str(tmp_path / "store") if storage == "directory" else f"bucket://buffers-{tmp_path.name}"
    options: dict[str, Any] = {"buffer_seconds": 3600, "buffer_bytes": BUFFER_BYTES, "compact_after": None}
    document = {"text": "x" * size}
    acknowledged: list[str] = []
    waiting: set[int] = set()
    with opslog.open(url, agent="a", durability="buffered", **options) as store:
        log = replica_of(store).log
        assert log is not None
        store["first"] = {}
        store.flush()
        alone, run = log._alone, log._alone.run

        def wait(work: Callable[..., Any], *arguments: Any) -> Any:
            waiting.add(threading.get_ident())  # in the append that does not return, or after it in the queue
            try:
                return run(work, *arguments)
            finally:
                waiting.discard(threading.get_ident())

        monkeypatch.setattr(alone, "run", wait)

        def write(writer: int) -> None:
            for number in range(10 * BUFFER_BYTES // size):
                id = f"{writer}-{number}"
                store[id] = document
                acknowledged.append(id)

        threads = [threading.Thread(target=write, args=(writer,), daemon=True) for writer in range(writers)]
        with stalled_disk(monkeypatch) if storage == "directory" else stalled_bucket(url) as stuck:
            for thread in threads:
                thread.start()
            stuck.wait()
            until(lambda: all(thread.ident in waiting or not thread.is_alive() for thread in threads))
            would_be_lost = set(acknowledged)
        for thread in threads:
            thread.join()
    backend = open_backend(url, create=False)
    paths = [segment_path("a", segment.number) for segment in list_log(backend, "a")]
    written = [commit for path in paths for commit in decode_commits(backend.read(path), path, 0)]
    # The line sizes in the buffer; in the log a line that was written together with the one before it is longer.
    lost = sum(len(encode_commit(one)) for one in written if isinstance(one, opslog.Set) and one.id in would_be_lost)
    assert lost < 2 * BUFFER_BYTES
    assert lost or size > BUFFER_BYTES, "a commit beyond the size of the buffer waits until it is written"
    assert len(written) == 1 + len(acknowledged)


def test_a_commit_takes_fourteen_bytes_more_where_it_is_written_together_with_another() -> None:
    """A crash may lose this much more than two buffers in the log, for each commit."""
    line = encode_commit(opslog.Set("2026-11-20T12:00:00.000000Z", 1, "a", "x", msgspec.Raw(b"{}")))
    assert len(joined(line)) - len(line) == 14


def test_a_call_that_was_interrupted_behind_the_queue_is_written_by_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though no other call of the store follows."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with opslog.open(tmp_path, agent="a", durability="buffered", compact_after=None) as store:
        log = replica_of(store).log
        assert log is not None
        store["old"] = {}
        store.flush()
        with monkeypatch.context() as patch:
            patch.setattr(log, "finish", interrupt)
            with pytest.raises(KeyboardInterrupt):
                store["x"] = {"n": 1}
        until(lambda: log.is_settled)
        with opslog.open(tmp_path, read_only=True) as reader:
            assert reader["x"] == {"n": 1}
        with monkeypatch.context() as patch:
            patch.setattr(log, "wait", interrupt)
            with pytest.raises(KeyboardInterrupt):
                store.undo()
        until(lambda: log.is_settled)
        with opslog.open(tmp_path, read_only=True) as reader:
            assert "x" not in reader
