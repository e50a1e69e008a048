"""After a call that failed, later calls neither hide what has happened nor forget what they know."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

import opslog
from opslog.backends import posix
from opslog.format.commits import Set
from opslog.log.writer import LogWriter
from opslog.store import replica_of
from tests.support.bucket import BUCKETS, Bucket, Fault, Request
from tests.support.waiting import until

Store = opslog.Store[dict[str, Any]]


def opened(url: str | Path, agent: str) -> Store:
    return opslog.open(url, agent=agent, compact_after=None)


def no_sync(*_: object) -> None:
    raise OSError(errno.EIO, "no such luck")


@pytest.mark.parametrize(
    "call",
    [Store.undo, Store.changes, lambda store: store.archive(lambda document: True)],
    ids=["undo", "changes", "archive"],
)
@pytest.mark.parametrize("first", [Store.set, Store.create], ids=["plain", "with a transaction before"])
def test_what_rests_on_an_unknown_outcome_says_so(
    first: Callable[[Store, str, dict[str, Any]], None],
    call: Callable[[Store], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit may be in the log, where others see it, and is not in memory."""
    with opened(tmp_path, "b") as other:
        first(other, "y", {})
    with opened(tmp_path, "a") as store:
        with monkeypatch.context() as patch:
            patch.setattr(posix, "datasync", no_sync)
            with pytest.raises(opslog.CommitUnknownError):
                store["x"] = {"n": 1}
        with pytest.raises(opslog.ReopenError):
            call(store)
    with opened(tmp_path, "a") as store:
        assert store["x"] == {"n": 1}
        call(store)


def test_an_undo_takes_back_what_an_interrupted_set_has_queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with opened(tmp_path, "a") as store:
        with monkeypatch.context() as patch:
            patch.setattr(LogWriter, "finish", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store["x"] = {}
        assert store.undo()
        assert not store.undo()
    assert not opslog.open(tmp_path, read_only=True)


def test_a_lease_whose_release_has_an_unknown_outcome_may_be_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, "a") as store, opened(tmp_path, "b") as other:
        lease = opslog.Lease(store, "task")
        assert lease.claim()
        with monkeypatch.context() as patch:
            patch.setattr(posix, "datasync", no_sync)
            with pytest.raises(opslog.CommitUnknownError):
                lease.release()
        assert opslog.Lease(other, "task").claim()
        assert lease.remaining == 0.0
        with pytest.raises(opslog.LeaseLostError):
            lease.renew()


def in_bucket(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Bucket]:
    monkeypatch.setattr("opslog.backends.objects.backend._READS_MAX", 1)
    url = f"bucket://{name}"
    opened(url, "a").close()
    return url, BUCKETS[name]


def test_documents_are_counted_once_though_the_count_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the snapshot fails after each number of reads in turn."""
    monkeypatch.setattr("opslog.snapshot.runs.LOADED_BYTES", 0)  # so that the snapshot stays in the storage
    url, bucket = in_bucket("counting", monkeypatch)
    with opened(url, "a") as a:
        with a.batch():
            for number in range(500):
                a[f"d{number:05}"] = {"x": "y" * 1000}
        for number in range(40):
            a["z"] = {"n": number}
        a.compact()
    with opened(url, "b") as b:
        log = replica_of(b).log
        assert log is not None
        for group in range(2):
            for number in range(600):  # many in one append, so that a load keeps them as lines
                log.queue(Set("", 0, "", f"e{group}-{number:05}", msgspec.Raw(b'{"n":1}'), 1))
            log.flush()
        del b["d00001"]
    failures = 0
    for allowed in range(100):
        with opened(url, "c") as c:
            done: list[Request] = []

            def fault(request: Request, done: list[Request] = done, allowed: int = allowed) -> Fault | None:
                done.append(request)
                return Fault("refused") if len(done) > allowed else None

            with bucket.failing(fault):
                try:
                    len(c)
                except opslog.RetryError:
                    failures += 1
                else:
                    break
            assert len(c) == 501 + 1200 - 1 == sum(1 for _ in c)
    assert failures


def test_a_lost_log_is_noticed_after_a_listing_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    url, bucket = in_bucket("lost-log", monkeypatch)
    with opened(url, "a") as a, opened(url, "b") as b:
        with opened(url, "x") as x:
            x["doc"] = {}
        for number in range(60):
            b["z"] = {"n": number}
        hidden = {key: bucket.objects.pop(key) for key in list(bucket.objects) if "/ops/x/" in key}
        a.refresh()
        bucket.objects.update(hidden)
        b.compact()
        for key in hidden:
            del bucket.objects[key]
        with (
            pytest.raises(opslog.RetryError),
            bucket.failing(lambda request: Fault("refused") if request.key.endswith("ops/") else None),
        ):
            a.refresh()
        with pytest.raises(opslog.CorruptError, match="was lost"):
            a.refresh()
        a.close()


def test_a_compaction_that_is_published_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither if its garbage cannot be deleted, nor if the storage does not answer afterwards."""
    monkeypatch.setattr("opslog.backends.objects.backend._READS_MAX", 1)

    def is_delete(request: Request) -> bool:
        return request.method == "delete" and "locks/" not in request.key

    settings = opslog.Settings(grace_seconds=0, undo_window=0)
    with opslog.open("bucket://garbage", agent="a", compact_after=None, settings=settings) as store:
        bucket = BUCKETS["garbage"]
        for number in range(3):
            store["x"] = {"n": number}
            store.compact()
        store["x"] = {"n": "last"}
        with bucket.failing(lambda request: Fault("refused") if is_delete(request) else None):
            done = store.compact()
        assert done.number == 5
        assert done.garbage_error is not None
        assert not done.garbage.paths
        store["x"] = {"n": "again"}
        done = store.compact()
        assert done.garbage_error is None
        assert done.garbage.paths

        store["x"] = {"n": "once more"}
        monkeypatch.setattr(replica_of(store).freshness, "read_newest", no_answer)
        assert store.compact().number == 7
        assert store["x"] == {"n": "once more"}


def no_answer() -> NoReturn:
    raise opslog.RetryError("no answer")


def test_a_lock_that_cannot_be_given_back_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Others wait until its time is over."""
    with opened("bucket://lock", "a") as store:
        store["x"] = {}
        with BUCKETS["lock"].failing(lambda request: Fault("refused") if request.method == "delete" else None):
            store.compact()
        assert "was not given back" in caplog.text
        with pytest.raises(opslog.LockedError):
            store.compact()


def test_an_automatic_compaction_reports_garbage_that_it_could_not_delete() -> None:
    settings = opslog.Settings(grace_seconds=0, undo_window=0)
    with opslog.open("bucket://automatic", agent="a", compact_after=3, settings=settings) as store:
        compaction = replica_of(store).compaction
        for number in range(2):
            store["x"] = {"n": number}
            store.compact()
        with BUCKETS["automatic"].failing(
            lambda request: Fault("refused") if request.method == "delete" and "locks/" not in request.key else None
        ):
            for number in range(3):
                store["x"] = {"n": number}
            until(lambda: compaction.error is not None)
        assert "not deleted" in (store.stats().compaction_error or "")
        assert store["x"] == {"n": 2}
