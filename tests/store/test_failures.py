"""Failing writes: memory and log agree, the error says what to do, and no commit is dropped silently."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import posix
from opslog.format.layout import segment_path
from opslog.log.writer import LogWriter
from opslog.store import replica_of
from tests.support.faults import KINDS, attempts, check_failed_sync, failing, stored, write_first

Store = opslog.Store[dict[str, Any]]


class TestNotWritten:
    """The storage refuses the write, and says so before anything has happened."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        ("code", "advice"),
        [
            (errno.ENOSPC, "No space left on device; free some space"),
            (errno.EDQUOT, "quota"),
            (errno.EROFS, "Read-only file system; .*mount it for writing"),
            (errno.EFBIG, "File too large; .*ulimit -f"),
            (errno.EIO, "Input/output error; .*dmesg"),
        ],
    )
    def test_memory_and_log_agree(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, code: int, advice: str
    ) -> None:
        with opslog.open(tmp_path, agent="a") as store:
            store["old"] = {"turn": 1}
            store["old"] = {"turn": 2}
            attempt = attempts(store)[kind]
            for bytes_written in (0, 1, 30):
                with monkeypatch.context() as patch:
                    patch.setattr(os, "write", write_first(bytes_written, code))
                    for _ in range(2):
                        with pytest.raises(opslog.WriteFailedError, match=advice) as caught:
                            attempt()
                        assert str(tmp_path) in str(caught.value)
                        assert "is not in the log" in str(caught.value)
                        assert caught.value.durable == 0, "none of this commit, however much of the line was written"
                        assert dict(store.items()) == {"old": {"turn": 2}} == stored(tmp_path)
            assert dict(store.items()) == {"old": {"turn": 2}} == stored(tmp_path)
            # The disk works again, and so does the store.
            attempt()
            store["later"] = {}
            assert dict(store.items()) == stored(tmp_path) != {"old": {"turn": 2}, "later": {}}

    def test_a_disk_that_is_really_full(self, small_disk: Path) -> None:
        root = small_disk / "store"
        ballast = small_disk / "ballast"
        with opslog.open(root, agent="a", compact_after=None) as store:
            ballast.write_bytes(b"x" * 1_200_000)
            acknowledged: dict[str, Any] = {}

            def fill() -> None:
                for number in range(1000):
                    document = {"number": number, "text": "x" * 5000}
                    store[f"doc-{number}"] = document
                    acknowledged[f"doc-{number}"] = document

            def fill_in_one_batch() -> None:
                with store.batch():
                    fill()

            with pytest.raises(opslog.WriteFailedError, match="No space left on device; free some space"):
                fill()
            assert acknowledged
            assert dict(store.items()) == acknowledged == stored(root)
            expected = dict(acknowledged)
            with pytest.raises(opslog.WriteFailedError, match="free some space"):
                fill_in_one_batch()
            with pytest.raises(opslog.WriteFailedError, match="free some space"):
                store.compact()
            assert dict(store.items()) == expected == stored(root)
            assert not list(root.glob("snapshots/*/*")), "parts of a failed compaction"
            ballast.unlink()
            store["last"] = {}
            store.compact()
            store.refresh()
            assert dict(store.items()) == expected | {"last": {}} == stored(root)

    def test_a_full_disk_and_a_new_store(self, small_disk: Path) -> None:
        ballast = small_disk / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        with pytest.raises(opslog.WriteFailedError, match="free some space"):
            opslog.open(small_disk / "store", agent="a")
        ballast.unlink()
        with opslog.open(small_disk / "store", agent="a") as store:
            store["a"] = {}
        assert stored(small_disk / "store") == {"a": {}}

    def test_a_filesystem_mounted_read_only(self, small_disk: Path) -> None:
        root = small_disk / "store"
        with opslog.open(root, agent="a", settings=opslog.Settings(undo_window=1)) as store:
            store["a"] = {"turn": 1}
            store["a"] = {"turn": 2}
            store.compact()
            store.archive(lambda document: False)
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        with pytest.raises(opslog.WriteFailedError, match="read_only=True"):
            opslog.open(root, agent="a")
        with opslog.open(root, read_only=True) as reader:
            assert dict(reader.items()) == {"a": {"turn": 2}}
            assert reader.refresh() == []
            assert len(reader.history("a")) == 2
            assert reader.stats().documents == 1
            with pytest.raises(opslog.ReadOnlyError):
                reader["a"] = {}
        with opslog.open(root, as_of=1) as past:
            assert dict(past.items()) == {"a": {"turn": 1}}
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
        with opslog.open(root, agent="a") as store:
            store["a"] = {"turn": 3}
        assert stored(root) == {"a": {"turn": 3}}

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_directory_is_removed(self, tmp_path: Path, kind: str) -> None:
        root, copy = tmp_path / "store", tmp_path / "copy"
        with opslog.open(root, agent="a") as store:
            store["old"] = {"turn": 1}
            store["old"] = {"turn": 2}
            shutil.copytree(root, copy)
            shutil.rmtree(root)
            for _ in range(2):
                with pytest.raises(opslog.WriteFailedError, match="removed or moved: put it back"):
                    attempts(store)[kind]()
                assert dict(store.items()) == {"old": {"turn": 2}}
            with pytest.raises(opslog.OpslogError, match="no store at"):
                store.refresh()
            copy.rename(root)
            # The lock in the old directory does not protect the new one.
            with pytest.raises(opslog.AgentFencedError, match="open it again"):
                attempts(store)[kind]()
            assert dict(store.items()) == {"old": {"turn": 2}} == stored(root)
        with opslog.open(root, agent="a") as store:
            attempts(store)[kind]()
            assert dict(store.items()) == stored(root)

    def test_the_directory_is_moved_and_moved_back(self, tmp_path: Path) -> None:
        root, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
        with opslog.open(root, agent="a") as store:
            store["a"] = {"turn": 1}
            root.rename(elsewhere)
            with suppress(opslog.WriteFailedError):
                store["b"] = {}
            assert dict(store.items()) == stored(elsewhere)
            elsewhere.rename(root)
            store["c"] = {}
            assert dict(store.items()) == stored(root)


