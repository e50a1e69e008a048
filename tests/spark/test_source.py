"""The data source and replay through Spark: the same rows as the library, options, SQL, filters and errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import In

import opslog
from opslog.archive import list_periods, read_archive
from opslog.backends import open_backend
from opslog.format.commits import Undo
from opslog.spark import replay
from opslog.spark.read import replaying
from opslog.spark.read.planning import survey_state
from opslog.spark.read.ranges import IdRange
from opslog.spark.read.views import EVERYTHING
from opslog.spark.source import narrowed
from tests.support.random_stores import live, row, state, tear


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with an eventful life."""
    url = str(tmp_path_factory.mktemp("source") / "store")
    live(url, random.Random(11), tear=tear)
    with opslog.open(url, agent="last", settings=opslog.Settings(undo_window=3)) as last:
        for n in range(20):
            last[f"task-{n:02}"] = {"title": f"Task {n}", "done": n % 2 == 0, "n": n}
        last.archive(lambda document: document.get("n") == 7, "2026-Q4")
        last.undo()
        last.archive(lambda document: document.get("n") == 8, "2026-Q3")
    return url


def read(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    return spark.read.format("opslog").options(**options).load(url)


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(each) for each in frame.collect())


def test_the_state_is_that_of_the_library(spark: SparkSession, store: str) -> None:
    assert rows(read(spark, store)) == state(store)
    assert rows(read(spark, Path(store).as_uri(), splitBytes=1000)) == state(store)


def test_replay_is_the_state(spark: SparkSession, store: str) -> None:
    with opslog.open(store, read_only=True) as past:
        clock = past.stats().clock - 10
    assert rows(replay(spark, store, partitions=3)) == state(store)
    assert rows(replay(spark, store, as_of=clock, partitions=3)) == state(store, as_of=clock)
    assert rows(replay(spark, Path(store))) == state(store)


def test_ops_are_those_of_the_library(spark: SparkSession, store: str) -> None:
    found = read(spark, store, view="ops", splitBytes=1000).orderBy("clock", "agent", "place").collect()
    with opslog.open(store, read_only=True) as library:
        commits = list(library.ops())
    undone = {(commit.target, commit.agent) for commit in commits if isinstance(commit, Undo)}
    assert undone
    assert list(dict.fromkeys((each.clock, each.agent, each.ts, each.cancelled) for each in found)) == [
        (*commit.stamp, commit.ts, commit.stamp in undone) for commit in commits
    ]


def test_archives(spark: SparkSession, store: str) -> None:
    backend = open_backend(store)
    expected = [
        (period, *row(record)) for period in list_periods(backend) for record in read_archive(backend, period).values()
    ]
    assert {period for period, *_ in expected} == {"2026-Q3", "2026-Q4"}
    assert rows(read(spark, store, view="archive")) == sorted(expected)
    assert rows(read(spark, store, view="archive", period="2026-Q3")) == sorted(
        each for each in expected if each[0] == "2026-Q3"
    )


Through = Callable[[SparkSession, str, int, int | None], DataFrame]


def through_the_source(spark: SparkSession, url: str, split_bytes: int, as_of: int | None) -> DataFrame:
    past = {} if as_of is None else {"asOf": as_of}
    return read(spark, url, splitBytes=split_bytes, **past)


