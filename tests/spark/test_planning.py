"""The plan of a job: each byte of each log once, wherever logs are divided, and the same cut as a compaction."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

import opslog
from opslog.backends import Backend, open_backend
from opslog.compaction.compact import Tail, compact
from opslog.environment import Environment, format_ts
from opslog.errors import CorruptError, NotFoundError
from opslog.format.layout import segment_path
from opslog.log.survey import Survey, at_cut, list_logs
from opslog.snapshot.manifests import ManifestStore
from opslog.spark.read import planning
from opslog.spark.read.planning import (
    SPLIT_BYTES,
    Log,
    find_recent,
    split_before,
    split_logs,
    survey_retained,
    survey_state,
)
from tests.support import bucket  # noqa: F401  (stores at bucket://)

_numbers = count()


@pytest.fixture(params=["memory", "bucket"])
def url(request: pytest.FixtureRequest) -> str:
    """Two kinds: segments grow, or each append is a segment."""
    return f"{request.param}://planning-{next(_numbers)}"


def fill(url: str, seed: int, sessions: int = 6) -> None:
    """Agents come and go, undo, and compact."""
    chance = random.Random(seed)
    settings = opslog.Settings(undo_window=3, grace_seconds=0, undo_ttl_seconds=0)
    for _ in range(sessions):
        with opslog.open(url, agent=chance.choice("abc"), settings=settings, compact_after=None) as store:
            for _ in range(chance.randrange(12)):
                if chance.random() < 0.2:
                    store.undo()
                else:
                    store[chance.choice("xyz")] = {"n": chance.random()}
            if chance.random() < 0.3:
                store.compact()


def lines(backend: Backend, log: Log) -> bytes:
    """All bytes of a log after its start."""
    data = [backend.read(segment_path(log.agent, segment.number), 0, segment.bytes) for segment in log.segments]
    return b"".join(data)[log.start.offset :] if data else b""


@pytest.mark.parametrize("split_bytes", [1, 64, 1000, SPLIT_BYTES])
@pytest.mark.parametrize("find", [survey_state, survey_retained])
def test_slices_are_every_byte_once(url: str, split_bytes: int, find: Callable[[Backend], planning.JobSurvey]) -> None:
    for seed in range(5):
        fill(url, seed)
        backend = open_backend(url)
        found = find(backend)
        assert found == pickle.loads(pickle.dumps(found))
        splits = split_logs(found.logs, split_bytes)
        for log in found.logs:
            slices = [slice_ for split in splits if split.agent == log.agent for slice_ in split.slices]
            read = [
                backend.read(segment_path(log.agent, slice_.number), slice_.start, slice_.stop) for slice_ in slices
            ]
            assert b"".join(read) == lines(backend, log)
            assert sum(map(len, read)) == log.bytes
            assert all(0 < len(part) <= split_bytes for part in read)


@pytest.mark.parametrize("find", [survey_state, survey_retained])
def test_there_are_logs_to_cut(url: str, find: Callable[[Backend], planning.JobSurvey]) -> None:
    """Otherwise the test above would prove nothing."""
    fill(url, 1)
    found = find(open_backend(url))
    assert len(found.logs) > 1
    assert found.log_bytes > 1000
    assert found.log_cost > found.log_bytes


@pytest.mark.parametrize("seed", range(30))
def test_the_cut_is_that_of_a_compaction(url: str, seed: int) -> None:
    fill(url, seed)
    backend = open_backend(url)
    manifest = ManifestStore(backend).newest()
    tail = Tail.read(backend, list_logs(backend, manifest, at_cut(manifest)))
    found = survey_state(backend)
    cuts = {}
    for log in found.logs:
        recent = find_recent(backend, log, manifest.settings.undo_window)
        commits = tail.cursors[log.agent].commits
        cuts[log.agent] = recent.cut(commits)
        expected = tail.merge.recent.get(log.agent, ())
        assert recent.commits == len(expected)
        newest = [entry.commit.ts for entry in expected]
        assert recent.ts == max(newest, default="")
        settled = split_before(log, recent.position, 100)
        place = max((slice_.number, slice_.stop) for split in settled for slice_ in split.slices) if settled else (0, 0)
        assert place <= recent.position
        assert sum(slice_.stop - slice_.start for split in settled for slice_ in split.slices) == sum(
            len(data)
            for segment in log.segments
            if (segment.number, 0) <= recent.position
            for data in [
                backend.read(
                    segment_path(log.agent, segment.number),
                    log.start.offset if segment.number == log.start.segment else 0,
                    recent.position[1] if segment.number == recent.position[0] else segment.bytes,
                )
            ]
        )
    assert {agent: cut for agent, cut in cuts.items() if cut.commits} == tail.cut()
    clocks = [find_recent(backend, log, manifest.settings.undo_window).clock for log in found.logs]
    assert max([manifest.clock, *clocks]) == tail.clock


def test_a_compaction_on_the_way_is_read_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(url, 3)
    calls: list[int] = []
    tails = planning.tails

    def meddle(survey: Survey) -> planning.JobSurvey:
        found = tails(survey)
        calls.append(survey.manifest.number)
        if len(calls) == 1:
            with opslog.open(url, agent="d") as store:
                for n in range(10):
                    store["late"] = {"n": n}
                store.compact()
        return found

    monkeypatch.setattr(planning, "tails", meddle)
    found = survey_state(open_backend(url))
    assert len(calls) == 2
    assert found.manifest.number == calls[1] == calls[0] + 1
    assert "d" in {log.agent for log in found.logs}


def test_no_store(url: str) -> None:
    with pytest.raises(NotFoundError):
        survey_state(open_backend(url))


def test_a_segment_that_is_lost_is_an_error(url: str) -> None:
    with opslog.open(url, agent="a", settings=opslog.Settings(undo_window=0)) as store:
        for n in range(4):
            store["x"] = {"n": n}
        store.compact()
    with opslog.open(url, agent="a") as store:
        store["y"] = {}
    backend = open_backend(url)
    last = max(entry.path for entry in backend.list("ops/"))
    with opslog.open(url, agent="a") as store:
        store["z"] = {}
    backend.delete([last])
    for find in (survey_state, survey_retained):
        with pytest.raises(CorruptError, match=last):
            find(backend)


def test_a_log_that_lost_its_beginning_is_damaged(url: str) -> None:
    """`Store.ops` reports the same."""
    for number in range(3):
        with opslog.open(url, agent="a", compact_after=None) as store:
            store["x"] = {"n": number}
    backend = open_backend(url)
    first, *_ = sorted(entry.path for entry in backend.list("ops/"))
    backend.delete([first])
    for find in (survey_state, survey_retained):
        with pytest.raises(CorruptError, match=first):
            find(backend)


def test_a_commit_from_the_future_takes_away_no_past() -> None:
    """The library has the same rule: a commit that is compacted was written by then, whatever time it claims."""
    now = [1_800_000_000.0]
    url = f"memory://planning-{next(_numbers)}"
    backend = open_backend(url, now=lambda: now[0])
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    for ahead in (60 * 86400.0, 0.0, 0.0):
        claimed = now[0] + ahead
        environment = Environment(time=partial(float, claimed))
        with opslog.open(url, agent="a", settings=settings, environment=environment, compact_after=None) as store:
            store["x"] = {}
        now[0] += 1
        compact(backend, environment)
        found = survey_state(backend, format_ts(now[0]))
        assert found.manifest == ManifestStore(backend).newest()
        now[0] += 1
