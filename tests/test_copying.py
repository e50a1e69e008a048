"""Copying stores from one storage to another."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import Backend, open_backend
from opslog.bulk.copying import LOCK, check_apart, copy
from opslog.cli.program import run
from opslog.errors import RetryError
from opslog.format.layout import STORE, archive_path, manifest_path, part_path, segment_path, temporary_path
from opslog.verify.verify import verify
from tests.support.bucket import BUCKETS, Bucket, Fault

Store = opslog.Store[dict[str, Any]]
_numbers = itertools.count()


@pytest.fixture
def bucket() -> str:
    """A new bucket in memory."""
    return f"bucket://copying-{next(_numbers)}"


def fill(url: str, **options: Any) -> dict[str, Any]:
    """A store with a bit of everything."""
    with (
        opslog.open(url, agent="a", compact_after=None, **options) as a,
        opslog.open(url, agent="b", compact_after=None) as b,
    ):
        for number in range(100):
            a[f"{number}"] = {"number": number}
        a.compact(keep_history="forever")
        with b.batch():
            b["x"] = {"text": "é" * 100}
            b["y"] = {}
        b.undo()
        a.refresh()
        a.archive(lambda document: document.get("number") == 7, "old")
        for number in range(50):
            a[f"{number}"] = {"again": number}
        a.compact()
        return dict(a.items())


def read(url: str) -> dict[str, Any]:
    with opslog.open(url, read_only=True) as store:
        return dict(store.items())


def files(backend: Backend) -> dict[str, bytes]:
    """The files that a copy has, so without the store's id."""
    found = backend.list("")
    own = ("locks/", STORE)
    return {entry.path: backend.read(entry.path) for entry in found if not entry.path.startswith(own)}


def test_a_copy_is_the_store_with_its_past(tmp_path: Path, bucket: str) -> None:
    """From a directory into a bucket, and back. Each of them can be used further."""
    expected = fill(str(tmp_path / "first"))
    first, second, third = open_backend(tmp_path / "first"), open_backend(bucket), open_backend(tmp_path / "third")
    done = copy(first, second)
    assert done.report.problems == []
    assert files(second) == files(first)
    assert (done.files, done.written) == (len(files(first)), len(files(first)))
    assert done.bytes == sum(map(len, files(first).values()))
    with opslog.open(bucket, agent="a") as store:
        assert dict(store.items()) == expected
        assert store.load_archive("old") == {"7": {"number": 7}}
        store["new"] = {}
        assert store.undo()
    with opslog.open(bucket, as_of=100) as past:
        assert len(past) == 100
    assert verify(second).problems == []
    assert copy(second, third).report.problems == []
    with opslog.open(tmp_path / "third", agent="a", compact_after=None) as store:
        assert dict(store.items()) == expected
        store["newer"] = {}
        assert store.compact().number is not None
    assert verify(third).problems == []


def test_a_copy_from_a_bucket_whose_logs_are_all_compacted(tmp_path: Path, bucket: str) -> None:
    settings = opslog.Settings(undo_ttl_seconds=0, grace_seconds=0)
    with opslog.open(bucket, agent="a", settings=settings) as store:
        store["x"] = {}
    with opslog.open(bucket, agent="b") as store:
        store.compact()
        store.compact()
    assert copy(open_backend(bucket), open_backend(tmp_path)).report.problems == []
    with opslog.open(tmp_path, agent="a") as store:
        store["y"] = {}
        assert (tmp_path / segment_path("a", 3)).exists(), "after the set and the seal"
        assert store.compact().number is None
    assert read(str(tmp_path)).keys() == {"x", "y"}
    assert verify(open_backend(tmp_path)).problems == []


