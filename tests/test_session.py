"""Writer sessions: what holds for each of them, whoever owns it."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import opslog
from opslog.backends import Backend, open_backend
from opslog.compaction.compact import compact
from opslog.environment import REAL, Environment, format_ts
from opslog.format.commits import Delete, Set, encode_commit
from opslog.format.layout import segment_path
from opslog.log import session as module
from opslog.log.freshness import Freshness
from opslog.log.reader import Cursor, list_log
from opslog.log.session import WriterSession, take_name
from opslog.merge.clock import LamportClock
from opslog.snapshot.manifests import ManifestStore
from tests.support import bucket

assert bucket.BUCKETS is not None  # which registers bucket://

ROOT = Path(__file__).parents[1]
_numbers = itertools.count()


def test_each_invariant_names_the_test_that_shows_it() -> None:
    invariants = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |^Where)", module.__doc__ or "", re.MULTILINE | re.DOTALL)
    assert [int(number) for number, _ in invariants] == list(range(1, len(invariants) + 1))
    for number, text in invariants:
        named = re.findall(r"(tests/\S+\.py):\s+(test_\w+)", text)
        assert named, f"no test shows invariant {number}"
        for path, name in named:
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"invariant {number}: {path}: {name}"


@dataclass
class Paused:
    """A session of agent "a" on an object storage that was begun but not used yet. The log has one commit."""

    backend: Backend
    session: WriterSession
    now: list[float]

    def pause(self) -> None:
        """Others use the next numbers of this log, compact their commits, and collect them."""
        for number in range(2, 7):
            commit = Set(format_ts(0.0), number, "a", f"other-{number}", msgspec.Raw(b"{}"))
            self.backend.create(segment_path("a", number), encode_commit(commit))
        compact(self.backend, REAL)
        cut = ManifestStore(self.backend).newest().cut["a"]
        self.backend.delete([segment_path("a", number) for number in range(1, cut.segment)])
        self.now[0] += 1000

    def append(self) -> int:
        """Append a commit. Returns its clock."""
        commit = Delete("", 0, "", "x")
        self.session.append(self.session.stamp(commit))
        return commit.clock


def begun(*, in_memory: bool = True) -> Paused:
    url = f"bucket://session-{next(_numbers)}"
    with opslog.open(url, agent="a", compact_after=None, settings=opslog.Settings(undo_window=0)) as store:
        store["x"] = {}
    now = [0.0]
    environment = Environment(monotonic=lambda: now[0])
    backend = open_backend(url)
    appender = take_name(backend, "a", environment)
    manifests = ManifestStore(backend)
    freshness = Freshness(manifests, environment, manifests.newest(), now[0])
    own = Cursor("a", segment=2, commits=1)
    session = WriterSession(backend, appender, own, freshness, LamportClock(1), in_memory=in_memory)
    return Paused(backend, session, now)


def test_an_append_with_a_recent_manifest_is_one_request() -> None:
    paused = begun()
    before = paused.backend.requests
    assert [paused.append(), paused.append()] == [2, 3]
    assert paused.backend.requests == before + 2
    paused.session.close()


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_used_number_is_found_before_the_append(in_memory: bool) -> None:
    paused = begun(in_memory=in_memory)
    paused.pause()
    with pytest.raises(opslog.AgentFencedError, match=r"is in a snapshot\. Nothing of this append is in") as raised:
        paused.append()
    assert raised.value.path == segment_path("a", 2)
    assert list_log(paused.backend, "a") == []
    paused.session.close()


def test_only_a_session_without_memory_goes_on_behind_another_process() -> None:
    paused = begun()
    paused.pause()
    for _ in range(2):
        with pytest.raises(opslog.AgentFencedError) as raised:
            paused.append()
        with pytest.raises(opslog.AgentFencedError):
            paused.session.pass_seal(raised.value)
    paused.session.close()

    paused = begun(in_memory=False)
    paused.pause()
    with pytest.raises(opslog.AgentFencedError) as raised:
        paused.append()
    paused.session.go_on(paused.session.pass_seal(raised.value))
    assert paused.append() > 6, "above all that is compacted"
    assert [segment.number for segment in list_log(paused.backend, "a")] == [7]
    paused.session.close()
    with opslog.open(paused.backend.url, read_only=True) as store:
        assert "x" not in store


def test_a_session_that_has_loaded_what_another_process_wrote_does_not_go_on_behind_it() -> None:
    paused = begun()
    before = paused.session.freshness.newest
    paused.pause()
    paused.session.resume(Cursor("a", segment=7, commits=6, clock=6), before)
    for _ in range(2):
        with pytest.raises(opslog.AgentFencedError) as raised:
            paused.append()
        with pytest.raises(opslog.AgentFencedError):
            paused.session.pass_seal(raised.value)
    assert list_log(paused.backend, "a") == []
    paused.session.close()
