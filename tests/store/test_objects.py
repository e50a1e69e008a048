"""A store on an object storage: its cost in requests, the effects of faults, fencing, seals, leases."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

import opslog
from opslog.backends import Backend, Position, Range, open_backend
from opslog.backends.holders import Holders
from opslog.backends.objects import backend as objects
from opslog.compaction.compact import LOCK, compact, compact_unlocked
from opslog.environment import REAL, Environment
from opslog.format.layout import segment_path
from opslog.verify.verify import verify
from tests.support.bucket import BUCKETS, Bucket, Fault, Request, open_url
from tests.support.sessions import act
from tests.support.waiting import until

Store = opslog.Store[dict[str, Any]]
_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    return f"bucket://{next(_numbers)}"


def bucket_of(url: str) -> Bucket:
    return BUCKETS.setdefault(url.removeprefix("bucket://"), Bucket())


def open_store(url: str, agent: str = "a", **options: Any) -> Store:
    return opslog.open(url, agent=agent, compact_after=None, **options)


def read(url: str) -> dict[str, Any]:
    with opslog.open(url, read_only=True) as store:
        return dict(store.items())


def damage(url: str) -> list[str]:
    backend = open_backend(url)
    return [str(problem) for problem in verify(backend).problems if problem.severity == "error"]


@pytest.fixture
def another_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Forgets which names this process holds."""
    return lambda: monkeypatch.setattr(objects, "_held", Holders())


def test_everything_that_a_directory_can_do(url: str) -> None:
    with open_store(url) as a, open_store(url, "b") as b:
        for number in range(40):
            a[f"é-{number:02}"] = {"number": number}
        with b.batch():
            b["batch"] = {"of": "b"}
        assert len(b.refresh()) == 40
        del b["é-01"]
        assert b.undo()
        a.refresh()
        assert a.compact().commits == 8
        a.archive(lambda document: document.get("number") == 5, "old")
        clock = a.stats().clock
        a["later"] = {}
        expected = dict(a.items())
        b.refresh()
        assert dict(b.items()) == expected
        assert list(a.load_archive("old")) == ["é-05"]
        with opslog.open(url, as_of=clock) as past:
            assert "later" not in past
            assert len(past) == len(expected) - 1
        assert len(a.history("é-01")) == 2
    assert read(url) == expected
    backend = open_backend(url)
    assert verify(backend).problems == []


# -- what it costs


def test_requests(url: str) -> None:
    with open_store(url) as a, open_store(url, "b") as b:
        asked = bucket_of(url).asked

        def sent(call: Callable[[], object]) -> Counter[str]:
            since = len(asked)
            call()
            return Counter(request.method for request in asked[since:])

        def batch() -> None:
            with a.batch():
                for number in range(100):
                    a[str(number)] = {}

        assert sent(lambda: a.set("x", {})) == {"put_new": 1}
        assert sent(batch) == {"put_new": 1}
        assert sent(a.undo) == {"put_new": 1}
        b.refresh()
        assert sent(b.refresh) == {"list": 2}
        a["new"] = {}
        assert sent(b.refresh) == {"list": 3, "get": 1}
        with open_store(url, "c", log="shared") as c:
            c["newer"] = {}
        assert sent(b.refresh) == {"list": 2, "get": 1}, "nothing new in other logs than the shared one"
        with opslog.open(url, read_only=True) as reader:
            a["newest"] = {}
            assert sent(reader.refresh) == {"list": 2, "get": 1}
        assert b.stats().requests == len(asked)


def test_a_transaction_costs_a_refresh_and_a_put(url: str) -> None:
    with open_store(url) as a, open_store(url, "b") as b:
        asked = bucket_of(url).asked

        def sent(call: Callable[[], object]) -> Counter[str]:
            since = len(asked)
            call()
            return Counter(request.method for request in asked[since:])

        def several(transaction: opslog.Transaction[dict[str, Any]]) -> None:
            for id in ("x", "y", "z"):
                transaction[id] = {"n": 1}

        refresh, put = {"list": 2}, {"put_new": 1}
        assert sent(lambda: a.create("x", {})) == refresh | put
        assert sent(lambda: a.modify("x", lambda document: {"n": 1})) == refresh | put
        assert sent(lambda: a.transact(several)) == refresh | put
        assert sent(lambda: a.set("x", {"n": 2})) == refresh | put, "a plain set of a guarded document"
        assert sent(lambda: a.set("plain", {})) == put
        assert sent(lambda: b.modify("x", lambda document: {"n": 3})) == {"list": 3} | put | {"get": 5}
        assert sent(lambda: a.transact(len)) == refresh | {"get": 1}, "it wrote nothing"
        with pytest.raises(opslog.ExistsError):
            a.create("x", {})
        assert sent(a.undo) == refresh | put


