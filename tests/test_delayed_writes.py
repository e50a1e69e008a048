"""A process that was paused for longer than the grace period brings back a manifest or a segment, under a number that
was used, compacted and collected."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opslog
from opslog.backends import Backend, Position, open_backend
from opslog.bulk import ingest as ingest_module
from opslog.compaction.compact import compact
from opslog.environment import REAL, Environment, format_ts
from opslog.format.commits import Seal, Set, encode_commit
from opslog.format.layout import manifest_path, segment_path
from opslog.format.manifest import Manifest, encode_manifest
from opslog.importers import ImportedCommit, ImportedOp
from opslog.log import session, survey
from opslog.log.freshness import Freshness
from opslog.log.reader import Cursor, list_log, list_segments
from opslog.log.session import WriterSession
from opslog.replica import following
from opslog.replica.loading import Loader
from opslog.replica.refresh import RefreshDecision, Step
from opslog.snapshot.manifests import ManifestStore
from opslog.verify.verify import verify
from tests.support import bucket
from tests.support.worlds import World

assert bucket.BUCKETS is not None  # which registers bucket://

_numbers = itertools.count()
DAY = 86400.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://{tmp_path}"


def write(url: str, agent: str, count: int, **options: Any) -> None:
    with opslog.open(url, agent=agent, compact_after=None, **options) as store:
        for number in range(count):
            store[f"{agent}-{number}"] = {"n": number}


@pytest.fixture
def backend(url: str) -> Backend:
    """A store whose manifests 1 and 2 were collected; 3 and 4 are there."""
    backend = open_backend(url)
    settings = opslog.Settings(undo_window=0, grace_seconds=0, keep_history_seconds=None)
    write(url, "a", 5, settings=settings)
    compact(backend, REAL)
    for _ in range(2):
        write(url, "a", 5)
        compact(backend, REAL)
    first = ManifestStore(backend).read(3).cut["a"].segment
    backend.delete([segment_path("a", number) for number in range(1, first)])
    newest = msgspec.structs.replace(ManifestStore(backend).newest(), oldest=3)
    backend.delete([manifest_path(number) for number in (1, 2, 4)])
    backend.create(manifest_path(4), encode_manifest(newest))
    return backend


def zombie(number: int) -> Manifest:
    return Manifest(number=number, created=format_ts(0.0), settings=opslog.Settings(undo_window=0), oldest=number)


@pytest.mark.parametrize("numbers", [(2,), (1,), (1, 2)])
def test_a_manifest_under_a_number_that_was_used_is_no_part_of_the_store(
    url: str, backend: Backend, numbers: tuple[int, ...]
) -> None:
    before = opslog.open(url, read_only=True).ops()
    stamps = [commit.stamp for commit in before]
    for number in numbers:
        backend.create(manifest_path(number), encode_manifest(zombie(number)))
    assert [number for number, _ in ManifestStore(backend).retained()] == [3, 4]
    with opslog.open(url, read_only=True) as store:
        assert [commit.stamp for commit in store.ops()] == stamps
        assert store.history("a-0")
    with pytest.raises(opslog.HistoryGoneError):
        opslog.open(url, as_of=1)
    report = verify(backend)
    assert report.ok
    assert [problem.path for problem in report.problems] == [manifest_path(number) for number in numbers]
    write(url, "b", 1)
    compact(backend, REAL)
    assert [number for number, _ in ManifestStore(backend).entries()] == [3, 4, 5]
    assert verify(backend).problems == []


def test_the_manifest_that_was_collected_is_collected_when_it_comes_back(url: str, backend: Backend) -> None:
    """The very same one: its creation took effect a second time, long after an attempt without a response."""
    copy = open_backend(f"{url}-copy")
    with opslog.open(copy.url, agent="a", settings=ManifestStore(backend).newest().settings):
        first = copy.read(manifest_path(1))
    backend.create(manifest_path(1), first)
    backend.create(manifest_path(2), encode_manifest(zombie(2)))
    assert ManifestStore(backend).oldest().number == 3
    with pytest.raises(opslog.HistoryGoneError):
        opslog.open(url, as_of=1)


def test_manifests_of_older_programs_are_retained_back_to_a_gap(url: str, backend: Backend) -> None:
    for number in (3, 4):
        manifest = ManifestStore(backend).read(number)
        backend.delete([manifest_path(number)])
        backend.create(manifest_path(number), encode_manifest(msgspec.structs.replace(manifest, oldest=0)))
    backend.create(manifest_path(1), encode_manifest(zombie(1)))
    assert [number for number, _ in ManifestStore(backend).retained()] == [3, 4]
    write(url, "b", 1)
    compact(backend, REAL)
    assert [number for number, _ in ManifestStore(backend).entries()] == [3, 4, 5]


def test_a_segment_under_a_number_that_was_used_is_no_part_of_the_log(url: str, backend: Backend) -> None:
    oldest = ManifestStore(backend).oldest()
    number = oldest.cut["a"].segment - 1
    with opslog.open(url, read_only=True) as store:
        stamps = [commit.stamp for commit in store.ops()]
        state = dict(store)
    late = Set(format_ts(0.0), oldest.clock, "a", "late", msgspec.Raw(b"{}"))
    backend.create(segment_path("a", number), encode_commit(late))
    with opslog.open(url, read_only=True) as store:
        assert dict(store) == state
        assert [commit.stamp for commit in store.ops()] == stamps
        assert store.history("late") == []
    assert verify(backend).ok


def test_a_reload_does_not_hand_out_such_a_segment(url: str) -> None:
    """A reader that was away finds other bytes at its position in the log."""
    backend = open_backend(url)
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    write(url, "a", 2, settings=settings)
    with opslog.open(url, read_only=True) as reader:
        for _ in range(4):
            write(url, "a", 2)
            compact(backend, REAL)
        backend.delete([segment_path("a", number) for number in (1, 2, 3, 4)])
        for number in (1, 2, 3):
            late = Set(format_ts(0.0), 100 + number, "a", "late", msgspec.Raw(b"{}"))
            backend.create(segment_path("a", number), encode_commit(late))
        assert [commit.stamp for commit in reader.refresh() if commit.clock > 100] == []
        assert "late" not in reader


# -- writers that were paused


def use_numbers(url: str) -> None:
    """Another process uses the next numbers of a's log, a compaction compacts them, and they are collected."""
    backend = open_backend(url)
    for number in range(2, 7):
        commit = Set(format_ts(0.0), number, "a", f"other-{number}", msgspec.Raw(b"{}"))
        backend.create(segment_path("a", number), encode_commit(commit))
    compact(backend, REAL)
    cut = ManifestStore(backend).newest().cut["a"]
    backend.delete([segment_path("a", number) for number in range(1, cut.segment)])


