"""All tasks of a view together give the library's result, wherever the store is divided. This runs without Spark;
test_source.py tests Spark's part."""

from __future__ import annotations

import pickle
import random
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opslog
from opslog.archive import list_periods, read_archive
from opslog.backends import open_backend
from opslog.errors import HistoryGoneError
from opslog.format.commits import Batch, Commit, Delete, DeleteOp, Record, Seal, Set, SetOp, Undo, encode_commit
from opslog.format.layout import segment_path
from opslog.format.torn import joined
from opslog.history import Point
from opslog.log import reader as log
from opslog.merge.merge import reference
from opslog.spark.read import splits, views
from opslog.spark.read.planning import SPLIT_BYTES
from opslog.spark.read.ranges import IdRange
from opslog.spark.read.views import ArchiveView, Asked, CandidatesView, OpsView, StateView, View
from opslog.spark.source import OpslogReader
from tests.support import bucket  # noqa: F401  (stores at bucket://)
from tests.support.random_stores import live, row, state, tear

SPLITS = [60, 300, 2000, SPLIT_BYTES]
EVERYTHING = Asked()
_numbers = count()


def rows(url: str, view: View, asked: Asked = EVERYTHING) -> list[tuple[Any, ...]]:
    """The rows of all tasks of a view. Each task is sent to another process and back."""
    backend = open_backend(url, create=False)
    view = pickle.loads(pickle.dumps(view))
    tasks = pickle.loads(pickle.dumps(view.plan(backend, asked)))
    batches = [batch for task in tasks for batch in view.read(backend, task, asked)]
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == view.schema
    return [tuple(each.values()) for batch in batches for each in batch.to_pylist()]