def test_a_copy_goes_on_after_every_failure(tmp_path: Path, bucket: str) -> None:
    """Whatever fails, the target is no store before it is complete."""
    expected = fill(str(tmp_path))
    source = open_backend(tmp_path)
    count = len(files(source))
    for place in range(count):
        url = f"{bucket}-{place}"
        storage = BUCKETS.setdefault(url.removeprefix("bucket://"), Bucket())
        puts = itertools.count()

        def refuse(request: Any, puts: Any = puts, place: int = place) -> Fault | None:
            is_file = request.method == "put_new" and "/locks/" not in request.key
            return Fault("refused") if is_file and next(puts) == place else None

        with storage.failing(refuse), pytest.raises(opslog.WriteFailedError):
            copy(source, open_backend(url))
        if place < count - 3:
            with pytest.raises(opslog.OpslogError):
                read(url)
        done = copy(source, open_backend(url))
        assert done.report.problems == []
        assert done.written <= count - min(place, 1)
        assert read(url) == expected
        assert copy(source, open_backend(url)).written == 0


def test_a_torn_or_grown_file_of_an_earlier_try_is_replaced(tmp_path: Path) -> None:
    with opslog.open(tmp_path / "source", agent="a") as store:
        store["x"] = {}
        source, target = open_backend(tmp_path / "source"), open_backend(tmp_path / "target")
        target.create(segment_path("a", 1), b"half a li")
        assert copy(source, target).written == 2
    assert files(target) == files(source)


def test_a_copy_goes_on_beside_the_unfinished_manifest_of_a_killed_try(tmp_path: Path) -> None:
    with opslog.open(tmp_path / "source", agent="a.tmp-1") as store:
        store["x"] = {}
    source, target = open_backend(tmp_path / "source"), open_backend(tmp_path / "target")
    target.create(temporary_path(manifest_path(1), "0123456789abcdef"), b"half a manif")
    assert [problem.severity for problem in copy(source, target).report.problems] == ["note"]
    assert read(target.url).keys() == {"x"}
    assert copy(source, target).written == 0


def test_another_store_is_refused(tmp_path: Path) -> None:
    for name in ("one", "other"):
        with opslog.open(tmp_path / name, agent=name) as store:
            store[name] = {}
    one, other = open_backend(tmp_path / "one"), open_backend(tmp_path / "other")
    with pytest.raises(opslog.UsageError, match=r"other holds another store"):
        copy(one, other)
    copy(one, open_backend(tmp_path / "two"))
    for name in ("one", "two"):  # both are written to under the same name, and as much
        with opslog.open(tmp_path / name, agent="one") as store:
            store[name] = {}
    with pytest.raises(opslog.UsageError, match="is not that of the source"):
        copy(one, open_backend(tmp_path / "two"))
    assert read(str(tmp_path / "two")).keys() == {"one", "two"}


def interrupt_copy(source: Path, bucket: str) -> None:
    """A copy that ends before the first manifest."""
    storage = BUCKETS.setdefault(bucket.removeprefix("bucket://"), Bucket())

    def refuse(request: Any) -> Fault | None:
        return Fault("refused") if request.method == "put_new" and "/manifests/" in request.key else None

    with storage.failing(refuse), pytest.raises(opslog.WriteFailedError):
        copy(open_backend(source), open_backend(bucket))


def test_a_copy_is_not_mixed_with_what_a_copy_of_another_store_left(tmp_path: Path, bucket: str) -> None:
    for name in ("one", "other"):
        with opslog.open(tmp_path / name, agent=name) as store:
            store[name] = {}
    interrupt_copy(tmp_path / "one", bucket)
    target = open_backend(bucket)
    left = files(target)
    assert list(left) == [segment_path("one", 1)]
    with pytest.raises(opslog.UsageError, match=rf"has {segment_path('one', 1)}, which no copy of .*other"):
        copy(open_backend(tmp_path / "other"), target)
    assert files(target) == left
    assert copy(open_backend(tmp_path / "one"), target).report.problems == []
    assert read(bucket).keys() == {"one"}


