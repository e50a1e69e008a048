"""Changes: what a consumer gets for a token, that it misses nothing, and when it has to start again.

`tests/test_state_machine.py` also has consumers, in random histories.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opslog
from opslog.backends import open_backend
from opslog.backends.local.fs import FsBackend
from opslog.errors import MissingFileError
from opslog.format.commits import Undo, encode_commit
from opslog.format.layout import segment_path
from opslog.format.manifest import Cut, Manifest
from opslog.log.reader import Cursor
from opslog.replica.feed import Feed
from opslog.replica.state import State
from opslog.replica.token import SavedCursor, Token
from opslog.store import replica_of
from tests.support import bucket
from tests.support.consuming import Consumer

Store = opslog.Store[dict[str, Any]]

_numbers = itertools.count()


@pytest.fixture(params=["directory", "memory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "directory" else f"{request.param}://changes-{next(_numbers)}"


def open_writer(url: str, agent: str, **options: Any) -> Store:
    return opslog.open(url, agent=agent, compact_after=None, **options)


def seen(changes: Iterable[opslog.Change[dict[str, Any]]]) -> list[tuple[str, dict[str, Any] | None, bool]]:
    return [(change.id, change.document, change.existed) for change in changes]


def collect(store: Store, times: int = 3) -> None:
    """Compact until only what the newest manifest needs is retained (with a grace period of 0)."""
    for _ in range(times):
        store["again"] = {}
        store.compact()


# -- what is in it


def test_the_first_changes_are_everything(url: str) -> None:
    with open_writer(url, "a") as store:
        store["y"], store["x"], store["z"] = {"n": 1}, {"n": 2}, {"n": 3}
        del store["z"]
        changes = store.changes()
        assert changes.reset
        assert changes.commits == ()
        assert seen(changes) == [("x", {"n": 2}, False), ("y", {"n": 1}, False)]


def test_then_come_what_changed_and_what_each_commit_did(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a["x"], a["gone"] = {"n": 1}, {}
        token = b.changes().token
        a["x"] = {"n": 2}
        del a["gone"]
        with b.batch():
            b["x"], b["new"] = {"n": 3}, {}
        a["brief"] = {}
        del a["brief"]
        changes = b.changes(token)
        assert not changes.reset
        assert seen(changes) == [
            ("brief", None, False),
            ("gone", None, True),
            ("new", {}, False),
            ("x", {"n": 3}, True),
        ]
        assert [tuple(effect)[:2] + tuple(effect)[3:] for effect in changes.commits] == [
            ((3, "a"), "a", "set", ("x",), False),
            ((3, "b"), "b", "batch", ("x", "new"), True),
            ((4, "a"), "a", "delete", ("gone",), True),
            ((5, "a"), "a", "set", ("brief",), False),
            ((6, "a"), "a", "delete", ("brief",), True),
        ]
        gone = next(change for change in changes if change.id == "gone")
        assert isinstance(gone.record, opslog.Delete)
        assert gone.record.agent == "a"


def test_a_batch_of_which_a_newer_commit_wrote_one_document_has_not_won(url: str) -> None:
    with open_writer(url, "a") as store:
        token = store.changes().token
        with store.batch():
            store["x"], store["y"] = {"n": 1}, {"n": 1}
        store["y"] = {"n": 2}
        changes = store.changes(token)
        assert [(effect.op, effect.ids, effect.won) for effect in changes.commits] == [
            ("batch", ("x", "y"), False),
            ("set", ("y",), True),
        ]


def test_a_document_that_was_gone_at_the_token_did_not_exist(url: str) -> None:
    """Although the record at the token is known: its tombstone."""
    with open_writer(url, "a") as store:
        store["x"] = {"n": 1}
        del store["x"]
        token = store.changes().token
        store["x"] = {"n": 2}
        assert seen(store.changes(token)) == [("x", {"n": 2}, False)]


def test_a_seal_is_no_commit_of_the_changes(url: str) -> None:
    with open_writer(url, "a", settings=opslog.Settings(undo_ttl_seconds=0)) as store:
        with open_writer(url, "b") as b:
            b["x"] = {}
        token = store.changes().token
        assert store.compact().sealed == ("b",)
        changes = store.changes(token)
        assert (changes.reset, changes.commits, seen(changes)) == (False, (), [])
        assert "seal" in [commit.op for commit in store.ops()]


def test_an_undo_says_what_it_gave_back(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a["x"], a["y"] = {"n": 1}, {"n": 1}
        with a.batch():
            a["x"], a["y"] = {"n": 2}, {"n": 2}
        token = b.changes().token
        a.undo()
        changes = b.changes(token)
        assert seen(changes) == [("x", {"n": 1}, True), ("y", {"n": 1}, True)]
        assert [(effect.op, effect.ids, effect.won) for effect in changes.commits] == [("undo", ("x", "y"), True)]


def test_an_undone_change_has_not_won_and_the_document_is_as_it_was(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a["x"] = {"n": 1}
        token = b.changes().token
        a["x"] = {"n": 2}
        a.undo()
        changes = b.changes(token)
        assert seen(changes) == [("x", {"n": 1}, True)]
        assert [(effect.op, effect.won) for effect in changes.commits] == [("set", False), ("undo", True)]


def test_an_undo_that_took_nothing_back_has_not_won(tmp_path: Path) -> None:
    """Its target is out of reach for everybody who reads it. Another program may have left such an undo."""
    with open_writer(str(tmp_path), "a", settings=opslog.Settings(undo_window=1)) as store:
        store["x"] = {}
        store["y"] = {}
        token = store.changes().token
        *_, last = store.ops()
    with (tmp_path / segment_path("a", 1)).open("ab") as log:
        log.write(encode_commit(Undo(last.ts, 3, "a", target=1)))
    with opslog.open(str(tmp_path), read_only=True) as reader:
        changes = reader.changes(token)
        assert [(effect.op, effect.ids, effect.won) for effect in changes.commits] == [("undo", (), False)]
        assert seen(changes) == []


def test_a_follower_that_stopped_half_way_may_begin_again_at_its_old_token(url: str) -> None:
    """Some of the changes that it had applied were taken back since, and are as they were at the token."""
    with open_writer(url, "a") as a, opslog.open(url, read_only=True) as reader:
        a["x"] = {"n": 1}
        changes = reader.changes()
        held = {change.id: change.document for change in changes}
        a["x"] = {"n": 2}
        a["brief"] = {}
        held |= {change.id: change.document for change in reader.changes(changes.token)}  # and not its token
        a.undo()
        a.undo()
        held |= {change.id: change.document for change in reader.changes(changes.token)}
        assert held == {"x": {"n": 1}, "brief": None}


def test_changes_are_those_that_the_store_shows(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no newer ones, although the log has grown since it was listed."""
    with open_writer(url, "a") as a, opslog.open(url, read_only=True) as reader:
        consumer = Consumer()
        consumer.take(reader.changes())
        real = Feed.changes

        def changes(self: Feed[Any], *arguments: Any) -> Any:
            a["x"] = {"n": 3}
            return real(self, *arguments)

        a["x"] = {"n": 1}
        a["x"] = {"n": 2}
        with monkeypatch.context() as patched:
            patched.setattr(Feed, "changes", changes)
            consumer.take(reader.changes(consumer.token))
        assert consumer.documents == dict(reader.items()) == {"x": {"n": 2}}
        consumer.take(reader.changes(consumer.token))
        assert consumer.documents == dict(reader.items()) == {"x": {"n": 3}}