@pytest.fixture
def bucket_url() -> str:
    """A store that does not hold names against other processes, and in which each append is a segment."""
    url = f"bucket://late-{next(_numbers)}"
    write(url, "a", 1, settings=opslog.Settings(undo_window=0))
    return url


def paused(monkeypatch: pytest.MonkeyPatch, owner: type, call: str, url: str) -> Environment:
    """A world in which the next call of this kind is followed by a pause of a thousand seconds."""
    now = [0.0]
    real = getattr(owner, call)

    def and_pause(self: Any, *arguments: Any) -> Any:
        done = real(self, *arguments)
        monkeypatch.setattr(owner, call, real)
        use_numbers(url)
        now[0] += 1000
        return done

    monkeypatch.setattr(owner, call, and_pause)
    return replace(REAL, monotonic=lambda: now[0])


@pytest.mark.parametrize("refreshed", [False, True])
def test_a_process_paused_while_another_took_over_its_name_is_fenced(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch, refreshed: bool
) -> None:
    """Also if everything that the other process wrote is collected. Nothing is written."""
    environment = paused(monkeypatch, Loader, "load", bucket_url)
    with opslog.open(bucket_url, agent="a", environment=environment) as store:
        if refreshed:
            store.refresh()
            assert "other-6" in store
        with pytest.raises(opslog.AgentFencedError, match="another process wrote under the agent name 'a'"):
            store["late"] = {}
    assert list_log(open_backend(bucket_url), "a") == []
    with opslog.open(bucket_url, read_only=True) as store:
        assert "late" not in store