def test_opening_costs_the_tail_and_the_parts(url: str) -> None:
    with open_store(url) as store:
        for number in range(40):
            store[str(number)] = {}
        store.compact()
    asked = bucket_of(url).asked
    since = len(asked)
    read(url)
    # The manifest, the one part, and the 32 segments after the cut. Nothing is read of the cut's own segment.
    assert Counter(request.method for request in asked[since:]) == {"list": 3, "get": 1 + 1 + 32}
    since = len(asked)
    open_store(url, "b").close()
    assert Counter(request.method for request in asked[since:]) == {
        "list": 6,
        "get": 1 + 1 + 32,
        "put_new": 2,
        "delete": 1,
    }


def test_opening_asks_for_all_small_runs_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(url) as store:
        for turn in range(3):
            for number in range(40):
                store[f"{turn}-{number}"] = {}
            store.compact()
    together: list[list[str]] = []
    many = Bucket.get_many

    def get_many(self: Bucket, ranges: Sequence[Range]) -> list[bytes | None]:
        together.append([part.path for part in ranges])
        return many(self, ranges)

    monkeypatch.setattr(Bucket, "get_many", get_many)
    with opslog.open(url, read_only=True) as store:
        assert len(store) == 120
        assert store.stats().snapshot_runs == 3
    parts = [[path for path in paths if "snapshots/" in path] for paths in together]
    assert [len(some) for some in parts if some] == [3]