def test_an_exception_leaves_nothing_half_done(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_writer(url, "a") as store:
        token = store.changes().token
        for id in ("x", "y"):
            store[id] = {}
        take, left = State.take, iter([True])

        def interrupted(self: State, *arguments: Any) -> tuple[str, ...]:
            if next(left, False):
                return take(self, *arguments)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(State, "take", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.changes(token)
        changes = store.changes(token)
        assert seen(changes) == [("x", {}, False), ("y", {}, False)]
        assert len(changes.commits) == 2


def test_a_commit_that_comes_late_with_a_smaller_clock_is_there(url: str) -> None:
    """`ops(since=clock)` does not return it."""
    with open_writer(url, "early") as early, open_writer(url, "late") as late:
        for number in range(5):
            early["x"] = {"n": number}
        changes = early.changes()
        late["y"] = {}
        assert [effect.stamp for effect in early.changes(changes.token).commits] == [(1, "late")]
        assert [commit.id for commit in early.ops(5) if isinstance(commit, opslog.Set)] == []


def test_nothing_is_taken_from_refresh_and_watch(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        token = b.changes().token
        a["x"] = {}
        assert len(b.changes(token).commits) == 1
        assert [commit.agent for commit in b.refresh()] == ["a"]
        a["y"] = {}
        assert len(b.changes(token).commits) == 2
        assert next(b.watch()).agent == "a"


def test_a_token_serves_any_process_and_readers(url: str) -> None:
    with open_writer(url, "a") as a:
        a["x"] = {"n": 1}
        token = a.changes().token
        a["x"] = {"n": 2}
        there = a.changes(token)
    with opslog.open(url, read_only=True) as reader:
        assert reader.changes(token).token == there.token
        assert seen(reader.changes(token)) == [("x", {"n": 2}, True)]
        assert seen(reader.changes(there.token)) == []


def test_limit_stops_early(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        consumer = Consumer()
        consumer.take(b.changes())
        for number in range(5):
            a[f"x-{number}"] = {}
            b[f"y-{number}"] = {}
        counts = []
        while (changes := b.changes(consumer.token, limit=3)).commits:
            counts.append(len(changes.commits))
            consumer.take(changes)
        assert counts == [3, 3, 3, 1]
        assert consumer.documents == dict(b.items())
        wrong: list[Any] = [0, "x", 2.5, True]
        for limit in wrong:
            with pytest.raises(opslog.UsageError, match="limit is a number of commits from 1 on"):
                b.changes(consumer.token, limit=limit)


def test_a_limit_that_seals_have_reached_says_that_there_is_more(tmp_path: Path) -> None:
    """They count, and are not among the commits."""
    settings = opslog.Settings(undo_window=4, undo_ttl_seconds=0)
    with opslog.open(tmp_path, agent="m", settings=settings, compact_after=None) as store:
        consumer = Consumer()
        consumer.take(store.changes())
        for name in "abc":
            with opslog.open(tmp_path, agent=name, compact_after=None) as other:
                for number in range(5):
                    other[f"{name}-{number}"] = {}
        assert store.compact().sealed == ("a", "b", "c")
        store["last"] = {}
        short, changes = 0, store.changes(consumer.token, limit=2)
        while changes.has_more:
            short += len(changes.commits) < 2
            consumer.take(changes)
            changes = store.changes(consumer.token, limit=2)
        consumer.take(changes)
        assert short
        assert consumer.documents == dict(store.items())


def test_limit_stops_behind_an_append_where_each_is_an_object() -> None:
    url = f"bucket://changes-{next(_numbers)}"
    with open_writer(url, "a", durability="buffered", buffer_seconds=1000.0) as store:
        consumer = Consumer()
        consumer.take(store.changes())
        for some in range(3):
            for number in range(4):
                store[f"x-{number}"] = {"n": some}
            store.flush()
        for _ in range(2):
            changes = store.changes(consumer.token, limit=3)
            assert len(changes.commits) == 4
            consumer.take(changes)
        with opslog.open(url, read_only=True) as reader:
            consumer.take(reader.changes(consumer.token))
        assert consumer.resets == 1
        assert len(consumer.stamps) == 12


def test_no_log_waits_behind_one_that_is_written_faster(url: str) -> None:
    with open_writer(url, "busy") as busy, open_writer(url, "quiet") as quiet:
        token = quiet.changes().token
        quiet["x"] = {}
        for number in range(20):
            busy["y"] = {"n": number}
        assert {effect.author for effect in quiet.changes(token, limit=2).commits} == {"quiet", "busy"}


def test_documents_have_the_stores_type(url: str) -> None:
    class Task(msgspec.Struct):
        title: str

    with opslog.open(url, agent="a", type=Task) as store:
        store["x"] = Task("build")
        assert [change.document for change in store.changes()] == [Task("build")]


def test_a_snapshot_that_is_collected_before_it_is_held_is_loaded_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_writer(url, "a", settings=opslog.Settings(undo_window=0, grace_seconds=0)) as a:
        a["x"] = {}
        real = State.snapshot
        missed: list[int] = []

        def snapshot(self: State) -> Any:
            if not missed:
                missed.append(self.manifest.number)
                collect(a)
                raise MissingFileError("collected meanwhile", "snapshots/x")
            return real(self)

        with opslog.open(url, read_only=True) as reader, monkeypatch.context() as patched:
            patched.setattr(State, "snapshot", snapshot)
            changes = reader.changes()
            assert {change.id: change.document for change in changes} == dict(reader.items()) == dict(a.items())
        assert Token.parse(changes.token).manifest > missed[0]


def test_a_state_that_another_thread_tears_after_the_refresh_is_loaded_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opslog.open(url, agent="a") as store:
        store["x"] = {}
        replica = replica_of(store)
        real = replica.refresh
        torn: list[bool] = []

        def refresh() -> None:
            real()
            if not torn:
                torn.append(True)
                replica.invalidate()

        monkeypatch.setattr(replica, "refresh", refresh)
        assert [change.id for change in store.changes()] == ["x"]


def test_a_reset_shows_the_store_as_it_was_whenever_it_is_iterated(url: str) -> None:
    with open_writer(url, "a", settings=opslog.Settings(undo_window=0)) as store:
        for number in range(100):
            store[f"x-{number:02}"] = {"n": number}
        store.compact()
        changes = store.changes()
        before = dict(store.items())
        store.clear()
        store.compact(full=True)
        assert {change.id: change.document for change in changes} == before
        assert {change.id: change.document for change in changes} == before


# -- durability


def test_a_buffered_store_is_flushed(tmp_path: Path) -> None:
    with open_writer(str(tmp_path), "a", durability="buffered", buffer_seconds=1000.0) as store:
        token = store.changes().token
        store["x"] = {}
        assert seen(store.changes(token)) == [("x", {}, False)]
        assert open_backend(str(tmp_path)).list("ops/a/")[0].size > 0


def test_writes_of_others_are_durable_before_they_are_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    persisted: list[str] = []
    real = FsBackend.persist

    def persist(self: FsBackend, paths: Iterable[str]) -> None:
        paths = list(paths)
        persisted.extend(paths)
        real(self, paths)

    with open_writer(str(tmp_path), "a") as a, opslog.open(str(tmp_path), read_only=True) as reader:
        a["x"] = {}
        monkeypatch.setattr(FsBackend, "persist", persist)
        token = reader.changes().token
        assert persisted == [segment_path("a", 1)]
        a["x"] = {}
        reader.changes(token)
        assert persisted == [segment_path("a", 1)] * 2
        reader.changes(reader.changes(token).token)
        assert len(persisted) == 3


# -- tokens


def test_an_invalid_token_is_refused(url: str) -> None:
    with open_writer(url, "a") as store:
        token = store.changes().token
        for wrong in ("", "x", "ä", token[:-4], token + "AAAA", token[4:], "!" + token[1:]):
            with pytest.raises(opslog.UsageError, match="is not a token of changes"):
                store.changes(wrong)
        assert store.changes(token).token == token


def test_a_token_grows_with_the_logs_that_are_not_compacted_to_their_ends() -> None:
    cut = {f"worker-{number}": Cut(2, 0, 40) for number in range(10_000)}
    cursors = {agent: Cursor.at(agent, at) for agent, at in cut.items()}
    for number in range(50):
        cursors[f"live-{number}"] = Cursor(f"live-{number}", 3, 1000 + 317 * number, 100 + number, 1_000_000 + number)
    token = str(
        Token.at("0123456789abcdef", Manifest(number=7, created="2026-11-20T12:00:00.000000Z", cut=cut), cursors)
    )
    assert len(token) < 4096
    parsed = Token.parse(token)
    assert parsed.logs["live-7"] == SavedCursor(3, 1000 + 317 * 7, 107, 1_000_007)
    assert len(parsed.logs) == 50


# -- who may ask, and what it costs


def test_a_view_of_the_past_a_batch_and_a_closed_store_have_no_changes(url: str) -> None:
    with open_writer(url, "a") as store:
        store["x"] = {}
        with opslog.open(url, read_only=True, as_of=1) as past, pytest.raises(opslog.UsageError, match="of the past"):
            past.changes()
        with store.batch(), pytest.raises(opslog.UsageError, match="changes cannot be part of a batch"):
            store.changes()
    with pytest.raises(opslog.ClosedError):
        store.changes()


def test_follow_ends_when_the_store_is_closed(url: str) -> None:
    store = open_writer(url, "a")
    with store:
        found = store.follow(poll_seconds=0.001)
        assert next(found).reset
        store["x"] = {}
        assert seen(next(found)) == [("x", {}, False)]
    assert list(found) == []


def test_the_next_changes_cost_what_is_new() -> None:
    url = f"bucket://changes-{next(_numbers)}"
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        for number in range(50):
            a["x"] = {"n": number}
        token = b.changes().token
        requests = bucket.BUCKETS[url.removeprefix("bucket://")].asked
        del requests[:]
        assert b.changes(token).token == token
        idle = [request.method for request in requests]
        del requests[:]
        a["x"] = {}
        del requests[:]
        assert len(b.changes(token).commits) == 1
        new = [request.method for request in requests]
        assert idle.count("get") == 0
        assert new.count("get") == 2, "once for the store's own view, once for the changes"
        assert new.count("list") <= idle.count("list") + 2
        assert not {*new} - {"get", "list"}


def test_where_the_end_is_not_reached_the_token_keeps_its_manifest(url: str) -> None:
    """In a newer manifest the remaining commits would be compacted."""
    with open_writer(url, "a", settings=opslog.Settings(undo_window=0, grace_seconds=1e6)) as a:
        a["x"] = {"n": 0}
        consumer = Consumer()
        consumer.take(a.changes())
        for number in range(5):
            a["x"] = {"n": number}
        a.compact()
        for store in (a, opslog.open(url, read_only=True), a):
            consumer.take(store.changes(consumer.token, limit=2))
        assert consumer.resets == 1
        assert len(consumer.stamps) == 5
        assert consumer.documents == {"x": {"n": 4}}


def test_transactions_and_what_they_undo_are_in_the_changes(url: str) -> None:
    """Also those of its own process, and with their authors."""
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        followers = [Consumer() for _ in range(2)]
        for store, consumer in zip((a, b), followers, strict=True):
            consumer.take(store.changes())
        a.create("x", {"n": 1})
        b.modify("x", lambda document: {"n": document["n"] + 1 if document else 0})
        a["y"] = {}
        for store, consumer in zip((a, b), followers, strict=True):
            changes = store.changes(consumer.token)
            assert [(effect.author, effect.ids, effect.won) for effect in changes.commits] == [
                ("a", ("x",), False),
                ("a", ("y",), True),
                ("b", ("x",), True),
            ]
            consumer.take(changes)
            assert consumer.documents == {"x": {"n": 2}, "y": {}}
        assert b.undo()
        for store, consumer in zip((a, b), followers, strict=True):
            changes = store.changes(consumer.token)
            assert [(effect.author, effect.op, effect.ids) for effect in changes.commits] == [("b", "undo", ("x",))]
            consumer.take(changes)
            assert consumer.documents == {"x": {"n": 1}, "y": {}}