def through_replay(spark: SparkSession, url: str, split_bytes: int, as_of: int | None) -> DataFrame:
    """With a shuffle, and tasks of this size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replaying, "_task_bytes", lambda *_: split_bytes)
        return replay(spark, url, as_of=as_of, partitions=2)


def many(spark: SparkSession, folder: Path, seeds: range, through: Through) -> None:
    """Many stores, all in one job, half of them at a clock before the newest one."""
    expected = []
    frames = []
    for seed in seeds:
        url, chance = str(folder / str(seed)), random.Random(seed)
        live(url, chance, tear=tear)
        split_bytes = survey_state(open_backend(url)).log_bytes // 3 + 1
        with opslog.open(url, read_only=True) as library:
            clocks = [commit.clock for commit in library.ops()]
        as_of = max(clocks) - chance.randrange(2) if chance.random() < 0.5 and clocks else None
        try:
            found = state(url) if as_of is None else state(url, as_of=as_of)
        except opslog.HistoryGoneError:
            as_of, found = None, state(url)
        expected += [(seed, *each) for each in found]
        frames.append(through(spark, url, split_bytes, as_of).select(F.lit(seed), "*"))
    assert rows(reduce(DataFrame.union, frames)) == sorted(expected)


@pytest.mark.parametrize("through", [through_the_source, through_replay])
def test_random_stores(spark: SparkSession, tmp_path: Path, through: Through) -> None:
    many(spark, tmp_path, range(100, 108), through)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("through", [through_the_source, through_replay])
@pytest.mark.parametrize("start", range(0, 1000, 50))
def test_many_random_stores(spark: SparkSession, tmp_path: Path, start: int, through: Through) -> None:
    many(spark, tmp_path, range(start, start + 50), through)


def test_sql(spark: SparkSession, store: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW tasks USING opslog OPTIONS (path '{store}')")
    found = spark.sql("SELECT id, data FROM tasks WHERE id LIKE 'task-0_' ORDER BY id").collect()
    assert [tuple(each) for each in found] == [each[:2] for each in state(store) if each[0].startswith("task-0")]
    assert len(found) > 5


def test_typed_columns(spark: SparkSession, store: str) -> None:
    typed = read(spark, store, schema="title STRING, done BOOLEAN, n DOUBLE, other DATE")
    found = typed.where("id = 'task-03'").select("id", "data.*", "agent").collect()
    assert found == [Row(id="task-03", title="Task 3", done=False, n=3.0, other=None, agent="last")]
    wrong = read(spark, store, schema="title BIGINT").where("id LIKE 'task-%'")
    with pytest.raises(PythonException, match=r"document 'task-\d\d' does not fit the option schema: .* at `\$.title`"):
        wrong.collect()


CONDITIONS = [
    "id = 'task-03'",
    "id = 'none'",
    "id IN ('task-03', 'a', 'task-05') AND agent = 'last'",
    "id >= 'task-03' AND id < 'task-05'",
    "id LIKE 'task-1%'",
    "agent IN ('last', 'C')",
    "id > 'task-1' AND id <= 'task-15' AND agent <> 'C'",
    "id IN ('task-03', NULL) AND agent IN ('last', NULL)",
]


@pytest.mark.parametrize("view", ["state", "ops"])
def test_filters(spark: SparkSession, store: str, view: str) -> None:
    """The result is the same whether or not Spark passes them to the source. One DataFrame may be used many times if
    they are enabled and it has none."""

    def found(frames: list[DataFrame]) -> list[tuple[Any, ...]]:
        each = [
            frame.where(condition).select(F.lit(condition), "*")
            for frame, condition in zip(frames, CONDITIONS, strict=True)
        ]
        return [tuple(row) for row in reduce(DataFrame.union, each).orderBy(*range(1, 5)).collect()]

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    pushed = found([read(spark, store, view=view, pushdown="true") for _ in CONDITIONS])
    assert pushed == found([read(spark, store, view=view)] * len(CONDITIONS))
    assert {row[0] for row in pushed} == {*CONDITIONS} - {"id = 'none'"}


def test_nothing_equals_null() -> None:
    ids, agents = In(("id",), ("b", None, "a")), In(("agent",), (None, "x"))
    asked = narrowed(narrowed(EVERYTHING, ids), agents)
    assert (asked.one_of, asked.agents) == (frozenset({"a", "b"}), frozenset({"x"}))
    assert asked.ids == IdRange("a", "b\0")
    assert narrowed(EVERYTHING, In(("id",), (None,))).one_of == frozenset()


@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_object_storage_with_options(spark: SparkSession, s3_server: Any) -> None:
    """The workers get the server's address only from the options."""
    url = f"{s3_server.url}/spark"
    with opslog.open(url, agent="a", compact_after=None) as writer:
        for n in range(10):
            writer[f"{n % 4}"] = {"n": n}
        writer.undo()
    options = {
        "endpoint_url": s3_server.environment["AWS_ENDPOINT_URL"],
        "key": "testing",
        "secret": "testing",
        "client_kwargs": {"region_name": "us-east-1"},
    }
    assert rows(replay(spark, url, partitions=2, **options)) == state(url)
    assert len(state(url)) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "states"}, 'view is "state", "ops" or "archive"'),
        ({"view": "archive", "asOf": "7"}, "archives have no past"),
        ({"period": "2026-Q4"}, 'goes with view "archive"'),
        ({"splitBytes": "0"}, "splitBytes is a number of bytes"),
        ({"asOf": "yesterday"}, "as_of takes a clock"),
        ({"vew": "ops"}, "has no option 'vew': did you mean 'view'"),
        ({"path": "memory://x"}, "in the memory of one process"),
        ({"path": "nowhere"}, "no store at"),
        ({"path": ""}, "name one store"),
        ({"asOf": "0", "path": "gone"}, "the state at 0 was compacted away"),
    ],
)
def test_wrong_options(spark: SparkSession, store: str, tmp_path: Path, options: dict[str, str], message: str) -> None:
    if options.get("path") == "gone":
        options = {**options, "path": str(tmp_path)}
        with opslog.open(tmp_path, settings=opslog.Settings(undo_window=0, grace_seconds=0)) as gone:
            gone["a"] = {}
            gone.compact()
            gone["b"] = {}
            gone.compact()
    frame = spark.read.format("opslog").options(**{"path": store, **options})
    with pytest.raises(AnalysisException, match=message):
        frame.load().collect()


def test_columns_are_chosen_by_the_view(spark: SparkSession, store: str) -> None:
    with pytest.raises(AnalysisException, match="choose among them with select"):
        spark.read.format("opslog").schema("id STRING").load(store).collect()


@pytest.mark.parametrize(
    "rows_of",
    [
        read,
        partial(read, view="ops"),
        partial(replay, partitions=2),
    ],
    ids=["state", "ops", "replay"],
)
def test_damage_names_file_and_offset(
    spark: SparkSession, tmp_path: Path, rows_of: Callable[[SparkSession, str], DataFrame]
) -> None:
    with opslog.open(tmp_path / "store", agent="a") as writer:
        for n in range(3):
            writer["x"] = {"n": n}
    (path,) = (tmp_path / "store" / "ops" / "a").iterdir()
    data = path.read_bytes()
    offset = data.index(b"\n") + 1
    path.write_bytes(data[:offset] + data[offset:].replace(b'"op":"set"', b'"op":"sat"', 1))
    message = rf"CorruptError: ops/a/0{{19}}1.jsonl: byte {offset}: this line cannot be read"
    with pytest.raises((AnalysisException, PythonException), match=message):
        rows_of(spark, str(tmp_path / "store")).collect()