def test_verify_reads_many_segments_at_once_and_names_the_one_that_it_cannot(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(url) as store:
        for number in range(60):
            store[str(number)] = {}
    groups: list[int] = []
    real = objects.ObjectBackend.read_many

    def read_many(self: objects.ObjectBackend, ranges: Sequence[Range]) -> list[bytes | None]:
        groups.append(len(ranges))
        return real(self, ranges)

    monkeypatch.setattr(objects.ObjectBackend, "read_many", read_many)
    assert damage(url) == []
    assert groups == [60]
    path = segment_path("a", 7)
    with bucket_of(url).failing(lambda request: Fault("unknown") if request.key.endswith(path) else None):
        backend = open_backend(url, environment=replace(REAL, sleep=lambda seconds: None))
        report = verify(backend)
    errors = [problem for problem in report.problems if problem.severity == "error"]
    assert errors[0].path == path
    assert "the storage cannot read this" in errors[0].message
    assert report.commits == 59


def test_a_refresh_passes_over_what_was_seen(url: str) -> None:
    """However many segments are still retained."""
    bucket_of(url).page = 10
    with open_store(url, "reader") as reader:
        for agent in ("a", "b", "c"):
            with open_store(url, agent) as writer:
                for number in range(50):
                    writer[f"{agent}-{number}"] = {}
        assert len(reader.refresh()) == 150
        since = len(bucket_of(url).asked)
        assert reader.refresh() == []
        lists = [request.key.removeprefix("prefix/") for request in bucket_of(url).asked[since:]]
        assert lists[0] == "manifests/"
        assert set(lists[1:]) == {"ops/"}
        assert len(lists) <= 1 + 3 + 1, "not 16 pages"


def test_idle_agents_cost_nothing(url: str) -> None:
    """If each append is a segment of its own, a whole log can be collected. Its agent then continues after the cut."""
    bucket_of(url).page = 10
    settings = opslog.Settings(undo_ttl_seconds=0, grace_seconds=0)
    for number in range(30):
        with open_store(url, f"agent-{number}", settings=settings) as store:
            store[f"of-{number}"] = {}
    with open_store(url, "reader") as reader:
        assert len(reader.compact().sealed) == 30
        reader.compact()
        assert not [key for key in bucket_of(url).objects if "/ops/" in key]
        reader.refresh()
        since = len(bucket_of(url).asked)
        assert reader.refresh() == []
        assert [request.method for request in bucket_of(url).asked[since:]] == ["list", "list"]
        assert damage(url) == []
        with open_store(url, "agent-7") as back:
            back["of-7"] = {"back": True}
            assert "prefix/" + segment_path("agent-7", 3) in bucket_of(url).objects, "after the set and the seal"
        assert [commit.agent for commit in reader.refresh()] == ["agent-7"]
        assert reader["of-7"] == {"back": True}
    assert len(read(url)) == 30
    assert damage(url) == []


def test_threads_share_a_put(url: str) -> None:
    with open_store(url) as store:
        with ThreadPoolExecutor(32) as pool:
            list(pool.map(lambda number: store.set(str(number), {}), range(320)))
        segments = store.stats().log_segments
        assert len(store) == 320
    assert segments <= 320
    assert len(read(url)) == 320


def test_buffered_commits_share_a_put(url: str) -> None:
    asked = bucket_of(url).asked
    with open_store(url, durability="buffered", buffer_seconds=3600, buffer_bytes=10_000) as store:
        since = len(asked)
        for number in range(50):
            store[str(number)] = {}
        assert asked[since:] == []
        store.flush()
        assert [request.method for request in asked[since:]] == ["put_new"]
        store["large"] = {"text": "x" * 10_000}
        until(lambda: len(asked) == since + 2)
        assert store.stats().log_segments == 2


@pytest.mark.parametrize("options", [{"buffer_seconds": 0}, {"buffer_bytes": 0}, {"buffer_seconds": float("nan")}])
def test_invalid_buffer_options_are_refused(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(opslog.UsageError, match="a buffer takes"):
        open_store(url, **options)


# -- faults

FAULTS = {
    "unknown": Fault("unknown"),
    "unknown, and done": Fault("unknown", done=True),
    "refused": Fault("refused"),
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Waiting takes no time, and a deadline comes after a few attempts."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += max(seconds, 10.0)

    environment = Environment(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(open_url, "__kwdefaults__", {**(open_url.__kwdefaults__ or {}), "environment": environment})
    return environment


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_at_every_request(url: str, quick: Environment, fault: str) -> None:
    """Acknowledged means that it is there, refused means that it is not, and the store verifies clean afterwards."""
    known, unknown = act(url, 3, environment=quick)
    assert (len(known), unknown) == (6, set())
    count = len(bucket_of(url).asked)
    assert count > 60
    for place in range(count):
        where = f"{url}-{fault}-{place}"
        hit: list[Request] = []

        def inject(request: Request, place: int = place, hit: list[Request] = hit) -> Fault | None:
            if request.number != place:
                return None
            hit.append(request)
            return FAULTS[fault]

        with bucket_of(where).failing(inject):
            known, unknown = act(where, 3, environment=quick)
        found = read(where)
        assert known.items() <= found.items(), f"lost, by a fault at {hit}"
        assert set(found) == set(known), f"refused, and there: a fault at {hit}"
        assert unknown == set(), f"one lost answer is always resolved: {hit}"
        assert damage(where) == [], f"after a fault at {hit}"
        assert len(known) >= 2, f"a fault at {hit} ends one session, not all"


@pytest.mark.parametrize("done", [False, True])
def test_a_storage_that_never_answers_leaves_an_unknown_outcome(url: str, quick: Environment, done: bool) -> None:
    with open_store(url) as store:
        store["x"] = {}
        fault = Fault("unknown", done)
        with bucket_of(url).failing(lambda request: fault if request.method in ("put_new", "get") else None):
            with pytest.raises(opslog.CommitUnknownError, match="may or may not"):
                store["y"] = {}
            with pytest.raises(opslog.ReopenError):
                store["z"] = {}
        assert set(store) == {"x"}
    with open_store(url) as store:
        store["z"] = {}
    assert set(read(url)) == ({"x", "y", "z"} if done else {"x", "z"})


@pytest.mark.parametrize("readable", [True, False])
def test_a_failure_after_a_put_without_an_answer_does_not_say_that_nothing_was_written(
    url: str, quick: Environment, readable: bool
) -> None:
    with open_store(url) as store:
        answers = iter([Fault("unknown", done=True), Fault("refused")])

        def answer(request: Request) -> Fault | None:
            if request.method == "put_new":
                return next(answers, None)
            return None if readable else Fault("unknown")

        with bucket_of(url).failing(answer):
            if readable:
                store["y"] = {"n": 1}
            else:
                with pytest.raises(opslog.CommitUnknownError, match="may or may not"):
                    store["y"] = {"n": 1}
    assert read(url) == {"y": {"n": 1}}


def test_a_put_that_arrives_late_is_ours(url: str, quick: Environment) -> None:
    """It timed out and was sent again, and then both requests arrived."""
    with open_store(url) as store:
        answers = iter([Fault("unknown", done=True), Fault("unknown"), Fault("unknown")])
        with bucket_of(url).failing(lambda request: next(answers, None) if request.method == "put_new" else None):
            store["y"] = {"n": 1}
        store["z"] = {}
        assert [commit.clock for commit in store.ops()] == [1, 2]


def test_a_read_without_an_answer_is_asked_again(url: str, quick: Environment) -> None:
    with open_store(url) as store:
        store["x"] = {}
    answers = iter([Fault("unknown")] * 3)
    with bucket_of(url).failing(lambda request: next(answers, None) if request.method == "list" else None):
        assert read(url) == {"x": {}}
    with bucket_of(url).failing(lambda request: Fault("unknown") if request.method == "get" else None):
        before = len(bucket_of(url).asked)
        with pytest.raises(opslog.RetryError, match="no answer"):
            read(url)
        assert len(bucket_of(url).asked) - before <= 5, "and then given up"


def test_a_refusal_is_no_commit(url: str) -> None:
    with open_store(url) as store:
        store["x"] = {}
        with bucket_of(url).failing(lambda request: Fault("refused")), pytest.raises(opslog.WriteFailedError):
            store["y"] = {}
        assert set(store) == {"x"}
        store["y"] = {}
    assert set(read(url)) == {"x", "y"}


# -- two processes under one name


def test_one_of_two_writers_under_one_name_is_fenced(url: str, another_process: Callable[[], None]) -> None:
    with open_store(url) as first:
        first["x"] = {"by": 1}
        with pytest.raises(opslog.AgentBusyError):
            open_store(url)
        another_process()
        with open_store(url) as second:
            second["y"] = {"by": 2}
            with pytest.raises(
                opslog.AgentFencedError, match="another process writes under the agent name 'a'"
            ) as caught:
                first["z"] = {"by": 1}
            assert caught.value.path == segment_path("a", 2), "what the other one created"
            with pytest.raises(opslog.ReopenError):
                first["z"] = {"by": 1}
            assert set(first) == {"x"}
            second["w"] = {}
    assert set(read(url)) == {"x", "y", "w"}
    assert damage(url) == []


def test_a_fenced_appender_names_the_other_ones_segment_in_each_error(url: str) -> None:
    backend = open_backend(url)
    appender = backend.appender("a")
    appender.append(b"mine\n")
    path = segment_path("a", 2)
    backend.create(path, b"another's\n")
    calls: list[Callable[[], object]] = [lambda: appender.append(b"late\n")] * 2 + [lambda: appender.advance(1)]
    for call in calls:
        with pytest.raises(opslog.AgentFencedError, match=f"it created {path}") as raised:
            call()
        assert raised.value.path == path
    appender.advance(2)  # it has read what is there
    assert appender.append(b"late\n").segment == 3


def test_a_writer_paused_for_longer_than_the_grace_period_refreshes_before_it_writes(
    url: str, another_process: Callable[[], None]
) -> None:
    now = [0.0]
    environment = Environment(monotonic=lambda: now[0])
    settings = opslog.Settings(undo_window=0, grace_seconds=0.5)
    with open_store(url, environment=environment, settings=settings) as paused:
        paused["x"] = {}
        another_process()
        with open_store(url) as other:
            for number in range(3):
                other[str(number)] = {}
        backend = open_backend(url)
        compact(backend, REAL)
        backend.delete([segment_path("a", 2)])  # as a collection after the grace period would
        now[0] += 1
        with pytest.raises(opslog.AgentFencedError, match="another process wrote under the agent name"):
            paused["void"] = {}
        assert "void" not in paused
    assert set(read(url)) == {"x", "0", "1", "2"}


def test_a_writer_that_saw_its_number_used_is_fenced(url: str, another_process: Callable[[], None]) -> None:
    """It is no later than usual. But another process used its name, and what that process wrote was collected."""
    settings = opslog.Settings(undo_window=0, undo_ttl_seconds=0, grace_seconds=1000)
    with open_store(url, settings=settings) as first:
        first["x"] = {}
        another_process()
        with open_store(url) as second:
            second["y"] = {}
        assert compact(open_backend(url), REAL).number == 2
        open_backend(url).delete([segment_path("a", 2), segment_path("a", 3)])  # as after the grace period
        first.refresh()
        with pytest.raises(opslog.AgentFencedError, match="another process wrote under the agent name"):
            first["void"] = {}
    assert set(read(url)) == {"x", "y"}


@pytest.mark.parametrize("compacted", [False, True])
def test_a_refresh_sees_what_another_process_wrote_under_ones_own_name(
    url: str, another_process: Callable[[], None], compacted: bool
) -> None:
    settings = opslog.Settings(undo_window=0)
    with open_store(url, settings=settings) as first:
        first["x"] = {}
        another_process()
        with open_store(url) as second:
            second["y"] = {"by": "second"}
            second["x"] = {"by": "second"}
        if compacted:
            compact(open_backend(url), REAL)
        first.refresh()
        assert dict(first) == {"x": {"by": "second"}, "y": {"by": "second"}}
        assert first.refresh() == []
        with pytest.raises(opslog.AgentFencedError):
            first["z"] = {}
    assert set(read(url)) == {"x", "y"}


def test_a_refresh_takes_a_seal_in_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(url, settings=opslog.Settings(undo_ttl_seconds=0)) as live:
        live["x"] = {}
        with monkeypatch.context() as patch:
            patch.setattr(objects, "_held", Holders())
            assert compact(open_backend(url), REAL).sealed == ("a",)
        live.refresh()
        commits = live.stats().commits
        live["y"] = {}
        assert live.stats().commits == commits + 1
        assert not [live.undo(), live.undo()][1], "what came before the seal can no more be undone"
    assert set(read(url)) == {"x"}


def test_a_commit_that_was_compacted_before_its_answer_came_is_not_called_void(
    url: str, monkeypatch: pytest.MonkeyPatch, another_process: Callable[[], None]
) -> None:
    now = [0.0]
    environment = Environment(monotonic=lambda: now[0])
    with open_store(url, environment=environment, settings=opslog.Settings(undo_window=0)) as paused:
        append = objects.ObjectAppender.append

        def stand_still(self: objects.ObjectAppender, data: bytes) -> Position:
            position = append(self, data)
            compact(open_backend(url), REAL)
            now[0] += 1e6
            return position

        monkeypatch.setattr(objects.ObjectAppender, "append", stand_still)
        with pytest.raises(opslog.CommitUnknownError):
            paused["x"] = {}
    assert set(read(url)) == {"x"}


def test_one_refused_probe_does_not_mean_a_server_without_put_if_absent(url: str) -> None:
    bucket = BUCKETS.setdefault(url.removeprefix("bucket://"), Bucket())
    refused: list[Request] = []

    def refuse_once(request: Request) -> Fault | None:
        if refused or request.method != "put_new":
            return None
        refused.append(request)
        return Fault("refused")

    with bucket.failing(refuse_once), open_store(url) as store:
        store["x"] = {}
    assert "probe-" in refused[0].key
    assert set(read(url)) == {"x"}


# -- leases and compactors


def test_a_lease_is_taken_over_after_its_time(url: str) -> None:
    def backend() -> Backend:
        return open_backend(url)

    stored = bucket_of(url).objects
    with backend().lock(LOCK):
        with pytest.raises(opslog.LockedError, match=r"is held by pid \d+ on host"), backend().lock(LOCK):
            pass
        (key,) = (key for key in stored if key.endswith(".lease"))
        data, modified = stored[key]
        stored[key] = data, modified - 61
        with backend().lock(LOCK), pytest.raises(opslog.LockedError), backend().lock(LOCK):
            pass
    with backend().lock(LOCK):
        pass
    assert not [key for key in stored if key.endswith(".lease")]


def test_many_writers_and_compactors_without_a_lock(url: str) -> None:
    settings = opslog.Settings(undo_window=3, grace_seconds=0)
    stores = [open_store(url, f"agent-{number}", settings=settings) for number in range(4)]

    def write(number: int) -> None:
        for turn in range(60):
            stores[number][f"{number}-{turn}"] = {"turn": turn}

    def compact_often(_: int) -> None:
        backend = open_backend(url)
        for _ in range(15):
            compact_unlocked(backend, REAL)

    with ThreadPoolExecutor(6) as pool:
        done = [pool.submit(write, number) for number in range(4)] + [
            pool.submit(compact_often, number) for number in range(2)
        ]
        for one in done:
            one.result()
    for store in stores:
        store.refresh()
        assert len(store) == 240
        store.close()
    assert len(read(url)) == 240
    assert damage(url) == []