def test_a_process_paused_before_its_append_reads_the_newest_manifest_before_it_acknowledges(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = paused(monkeypatch, Freshness, "check_age", bucket_url)
    with (
        opslog.open(bucket_url, agent="a", environment=environment) as store,
        pytest.raises(opslog.CommitUnknownError, match="paused for long"),
    ):
        store["late"] = {}
    with opslog.open(bucket_url, read_only=True) as store:
        assert "late" not in store


def test_an_append_that_was_compacted_before_it_was_confirmed_is_acknowledged(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another thread has read the new manifest by then, and all of it took less than half of the grace period."""
    confirm = WriterSession._confirm

    def late(self: WriterSession, *arguments: Any) -> None:
        compact(open_backend(bucket_url), REAL)
        assert self.freshness.read_newest().cut["a"].segment > self.last_segment + 1
        confirm(self, *arguments)

    monkeypatch.setattr(WriterSession, "_confirm", late)
    with opslog.open(bucket_url, agent="a", compact_after=None) as store:
        for number in range(3):
            store[f"late-{number}"] = {"n": number}
    with opslog.open(bucket_url, read_only=True) as store:
        assert [store[f"late-{number}"] for number in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_seal_that_was_collected_before_it_was_read_is_no_seal(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written under the seal's number, and a process that was paused for so long opens the store again."""
    backend = open_backend(bucket_url)
    with opslog.open(bucket_url, agent="a") as store:
        seal = segment_path("a", 2)
        backend.create(seal, encode_commit(Seal(format_ts(0.0), 2, "a")))
        read = session._read_seals

        def late(backend: Backend, path: str) -> list[Seal] | None:
            backend.delete([seal])
            return read(backend, path)

        monkeypatch.setattr(session, "_read_seals", late)
        with pytest.raises(opslog.AgentFencedError):
            store["late"] = {}
    with opslog.open(bucket_url, read_only=True) as store:
        assert "late" not in store


def test_an_import_paused_before_its_append_reads_the_newest_manifest_before_it_returns(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = paused(monkeypatch, Freshness, "check_age", bucket_url)
    commit = ImportedCommit("a", None, (ImportedOp("set", "late", {}),), "file:1")
    with pytest.raises(opslog.CommitUnknownError, match="paused for long"):
        ingest_module.ingest(open_backend(bucket_url), [commit], environment=environment)
    with opslog.open(bucket_url, read_only=True) as store:
        assert "late" not in store


def test_an_import_paused_before_it_reads_where_its_log_goes_on_writes_nothing(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = paused(monkeypatch, ingest_module._Writer, "_own_end", bucket_url)
    commit = ImportedCommit("a", None, (ImportedOp("set", "late", {}),), "file:1")
    with pytest.raises(opslog.RetryError, match="run the import again"):
        ingest_module.ingest(open_backend(bucket_url), [commit], environment=environment)
    assert list_log(open_backend(bucket_url), "a") == []
    ingest_module.ingest(open_backend(bucket_url), [commit])
    with opslog.open(bucket_url, read_only=True) as store:
        assert "late" in store


# -- readers that were paused


def collect(url: str) -> list[int]:
    """Collect what is compacted in a's log, and the manifests before the newest. Returns the numbers of the
    segments."""
    backend = open_backend(url)
    newest = ManifestStore(backend).newest()
    backend.delete([manifest_path(number) for number in range(1, newest.number)])
    numbers = list(range(1, newest.cut["a"].segment))
    backend.delete([segment_path("a", number) for number in numbers])
    return numbers


def collect_and_bring_back(url: str) -> None:
    """Collect, and then let a paused process write under the numbers that were used."""
    backend = open_backend(url)
    for number in collect(url):
        late = Set(format_ts(0.0), 100 + number, "a", "late", msgspec.Raw(b"{}"))
        backend.create(segment_path("a", number), encode_commit(late))


def test_a_refresh_that_was_paused_does_not_take_in_a_delayed_write(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    real = list_segments

    def and_pause(*arguments: Any) -> Any:
        listed = real(*arguments)
        monkeypatch.setattr(survey, "list_segments", real)
        compact(open_backend(bucket_url), REAL)
        collect_and_bring_back(bucket_url)
        now[0] += 1000
        return listed

    with opslog.open(bucket_url, read_only=True, environment=replace(REAL, monotonic=lambda: now[0])) as reader:
        write(bucket_url, "a", 3)
        monkeypatch.setattr(survey, "list_segments", and_pause)
        commits = reader.refresh()
        assert "late" not in reader
        assert reader["a-2"] == {"n": 2}
    assert [commit for commit in commits if commit.clock > 100] == []


def test_a_reload_hands_out_only_what_was_read_before_any_collection(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing and the reading of a log, a compaction collects, and delayed writes come."""
    backend = open_backend(bucket_url)
    with opslog.open(bucket_url, read_only=True) as reader:
        write(bucket_url, "a", 3)
        compact(backend, REAL)
        real = Cursor.read

        def after_a_while(*arguments: Any) -> Any:
            monkeypatch.setattr(Cursor, "read", real)
            write(bucket_url, "a", 3)
            compact(backend, REAL)
            collect_and_bring_back(bucket_url)
            return real(*arguments)

        monkeypatch.setattr(following, "refresh_decision", lambda *_, **__: RefreshDecision(Step.RELOAD, {}))
        monkeypatch.setattr(Cursor, "read", after_a_while)
        commits = reader.refresh()
        assert "late" not in reader
        assert reader["a-2"] == {"n": 2}
    assert [commit for commit in commits if commit.clock > 100] == []


def test_a_load_after_which_the_own_log_was_collected_is_made_again(
    bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_backend(bucket_url)
    with opslog.open(bucket_url, agent="a", compact_after=None) as store:
        real = Loader.load

        def and_collect(loader: Loader) -> Any:
            state = real(loader)
            monkeypatch.setattr(Loader, "load", real)
            for number in range(3):
                store[f"meanwhile-{number}"] = {}
            compact(backend, REAL)
            collect(bucket_url)
            return state

        compact(backend, REAL)
        monkeypatch.setattr(following, "refresh_decision", lambda *_, **__: RefreshDecision(Step.RELOAD, {}))
        monkeypatch.setattr(Loader, "load", and_collect)
        store.refresh()
        assert set(store) == {"a-0", "meanwhile-0", "meanwhile-1", "meanwhile-2"}


# -- writers whose view is older than tombstones are kept


@pytest.mark.parametrize("kind", ["memory", "bucket"])
@pytest.mark.parametrize("pause_seconds", [3 * DAY, 5 * DAY, 8 * DAY])
def test_an_import_paused_for_long_brings_nothing_back(kind: str, pause_seconds: float) -> None:
    """Between its read and its append others delete what it is about to set, compact the delete, and drop it."""
    url = f"{kind}://paused-import-{next(_numbers)}"
    seconds = [0.0]
    environment = replace(REAL, time=lambda: 1.8e9 + seconds[0], monotonic=lambda: seconds[0])
    settings = opslog.Settings(undo_window=0)

    def options(agent: str) -> dict[str, Any]:
        return {"agent": agent, "environment": environment, "settings": settings, "compact_after": None}

    append = WriterSession.append

    def append_late(self: WriterSession, *arguments: Any) -> Position:
        if self.agent == "imported":
            pause()
        return append(self, *arguments)

    def pause() -> None:
        with opslog.open(url, **options("other")) as other:
            for number in range(20):
                other["more"] = {"n": number}
            other["x"] = {"by": "other"}
            del other["x"]
            other.compact()
            seconds[0] += pause_seconds
            other.compact(full=True)

    imported = [ImportedCommit("imported", None, (ImportedOp("set", "x", {"by": "import"}),), "file:1")]
    with opslog.open(url, **options("witness")) as witness, pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriterSession, "append", append_late)
        if pause_seconds > 0.6 * 7 * DAY:
            with pytest.raises(opslog.WriteFailedError, match="paused for most of the tombstone TTL"):
                ingest_module.ingest(open_backend(url), imported, environment=environment)
        else:
            ingest_module.ingest(open_backend(url), imported, environment=environment)
        witness.refresh()
        with opslog.open(url, read_only=True) as fresh:
            assert dict(fresh.items()) == dict(witness.items()) == {"more": {"n": 19}}
    ingest_module.ingest(open_backend(url), imported, environment=environment)
    with opslog.open(url, read_only=True) as fresh:
        assert fresh["x"] == {"by": "import"}, "run again, it comes after everything"


def test_a_commit_whose_append_took_most_of_the_ttl_is_not_acknowledged() -> None:
    """It may have come in behind its deletion, whose tombstone was dropped."""
    world = World()

    def pause(request: bucket.Request) -> None:
        if request.method == "put_new" and request.key.startswith("prefix/ops/a/"):
            world.seconds += 5 * DAY

    with world.open("a") as store:
        store["x"] = {}
        world.bucket.fault = pause
        with pytest.raises(opslog.CommitUnknownError, match="paused for most of the tombstone TTL while it wrote"):
            store["x"] = {"n": 1}
        world.bucket.fault = lambda request: None
        with pytest.raises(opslog.ReopenError):
            store["y"] = {}
    with world.open("a") as store:
        store["x"] = {"n": 2}
        assert world.documents() == {"x": {"n": 2}}