def test_a_copy_goes_on_after_its_source_was_compacted(tmp_path: Path, bucket: str) -> None:
    """What compactions of the source have collected since is deleted from the target."""
    settings = opslog.Settings(undo_window=0, undo_ttl_seconds=0, grace_seconds=0)
    source = tmp_path / "source"
    with opslog.open(source, agent="old", settings=settings) as store:
        store["x"] = {"by": "old"}
        store["y"] = {"by": "old"}
        store.compact()
        store["z"] = {"by": "old"}
        store.archive("by = old", "p")
    interrupt_copy(source, bucket)
    target = open_backend(bucket)
    left = files(target)
    with opslog.open(source, agent="new", compact_after=None) as store:
        store["x"] = {"by": "new"}
        for number in range(4):
            store["number"] = {"number": number}
            store.compact(full=True)
    assert {path.split("/")[0] for path in left.keys() - files(open_backend(source))} == {"ops", "snapshots"}
    assert copy(open_backend(source), target).report.problems == []
    assert files(target) == files(open_backend(source))
    assert read(bucket) == {"x": {"by": "new"}, "number": {"number": 3}}


def test_an_older_copy_takes_what_is_new_as_long_as_the_source_can_show_that_it_is_one(tmp_path: Path) -> None:
    """Then nothing in it is deleted or replaced. Once the source has collected all its manifests, or a log has grown,
    it stays as it is."""
    settings = opslog.Settings(undo_window=0, undo_ttl_seconds=0, grace_seconds=0)
    source, target = open_backend(tmp_path / "source"), open_backend(tmp_path / "copy")

    def session(number: int) -> None:
        with opslog.open(source.url, agent="a", settings=settings, compact_after=None) as store:
            store[f"{number}"] = {"number": number}
            store.compact()

    def is_refused(reason: str) -> None:
        before = files(target)
        with pytest.raises(opslog.UsageError, match=rf"holds an older copy .*{reason}"):
            copy(source, target)
        assert files(target) == before

    for number in range(3):
        session(number)
    copy(source, target)
    older = files(target)
    session(3)
    assert older.keys() - files(source), "collected"
    assert copy(source, target).report.ok
    assert files(target).items() >= older.items() | files(source).items()
    assert read(target.url).keys() == {"0", "1", "2", "3"}
    with opslog.open(source.url, agent="b", compact_after=None) as store:
        store["4"] = {}
        assert copy(source, target).report.ok
        store["5"] = {}
    with opslog.open(source.url, agent="aa", compact_after=None) as store:
        store["6"] = {}
    is_refused(rf"{segment_path('b', 1)} has \d+ bytes there")
    session(7)
    session(8)
    is_refused(rf"no {manifest_path(5)} to compare")


def test_a_copy_interrupted_between_manifests_is_refused_once_the_source_has_collected_them(
    tmp_path: Path, bucket: str
) -> None:
    settings = opslog.Settings(undo_window=0, undo_ttl_seconds=0, grace_seconds=0)
    with opslog.open(tmp_path, agent="a", settings=settings, compact_after=None) as store:
        store["x"] = {}
        store.compact()
        source, target = open_backend(tmp_path), open_backend(bucket)
        storage = BUCKETS[bucket.removeprefix("bucket://")]

        def refuse(request: Any) -> Fault | None:
            return Fault("refused") if request.key.endswith(manifest_path(2)) else None

        with storage.failing(refuse), pytest.raises(opslog.WriteFailedError):
            copy(source, target)
        left = files(target)
        assert manifest_path(1) in left
        store["x"] = {"again": True}
        store.compact()
    with pytest.raises(opslog.UsageError, match=rf"an older copy .* whole or interrupted.*no {manifest_path(1)}"):
        copy(source, target)
    assert files(target) == left


@pytest.mark.parametrize(
    "path",
    [
        "README.txt",
        "ops/x.txt",
        segment_path("a", 2),
        segment_path("b", 1),
        archive_path("p", "0123456789abcdef"),
        part_path("00000000000000000002-0123456789abcdef", 0),
        "staging/0123456789abcdef/rows.jsonl",
        "removed/0123456789abcdef/x",
        STORE,
    ],
)
def test_a_file_that_no_copy_has_left_is_refused_by_its_name(tmp_path: Path, bucket: str, path: str) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {}
    target = open_backend(bucket)
    target.create(segment_path("a", 1), b"half a li")
    target.create(path, b"something")
    with pytest.raises(opslog.UsageError, match=rf"has {path}, which no copy of"):
        copy(open_backend(tmp_path), target)
    assert target.read(segment_path("a", 1)) == b"half a li"
    assert target.read(path) == b"something"
    assert target.list("manifests/") == []
    target.delete([path])
    assert copy(open_backend(tmp_path), target).report.ok