def best(candidates: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The state, computed from the candidates."""
    found: dict[str, tuple[Any, ...]] = {}
    for each in candidates:
        known = found.get(each[0])
        if known is None or each[2:4] > known[2:4]:
            found[each[0]] = each
    return [each for _, each in sorted(found.items()) if each[1] is not None]


def ops(commits: list[Commit], undone: set[tuple[int, str]]) -> Iterator[tuple[Any, ...]]:
    """Commits as rows of the ops view, without their positions in files."""
    for commit in commits:
        head = commit.agent, commit.clock, commit.ts
        cancelled = (commit.by or None, commit.tx or None, commit.stamp in undone)
        match commit:
            case Set():
                yield *head, "set", commit.id, bytes(commit.data).decode(), commit.v, None, None, None, *cancelled
            case Delete():
                yield *head, "delete", commit.id, None, None, commit.archived, None, None, *cancelled
            case Undo():
                yield *head, "undo", None, None, None, None, commit.target, None, *cancelled
            case Seal():
                yield *head, "seal", None, None, None, None, None, None, *cancelled
            case Batch():
                for place, op in enumerate(commit.ops):
                    data = bytes(op.data).decode() if isinstance(op, SetOp) else None
                    v = op.v if isinstance(op, SetOp) else None
                    archived = op.archived if isinstance(op, DeleteOp) else None
                    word = "delete" if data is None else "set"
                    yield *head, word, op.id, data, v, archived, None, place, *cancelled


def points(url: str, chance: random.Random) -> list[Point]:
    """Some clocks and times; some of them lie before commits that were compacted."""
    with opslog.open(url, read_only=True) as store:
        commits = list(store.ops())
    chosen = [chance.choice(commits) for _ in range(2)] if commits else []
    return [0, *(commit.clock for commit in chosen), *(commit.ts for commit in chosen)]


def check_state(url: str, split_bytes: int, as_of: Point | None = None) -> None:
    past = {} if as_of is None else {"as_of": as_of}
    try:
        expected = state(url, **past)
    except HistoryGoneError:
        for view in (StateView(as_of, split_bytes), CandidatesView(as_of, split_bytes)):
            with pytest.raises(HistoryGoneError):
                rows(url, view)
        return
    assert rows(url, StateView(as_of, split_bytes)) == expected
    assert best(rows(url, CandidatesView(as_of, split_bytes))) == expected


def check_ops(url: str, split_bytes: int, as_of: Point | None = None) -> None:
    with opslog.open(url, read_only=True) as store:
        commits = list(store.ops())
        if as_of is not None:
            clock = isinstance(as_of, int)
            commits = [commit for commit in commits if (commit.clock if clock else commit.ts) <= as_of]  # type: ignore[operator]
    undone = {(commit.target, commit.agent) for commit in commits if isinstance(commit, Undo)}
    found = rows(url, OpsView(as_of, split_bytes))
    found.sort(key=lambda each: (each[1], each[0], each[9] or 0))
    assert [(*each[:10], *each[12:]) for each in found] == list(ops(commits, undone))
    lines: dict[tuple[str, int], bytes] = {}
    backend = open_backend(url)
    for each in found:
        path = segment_path(each[0], each[10])
        line = lines.setdefault((path, each[11]), backend.read(path, each[11]).partition(b"\n")[0])
        assert f'"clock":{each[1]},'.encode() in line[:80]


def check_archives(url: str, split_bytes: int) -> None:
    backend = open_backend(url)
    expected = [
        (period, *row(record))
        for period in list_periods(backend)
        for _, record in sorted(read_archive(backend, period).items())
    ]
    assert rows(url, ArchiveView(None, split_bytes)) == expected
    for period in list_periods(backend):
        assert rows(url, ArchiveView(period, split_bytes)) == [each for each in expected if each[0] == period]


def check_reference(url: str) -> None:
    """If nothing was collected, the plain reference must agree."""
    with opslog.open(url, read_only=True) as store:
        commits = list(store.ops())
        everything = min((commit.clock for commit in commits), default=1) == 1 and store.stats().manifest == 1
    if everything:
        winners: dict[str, Record] = reference(commits)
        expected = [row(record) for _, record in sorted(winners.items()) if isinstance(record, Set)]
        assert rows(url, StateView()) == expected


def check(url: str, chance: random.Random) -> None:
    split_bytes = chance.choice(SPLITS)
    check_state(url, split_bytes)
    check_ops(url, split_bytes)
    check_archives(url, split_bytes)
    check_reference(url)
    for point in points(url, chance):
        check_state(url, split_bytes, point)
        check_ops(url, split_bytes, point)


@pytest.mark.parametrize("tail_bytes", [0, views.TAIL_BYTES], ids=["read-by-tasks", "merged-by-the-driver"])
@given(chance=st.randoms(use_true_random=False))
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_stores(tail_bytes: int, chance: random.Random) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "TAIL_BYTES", tail_bytes)
        scheme = chance.choice(["memory", "memory", "bucket"])
        url = f"{scheme}://views-{next(_numbers)}"
        live(url, chance)
        check(url, chance)


@given(chance=st.randoms(use_true_random=False))
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_directories(chance: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/store"
        live(url, chance, tear=tear)
        check(url, chance)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("tail_bytes", [0, views.TAIL_BYTES], ids=["read-by-tasks", "merged-by-the-driver"])
@given(chance=st.randoms(use_true_random=False))
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
def test_thousands_of_random_stores(tail_bytes: int, chance: random.Random) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(views, "TAIL_BYTES", tail_bytes)
        if chance.random() < 0.3:
            url = f"{folder}/store"
            live(url, chance, tear=tear)
        else:
            url = f"{chance.choice(['memory', 'bucket'])}://views-{next(_numbers)}"
            live(url, chance)
        check(url, chance)


@pytest.fixture
def long_lines(tmp_path: Path) -> str:
    """A log that has lines of some megabytes among short ones, with undos across them."""
    url = str(tmp_path / "store")
    with opslog.open(url, agent="a", settings=opslog.Settings(undo_window=4), compact_after=None) as store:
        for n in range(12):
            store[f"{n % 5}"] = {"n": n, "text": "x" * (n % 3 * 1_500_000)}
            if n % 4 == 3:
                store.undo()
                store.undo()
    return url


@pytest.mark.parametrize("scheme", ["memory", "bucket"])
def test_undos_behind_the_first_commit_of_a_later_segment(scheme: str) -> None:
    """A split reads what may undo its commits: also if a segment behind it has several commits."""
    url = f"{scheme}://views-{next(_numbers)}"
    options: dict[str, Any] = {"durability": "buffered", "buffer_seconds": 3600.0, "compact_after": None}
    with opslog.open(url, agent="a", settings=opslog.Settings(undo_window=4), **options) as store:
        store["kept"] = {"n": 1}
        store["x"] = {"n": 1}
    with opslog.open(url, agent="a", **options) as store:
        store["y"] = {"n": 2}
        assert store.undo()
        assert store.undo()
        assert list(store) == ["kept"]
    for split_bytes in (60, 150, 300):
        check_state(url, split_bytes)
        check_ops(url, split_bytes)


@pytest.mark.parametrize("split_bytes", [200_000, 1_000_000, 1_000_001, 5_000_000])
def test_lines_longer_than_splits(long_lines: str, split_bytes: int) -> None:
    check_state(long_lines, split_bytes)
    check_ops(long_lines, split_bytes)
    assert len(CandidatesView(None, split_bytes).plan(open_backend(long_lines), EVERYTHING)) > 2


@pytest.mark.parametrize("distinct", [3, 10**6])
def test_combining_goes_on_where_it_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distinct: int) -> None:
    """With a block of a few commits: hot documents become one row per task, others are passed on block by block."""
    monkeypatch.setattr(splits, "BLOCK_BYTES", 4000)
    monkeypatch.setattr(log, "_CHUNK_BYTES", 2000)
    url = str(tmp_path / "store")
    with opslog.open(url, agent="a", compact_after=None, durability="buffered") as store:
        for n in range(1000):
            store[f"{n % distinct}"] = {"n": n}
            if n % 50 == 0:
                store.undo()
    backend = open_backend(url)
    (task,) = CandidatesView().plan(backend, EVERYTHING)
    batches = list(CandidatesView().read(backend, task, EVERYTHING))
    sizes = [batch.num_rows for batch in batches]
    assert (sizes == [3]) == (distinct == 3)
    assert sum(sizes) == len(state(url))
    check_state(url, SPLIT_BYTES)
    check_ops(url, SPLIT_BYTES)


def test_only_the_requested_rows_are_read(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    with opslog.open(url, agent="a", settings=opslog.Settings(undo_window=0), compact_after=None) as store:
        for n in range(300):
            store[f"{n:03}"] = {"n": n, "text": "x" * 1000}
        store.compact()
        store["007"] = {"n": -7}
        store["zzz"] = {}
    with opslog.open(url, agent="b") as store:
        store["008"] = {"n": -8}
    everything = state(url)
    cases: list[tuple[Asked, Callable[[str], bool]]] = [
        (Asked(ids=IdRange("005", "010")), lambda id: "005" <= id < "010"),
        (Asked(ids=IdRange("007", "zzz\0"), one_of=frozenset(["007", "zzz"])), lambda id: id in ("007", "zzz")),
        (Asked(ids=IdRange("", "")), lambda id: False),
    ]
    for asked, wanted in cases:
        expected = [each for each in everything if wanted(each[0])]
        assert rows(url, StateView(None, 65536), asked) == expected
        assert [each for each in best(rows(url, CandidatesView(), asked)) if wanted(each[0])] == expected
        assert len(StateView(None, 65536).plan(open_backend(url), asked)) < 5
    assert {each[0] for each in rows(url, OpsView(), Asked(agents=frozenset("b")))} == {"b"}


@pytest.mark.parametrize("view", [StateView(), CandidatesView(), OpsView()], ids=["state", "candidates", "ops"])
@pytest.mark.parametrize("collected", [True, False])
def test_a_file_that_is_gone(tmp_path: Path, view: View, collected: bool) -> None:
    """If it was collected while the job ran, the error says to run the job again. Otherwise it is damage."""
    url = str(tmp_path / "store")
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    for n in range(3):
        with opslog.open(url, agent="a", settings=settings, compact_after=None) as store:
            store[f"{n}"] = {"n": n}
            if n == 0:
                store.compact()
    reader = OpslogReader(url, {}, view, None)
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    with opslog.open(url, agent="a", compact_after=None) as store:
        if collected:
            for _ in range(3):
                store["later"] = {}
                store.compact(full=True)
        else:
            for folder in ("ops/a", "snapshots"):
                min((tmp_path / "store" / folder).rglob("*.jsonl")).unlink()
    expected = opslog.RetryError if collected else opslog.CorruptError
    with pytest.raises(expected, match="Run the job again" if collected else "restore it from a copy"):
        list(chain.from_iterable(map(reader.read, partitions)))


@pytest.mark.parametrize("split_bytes", [30, 130, 390])
@pytest.mark.parametrize("hole", [(0, 20), (5, 140), (150, 160), (300, 420)], ids=str)
def test_zeros_that_a_power_cut_left_are_a_torn_tail_wherever_a_log_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hole: tuple[int, int], split_bytes: int
) -> None:
    """The lines after the zeros are good lines of the same append, in other splits. They do not count either."""
    monkeypatch.setattr(views, "TAIL_BYTES", 0)
    url = str(tmp_path)
    with opslog.open(url, agent="a", compact_after=None) as store:
        for number in range(3):
            store[str(number)] = {"n": number}
    log = tmp_path / segment_path("a", 1)
    lines = [
        encode_commit(Set("2026-11-24T12:00:00.000000Z", clock, "a", f"{clock}", msgspec.Raw(b'{"n":1}')))
        for clock in range(4, 9)
    ]
    group = b"".join([lines[0], *map(joined, lines[1:])])
    start, stop = hole
    log.write_bytes(log.read_bytes() + group[:start] + bytes(stop - start) + group[stop:])
    assert len(state(url)) < 8
    check_state(url, split_bytes)
    check_ops(url, split_bytes)
