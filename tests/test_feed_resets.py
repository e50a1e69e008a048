"""When the feed has to start again: the commits that a consumer needs were collected, or are not what they were."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opslog
from opslog.backends import open_backend
from opslog.bulk.copying import copy
from opslog.environment import Environment
from opslog.format.layout import segment_path
from opslog.replica.token import Token
from opslog.snapshot.manifests import ManifestStore
from opslog.store import replica_of
from tests.support.consuming import Consumer
from tests.test_changes import collect, open_writer, seen

_numbers = itertools.count()


@pytest.fixture(params=["directory", "memory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "directory" else f"{request.param}://resets-{next(_numbers)}"


def test_where_commits_were_collected_unread_it_begins_again(url: str) -> None:
    with open_writer(url, "a", settings=opslog.Settings(undo_window=0, grace_seconds=0)) as a:
        consumer = Consumer()
        consumer.take(a.changes())
        a["x"] = {}
        collect(a)
        with opslog.open(url, read_only=True) as reader:
            for store in (reader, a):
                again = Consumer()
                again.token = consumer.token
                changes = store.changes(again.token)
                assert changes.reset
                again.take(changes)
                assert again.documents == dict(store.items())


def test_a_log_that_was_collected_to_its_end_is_missed(url: str) -> None:
    """None of its files is listed any more."""
    seconds = [1e9]
    environment = Environment(time=lambda: seconds[0], monotonic=lambda: seconds[0])
    options: dict[str, Any] = {"environment": environment}
    if not url.startswith(("memory", "bucket")):
        pytest.skip("a directory has its own clock")
    options["now"] = lambda: seconds[0]
    settings = opslog.Settings(undo_window=2, grace_seconds=1, undo_ttl_seconds=10)
    with open_writer(url, "a", settings=settings, **options) as a:
        token = a.changes().token
        with open_writer(url, "b", **options) as b:
            b["x"] = {}
        for _ in range(4):
            seconds[0] += 100
            a["again"] = {}
            a.compact()
        assert not any(entry.path.startswith("ops/b/") for entry in open_backend(url).list("ops/"))
        changes = a.changes(token)
        assert changes.reset
        assert "x" in [change.id for change in changes]


def test_a_reader_within_the_last_segment_before_a_cut_has_not_reached_it() -> None:
    """Random histories found this case. The log of an agent that is gone has its cut at the start of a segment that
    does not exist yet. A consumer stopped early in the segment before, and the next call skipped the rest of that
    one."""
    seconds = [1e9]
    environment = Environment(time=lambda: seconds[0], monotonic=lambda: seconds[0])
    options: dict[str, Any] = {"environment": environment, "now": lambda: seconds[0]}
    settings = opslog.Settings(undo_window=0, grace_seconds=20, keep_history_seconds=None)
    url = f"memory://resets-{next(_numbers)}"
    consumer = Consumer()
    with open_writer(url, "a", settings=settings, **options) as a:
        consumer.take(a.changes())
        with open_writer(url, "b", **options) as b:
            for number in range(4):
                b["x"] = {"n": number}
            b.undo()
            del b["x"]
        for _ in range(2):  # the second call finds nothing new
            seconds[0] += 100
            a["again"] = {}
            a.compact()
        cut = ManifestStore(open_backend(url)).newest().cut["b"]
        assert (cut.offset, cut.there) == (0, False)
        consumer.take(a.changes(consumer.token, limit=5))
        assert sum(agent == "b" for _, agent in consumer.stamps) == 3
        consumer.take(a.changes(consumer.token))
        assert consumer.resets == 1
        assert sum(agent == "b" for _, agent in consumer.stamps) == 5
        assert consumer.documents == dict(a.items()) == {"again": {}}


def test_a_snapshot_may_have_an_undo_that_is_behind_its_cut(url: str) -> None:
    """A consumer stopped early, exactly at the cut. The newest snapshot has already applied the next commit."""
    with open_writer(url, "a", settings=opslog.Settings(undo_window=1, grace_seconds=1e6)) as a:
        a["x"] = {"n": 1}
        consumer = Consumer()
        consumer.take(a.changes())
        a["x"] = {"n": 2}
        a.undo()
        a.compact()
        assert ManifestStore(open_backend(url)).newest().cut["a"].commits == 2
        consumer.take(a.changes(consumer.token, limit=1))
        assert consumer.documents == {"x": {"n": 2}}
        consumer.take(a.changes(consumer.token))
        assert consumer.documents == dict(a.items()) == {"x": {"n": 1}}


def test_as_long_as_its_manifest_is_retained_a_token_serves(url: str) -> None:
    with open_writer(url, "a", settings=opslog.Settings(undo_window=0, grace_seconds=1e6)) as a:
        a["x"] = {"n": 0}
        token = a.changes().token
        for number in range(10):
            a["x"] = {"n": number}
            a.compact(full=number % 2 == 0)
        with opslog.open(url, read_only=True) as reader:
            changes = reader.changes(token)
            assert not changes.reset
            assert seen(changes) == [("x", {"n": 9}, True)]
            assert len(changes.commits) == 10


def test_compactions_renew_the_token_of_a_follower(url: str) -> None:
    with open_writer(url, "a", settings=opslog.Settings(undo_window=0, grace_seconds=0)) as a:
        a["x"] = {}
        found = a.follow()
        assert next(found).reset
        a["y"] = {}
        token = next(found).token
        a.compact()
        changes = next(found)
        assert (seen(changes), changes.commits, changes.reset) == ([], (), False)
        assert Token.parse(changes.token).manifest > Token.parse(token).manifest


def test_a_log_that_is_shorter_than_it_was_is_a_reset(tmp_path: Path) -> None:
    """As after a power cut, or if the store was restored from a backup."""
    with open_writer(str(tmp_path), "a") as a:
        a["x"] = {"n": 1}
        at_one = (tmp_path / segment_path("a", 1)).read_bytes()
        a["x"] = {"n": 2}
        token = a.changes().token
    (tmp_path / segment_path("a", 1)).write_bytes(at_one)
    with opslog.open(str(tmp_path), read_only=True) as reader:
        changes = reader.changes(token)
        assert changes.reset
        assert seen(changes) == [("x", {"n": 1}, False)]


def test_a_log_with_another_commit_at_its_place_is_a_reset(tmp_path: Path) -> None:
    with open_writer(str(tmp_path / "s"), "a") as a, open_writer(str(tmp_path / "s"), "b") as b:
        a["x"] = {"n": 1}
        a.changes()
        shutil.copytree(tmp_path / "s", tmp_path / "backup")
        b["x"] = {"n": 2}
        a.refresh()
        a["x"] = {"n": 3}
        token = a.changes().token
    shutil.rmtree(tmp_path / "s")
    (tmp_path / "backup").rename(tmp_path / "s")
    with open_writer(str(tmp_path / "s"), "b") as b, open_writer(str(tmp_path / "s"), "a") as a:
        b["x"] = {"n": 2}
        a["x"] = {"n": 3}  # as long as before, but with another clock
        changes = a.changes(token)
        assert changes.reset
        assert seen(changes) == [("x", a["x"], False)]


def test_a_manifest_of_the_same_number_but_another_one_is_a_reset(tmp_path: Path) -> None:
    with open_writer(str(tmp_path / "s"), "a", settings=opslog.Settings(undo_window=0)) as a:
        a["x"] = {"n": 1}
        a.changes()
        shutil.copytree(tmp_path / "s", tmp_path / "backup")
        a.compact()
        token = a.changes().token
    shutil.rmtree(tmp_path / "s")
    (tmp_path / "backup").rename(tmp_path / "s")
    with open_writer(str(tmp_path / "s"), "a") as a:
        a["x"] = {"n": 5}
        a.compact()
        assert ManifestStore(open_backend(str(tmp_path / "s"))).newest().number == Token.parse(token).manifest
        assert a.changes(token).reset


def test_a_manifest_of_the_same_number_and_clock_but_another_one_is_a_reset(tmp_path: Path) -> None:
    """After the restore from a backup, as much was written as before it."""
    store, backup = tmp_path / "s", tmp_path / "backup"
    with open_writer(str(store), "a", settings=opslog.Settings(undo_window=0)):
        shutil.copytree(store, backup)
    tokens: list[str] = []
    for number in range(2):
        with open_writer(str(store), "a") as a:
            a["x"] = {"n": number}
            a.compact()
            if tokens:
                changes = a.changes(tokens[0])
                assert changes.reset
                assert seen(changes) == [("x", {"n": 1}, False)]
            tokens.append(a.changes().token)
        shutil.rmtree(store)
        shutil.copytree(backup, store)
    first, second = map(Token.parse, tokens)
    assert first == msgspec.structs.replace(second, created=first.created)


@pytest.mark.parametrize("later", [False, True], ids=["nothing is left", "others were written since"])
def test_commits_collected_after_the_store_read_them_are_not_skipped(
    later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"bucket://resets-{next(_numbers)}"
    settings = opslog.Settings(undo_window=0, grace_seconds=0.0)
    with open_writer(url, "a", settings=settings) as a, opslog.open(url, read_only=True) as reader:
        a["w"] = {}
        token = reader.changes().token
        a["x"] = {}
        feed = replica_of(reader).feed
        changes = feed.changes

        def late(*args: Any) -> Any:
            monkeypatch.undo()
            for number in range(3):
                a.compact()
                a["z"] = {"n": number}
            a.compact()
            a.compact()
            if later:
                a["later"] = {}
            return changes(*args)

        monkeypatch.setattr(feed, "changes", late)
        found = reader.changes(token)
        assert found.reset
        assert [change.id for change in found] == (["later"] if later else []) + ["w", "x", "z"]


def test_after_a_restore_other_commits_of_the_same_clocks_and_lengths_are_noticed(tmp_path: Path) -> None:
    path, backup = tmp_path / "store", tmp_path / "backup"
    with open_writer(str(path), "a") as a:
        a["x"] = {}
        a.changes()
    shutil.copytree(path, backup)
    with open_writer(str(path), "a") as a:
        a["task-1"] = {"n": 1}
        token = a.changes().token
    shutil.rmtree(path)
    backup.rename(path)
    with open_writer(str(path), "a") as a:
        a["task-2"] = {"n": 2}
        changes = a.changes(token)
        assert changes.reset
        assert {change.id for change in changes} == {"x", "task-2"}


def test_after_a_restore_other_transactions_of_the_same_ts_are_noticed(tmp_path: Path) -> None:
    """In the shared log `ts` never goes back: after a transaction from a clock that is ahead, it stays the same."""
    path, backup = tmp_path / "store", tmp_path / "backup"
    ahead = Environment(time=lambda: time.time() + 3600)
    with opslog.open(path, agent="ahead", environment=ahead) as a:
        a.create("x", {"n": 0})
    shutil.copytree(path, backup)
    with open_writer(str(path), "a") as a:
        a.modify("x", lambda document: {"n": 1})
        token = a.changes().token
        lost = a.record("x")
    shutil.rmtree(path)
    backup.rename(path)
    with open_writer(str(path), "a") as a:
        a.modify("x", lambda document: {"n": 2})
        found = a.record("x")
        assert lost is not None
        assert found is not None
        assert (found.clock, found.ts) == (lost.clock, lost.ts)
        changes = a.changes(token)
        assert changes.reset
        assert [change.document for change in changes] == [{"n": 2}]


def test_a_copy_without_an_id_begins_again_with_a_token_of_its_source(tmp_path: Path) -> None:
    """If it has other commits than the source, though of the same clocks and lengths."""
    source, target = str(tmp_path / "source"), str(tmp_path / "copy")
    with open_writer(source, "a", log="shared") as a:
        a["x"] = {}
        a.changes()
        copy(open_backend(source), open_backend(target))
        a["y"] = {"n": 1}
        token = a.changes().token
    with open_writer(target, "a", log="shared") as c:
        c["z"] = {"n": 1}
    with opslog.open(target, read_only=True) as reader:
        changes = reader.changes(token)
        assert changes.reset
        assert {change.id for change in changes} == {"x", "z"}


@pytest.mark.parametrize("length", [0, len("2026-11-20T12:00:00.000000Z")])
def test_a_token_of_an_older_program_has_less_of_the_mark_and_is_still_valid(url: str, length: int) -> None:
    with open_writer(url, "a") as a:
        a["x"] = {}
        a.create("z", {})
        token = Token.parse(a.changes().token)
        a["y"] = {}
        older = {agent: msgspec.structs.replace(saved, mark=saved.mark[:length]) for agent, saved in token.logs.items()}
        assert older != token.logs
        changes = a.changes(str(msgspec.structs.replace(token, logs=older)))
        assert not changes.reset
        assert [change.id for change in changes] == ["y"]