class TestUnknown:
    """The outcome of a commit is unknown: the store refuses further calls, and after reopening the commit is whole or
    absent."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_fdatasync_fails(self, tmp_path: Path, kind: str) -> None:
        check_failed_sync(lambda: opslog.open(tmp_path, agent="a"), tmp_path, kind)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("moment", ["before", "halfway", "after"])
    def test_an_interrupt_inside_an_append(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, moment: str
    ) -> None:
        real_write, real_sync = os.write, posix.datasync

        def write(descriptor: int, data: bytes) -> int:
            if moment == "halfway":
                real_write(descriptor, bytes(data)[:20])
            if moment != "after":
                signal.raise_signal(signal.SIGINT)
            return real_write(descriptor, data)

        def datasync(descriptor: int) -> None:
            real_sync(descriptor)
            signal.raise_signal(signal.SIGINT)

        before = {"old": {"turn": 2}}
        with opslog.open(tmp_path, agent="a") as store:
            store["old"] = {"turn": 1}
            store["old"] = {"turn": 2}
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", write)
                patch.setattr(posix, "datasync", datasync)
                with pytest.raises(KeyboardInterrupt):
                    attempts(store)[kind]()
            assert dict(store.items()) == before
            with pytest.raises(opslog.ReopenError, match="open it again"):
                store["next"] = {}
        with opslog.open(tmp_path, agent="a") as store:
            assert (dict(store.items()) != before) == (moment == "after")
            store["next"] = {}
            assert dict(store.items()) == stored(tmp_path)

    def test_an_interrupt_before_an_append(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The commit waits in the queue, and goes with the next one into the log and into memory."""

        def wait(self: LogWriter, pending: object) -> None:
            signal.raise_signal(signal.SIGINT)

        with opslog.open(tmp_path, agent="a") as store:
            with monkeypatch.context() as patch:
                patch.setattr(LogWriter, "wait", wait)
                with pytest.raises(KeyboardInterrupt):
                    store["interrupted"] = {}
            assert dict(store.items()) == {} == stored(tmp_path)
            store["next"] = {}
            assert dict(store.items()) == stored(tmp_path) == {"interrupted": {}, "next": {}}