def test_a_copy_with_writes_of_its_own_is_refused(tmp_path: Path) -> None:
    """Under a new name, so that no file of the source has changed. What is no write does not matter: the copy's id, and
    hidden files."""
    with opslog.open(tmp_path / "source", agent="a") as store:
        store["x"] = {}
    source, target = open_backend(tmp_path / "source"), open_backend(tmp_path / "copy")
    (tmp_path / "copy" / ".hidden").touch()
    copy(source, target)
    with opslog.open(target.url, agent="b") as store:
        store.changes()
        assert target.read(STORE)
        assert copy(source, target).written == 0
        store["y"] = {}
    with pytest.raises(opslog.UsageError, match=rf"{segment_path('b', 1)}, .* was written since"):
        copy(source, target)
    assert read(target.url).keys() == {"x", "y"}


def test_copying_refuses_a_missing_store_and_a_target_in_use(tmp_path: Path) -> None:
    source, target = open_backend(tmp_path / "source"), open_backend(tmp_path / "target")
    with pytest.raises(opslog.NotFoundError):
        copy(source, target)
    opslog.open(tmp_path / "source", agent="a").close()
    with target.lock(LOCK), pytest.raises(opslog.LockedError):
        copy(source, target)


def test_a_store_in_use(tmp_path: Path) -> None:
    """Writers, compactions that collect at once, and archives continue meanwhile. Each copy is a state that the store
    once had."""
    settings = opslog.Settings(undo_window=2, grace_seconds=0)
    over = threading.Event()

    def write() -> None:
        with opslog.open(tmp_path / "source", agent="a", compact_after=40, settings=settings) as store:
            for number in itertools.count():
                store[str(number)] = {"number": number}
                if number % 10 == 9:
                    store.archive(lambda document: document["number"] % 10 == 3, "old")
                if over.is_set():
                    return

    opslog.open(tmp_path / "source", agent="a", settings=settings).close()
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(15):
            target = tmp_path / f"target-{number}"
            try:
                done = copy(open_backend(tmp_path / "source"), open_backend(target))
            except RetryError:
                continue  # compactions all the time
            assert [problem for problem in done.report.problems if problem.severity == "error"] == []
            with opslog.open(target, read_only=True) as store:
                archived = store.load_archive("old") if store.archives() else {}
                ids = {int(id) for id in [*store, *archived]}
                assert ids == set(range(len(ids))), "what was written first is there, in the store or in the archive"
    finally:
        over.set()
        writer.join()


@pytest.mark.parametrize("to", ["same", "slash", "dots", "file", "link", "below", "below a link", "above"])
def test_a_store_is_not_copied_into_itself_however_that_is_spelled(tmp_path: Path, to: str) -> None:
    root = tmp_path / "above" / "s"
    with opslog.open(root, agent="a") as store:
        store["x"] = {}
    (tmp_path / "link").symlink_to(root)
    target = {
        "same": f"{root}",
        "slash": f"{root}/",
        "dots": f"{root}/ops/../../s",
        "file": f"file://{root}",
        "link": f"{tmp_path}/link",
        "below": f"{root}/backup/new",
        "below a link": f"{tmp_path}/link/backup",
        "above": f"{tmp_path}/above",
    }[to]
    before = sorted(tmp_path.rglob("*"))
    assert run(["copy", str(root), target]) == 2
    with pytest.raises(opslog.UsageError, match="one place, or one of them into the other"):
        check_apart(str(root), target)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(opslog.UsageError, match="one place"):
        copy(open_backend(root), open_backend(root))