class TestGroups:
    """Commits of many threads share an append, and a part of the append fails."""

    THREADS = 8

    def write_together(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, second: Callable[[], None]
    ) -> tuple[set[str], dict[str, BaseException]]:
        """Let one thread's append wait until the commits of all other threads are queued after it. These form one
        group, and `second` is called before that group is written. Returns whose calls returned, and the errors of the
        others."""
        real, appends = os.write, 0
        writer = replica_of(store).log
        assert writer is not None

        def write(descriptor: int, data: bytes) -> int:
            nonlocal appends
            appends += 1
            if appends == 1:
                assert wait_until(lambda: len(writer._queue) == self.THREADS - 1)
                written = real(descriptor, data)
                second()
                return written
            return real(descriptor, data)

        def work(id: str) -> None:
            store[id] = {"id": id}

        monkeypatch.setattr(os, "write", write)
        ids = [f"doc-{number}" for number in range(self.THREADS)]
        with ThreadPoolExecutor(self.THREADS) as pool:
            futures = {id: pool.submit(work, id) for id in ids}
            errors = {id: error for id, future in futures.items() if (error := future.exception()) is not None}
        monkeypatch.undo()
        return set(ids) - set(errors), errors

    @pytest.mark.parametrize("room", [0, 10, 250, 300, 600])
    def test_some_are_written_and_some_are_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
    ) -> None:
        with opslog.open(tmp_path, agent="a") as store:
            store["old"] = {}
            size = (tmp_path / segment_path("a", 1)).stat().st_size
            done, errors = self.write_together(
                store, monkeypatch, lambda: monkeypatch.setattr(os, "write", write_first(room))
            )
            line = size + 20  # at least as long as any of the lines
            assert 1 + room // line <= len(done) < self.THREADS
            assert {type(error) for error in errors.values()} == {opslog.WriteFailedError}
            assert len({id(error) for error in errors.values()}) == len(errors)
            assert set(store) == done | {"old"} == set(stored(tmp_path))
            store["later"] = {}
        assert set(stored(tmp_path)) == done | {"old", "later"}

    def test_the_outcome_of_all_is_unknown(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.write

        def write_then_break(descriptor: int, data: bytes) -> int:
            monkeypatch.setattr(posix, "datasync", failing(errno.EIO))
            return real(descriptor, data)

        with opslog.open(tmp_path, agent="a") as store:
            store["old"] = {}
            done, errors = self.write_together(
                store, monkeypatch, lambda: monkeypatch.setattr(os, "write", write_then_break)
            )
            assert len(done) == 1
            assert {type(error) for error in errors.values()} == {opslog.CommitUnknownError}
            assert set(store) == done | {"old"}
            with pytest.raises(opslog.ReopenError):
                store["later"] = {}
        assert done | {"old"} <= set(stored(tmp_path))
        with opslog.open(tmp_path, agent="a") as store:
            store["later"] = {}
        assert "later" in stored(tmp_path)

    def test_a_group_whose_leader_is_interrupted_early_is_written_by_a_follower(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C reaches the thread that writes for all of them, just after it has taken the queue."""
        with opslog.open(tmp_path, agent="a") as store:
            store["old"] = {}
            writer = replica_of(store).log
            assert writer is not None
            follower = threading.Thread(target=store.set, args=("follower", {}))
            real_flush, real_append = LogWriter._flush, LogWriter._try_append

            def flush(self: LogWriter) -> None:
                # The leader, while it holds the log: let the follower queue its commit, too.
                if threading.current_thread() is threading.main_thread():
                    follower.start()
                    assert wait_until(lambda: len(self._queue) == 2)
                real_flush(self)

            def append(self: LogWriter, group: Any) -> None:
                if threading.current_thread() is threading.main_thread():
                    signal.raise_signal(signal.SIGINT)
                real_append(self, group)

            with monkeypatch.context() as patch:
                patch.setattr(LogWriter, "_flush", flush)
                patch.setattr(LogWriter, "_try_append", append)
                with pytest.raises(KeyboardInterrupt):
                    store["leader"] = {}
            follower.join()
            assert set(store) == {"old", "leader", "follower"} == set(stored(tmp_path))
            store["later"] = {}
        assert set(stored(tmp_path)) == {"old", "leader", "follower", "later"}


class TestBuffered:
    """`durability="buffered"`: a failure shows at the next call, at flush or at close, and no commit is dropped
    silently."""

    @staticmethod
    def failed_in_background(store: Store, monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOSPC) -> None:
        """Set a document. Return when the flusher has failed to write it and the disk works again."""
        done = threading.Event()

        def write(descriptor: int, data: bytes) -> int:
            done.set()
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            store["lost"] = {}
            assert done.wait(60)
            assert wait_until(lambda: replica_of(store).failure is not None)

    @staticmethod
    def calls(store: Store) -> dict[str, Callable[[], object]]:
        return attempts(store) | {
            "flush": store.flush,
            "get": lambda: store["old"],
            "refresh": store.refresh,
            "compact": store.compact,
            "close": store.close,
        }

    @pytest.mark.parametrize("name", [*KINDS, "flush", "get", "refresh", "compact", "close"])
    def test_a_failure_in_the_background_surfaces_at_the_next_call(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        store = opslog.open(tmp_path, agent="a", durability="buffered")
        store["old"] = {}
        store.flush()
        self.failed_in_background(store, monkeypatch)
        with pytest.raises(opslog.OpslogError, match=r"No space left on device; free some space"):
            self.calls(store)[name]()
        store.close()
        assert stored(tmp_path) == {"old": {}}

    @pytest.mark.parametrize("call", ["flush", "close"])
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_a_failure_at_flush_or_close(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
    ) -> None:
        store = opslog.open(tmp_path, agent="a", durability="buffered")
        store["old"] = {}
        store.flush()
        with monkeypatch.context() as patch:
            if code == errno.EIO:
                patch.setattr(posix, "datasync", failing(code))
            else:
                patch.setattr(os, "write", write_first(0, code))
            store["new"] = {}
            with pytest.raises(opslog.OpslogError, match=os.strerror(code)):
                self.calls(store)[call]()
        store.close()
        assert stored(tmp_path).keys() - {"new"} == {"old"}
        with opslog.open(tmp_path, agent="a") as store:
            store["later"] = {}
        assert stored(tmp_path).keys() - {"new"} == {"old", "later"}

    def test_a_set_after_a_failure_does_not_outlive_the_lost_commits(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A later commit may depend on an earlier one. So with a lost commit everything queued after it is lost,
        too."""
        store = opslog.open(tmp_path, agent="a", durability="buffered")
        store["old"] = {}
        store.flush()
        with monkeypatch.context() as patch:

            def write(descriptor: int, data: bytes) -> int:
                beside = threading.Thread(target=store.set, args=("second", {"rests on": "first"}))
                beside.start()
                beside.join()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            patch.setattr(os, "write", write)
            store["first"] = {}
            with pytest.raises(opslog.OpslogError, match="free some space"):
                store.flush()
        with suppress(opslog.WriteFailedError):
            store.close()
        assert stored(tmp_path) == {"old": {}}

    def test_an_interrupted_flush_does_not_count_as_done(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # The flusher waits, so that the interrupt comes to the main thread.
        store = opslog.open(tmp_path, agent="a", durability="buffered", buffer_seconds=3600)
        store["old"] = {}
        store.flush()

        def write(descriptor: int, data: bytes) -> int:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            store["new"] = {}
            with pytest.raises(KeyboardInterrupt):
                store.flush()
        for call in (store.flush, lambda: store["new"]):
            with pytest.raises(opslog.ReopenError, match="open it again"):
                call()
        with suppress(opslog.ReopenError):
            store.close()
        assert stored(tmp_path) == {"old": {}}

    def test_an_interrupted_close_gives_the_name_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = opslog.open(tmp_path, agent="a", durability="buffered", buffer_seconds=3600)
        store["old"] = {}
        store.flush()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, data: signal.raise_signal(signal.SIGINT))
            store["new"] = {}
            with pytest.raises(KeyboardInterrupt):
                store.close()
        with opslog.open(tmp_path, agent="a") as again:
            assert dict(again.items()) == {"old": {}}
            again["next"] = {}
        assert stored(tmp_path) == {"old": {}, "next": {}}

    def test_a_disk_that_is_really_full(self, small_disk: Path) -> None:
        root = small_disk / "store"
        store = opslog.open(root, agent="a", durability="buffered", compact_after=None)
        sets = 0

        def fill() -> None:
            nonlocal sets
            while sets < 100_000:
                store[f"doc-{sets:06}"] = {"text": "x" * 1000}
                sets += 1

        with pytest.raises(opslog.ReopenError, match="free some space"):
            fill()
        with suppress(opslog.WriteFailedError):
            store.close()
        found = list(stored(root))
        assert 1000 < len(found) < sets
        assert found == [f"doc-{number:06}" for number in range(len(found))], "not what was set first"


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether the condition became true within a minute."""
    event = threading.Event()
    return any(condition() or event.wait(0.001) for _ in range(60_000))


@pytest.mark.parametrize("durability", ["fsync", "buffered"])
def test_a_store_that_broke_and_was_closed_does_not_keep_its_directory_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Any
) -> None:
    """This holds as long as somebody keeps the store and the error. The store remembers the failure as an error without
    the frames of the failed call, because those hold the directory."""
    root = tmp_path / "store"
    store = opslog.open(root, agent="a", durability=durability, compact_after=None)

    def fail(descriptor: int) -> None:
        tree = replica_of(store).backend.tree()  # type: ignore[attr-defined]
        raise OSError(errno.EIO, os.strerror(errno.EIO), tree.path)

    store["old"] = {}
    store.flush()
    with monkeypatch.context() as patch:
        patch.setattr(posix, "datasync", fail)
        with pytest.raises(opslog.ReopenError) as raised:  # noqa: PT012
            store["new"] = {}
            store.flush()
    with suppress(opslog.ReopenError):
        store.close()
    assert open_within(root) == []
    assert "Input/output error" in str(raised.value)


def open_within(root: Path) -> list[str]:
    """The paths below a directory that this process has open."""
    paths = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            paths.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in paths if path.startswith(str(root))]
