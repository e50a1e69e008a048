"""Several real processes on one store: nothing is lost, names are exclusive, and forked children stay out."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.format.layout import manifest_path
from tests.support import programs
from tests.support.places import DIRECTORY, REMOTE, SERVERS, Place
from tests.support.processes import start

# repeats, sets per process
SHORT = pytest.param(1, 500, id="short")
MEDIUM = pytest.param(2, 1000, id="medium", marks=pytest.mark.long)
LONG = pytest.param(20, 2000, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


def write_at_once(url: str, agents: int, sets: int, options: dict[str, Any], compactor: bool) -> None:
    """Processes open and write at the same instant. Then every view is checked against what they wrote."""
    names = [f"agent-{number}" for number in range(agents)]
    wanted = {f"{name}-{number}": {"agent": name, "number": number} for name in names for number in range(sets)}
    with ExitStack() as stack:
        compacting = stack.enter_context(start(programs.compact, url, {})) if compactor else None
        if compacting:
            assert compacting.hear() == "ready"
        writers = [stack.enter_context(start(programs.write, url, name, sets, options)) for name in names]
        for said in ("ready", "written"):
            assert [writer.hear() for writer in writers] == [said] * agents
            for writer in writers:
                writer.resume()
        for name, writer in zip(names, writers, strict=True):
            assert_equal(writer.hear(), wanted, f"what {name} sees after a refresh")
            writer.end()
        if compacting:
            compacting.resume()
            assert compacting.hear() >= 1
            compacting.end()
    with opslog.open(url, read_only=True) as fresh:
        assert_equal(dict(fresh.items()), wanted, "a fresh open")
        assert fresh.stats().commits == len(wanted)


def assert_equal(documents: dict[str, Any], wanted: dict[str, Any], what: str) -> None:
    """Like `==`, without a diff of thousands of lines."""
    lost = sorted(wanted.keys() - documents.keys())
    assert not lost, f"{what}: {len(lost)} of {len(wanted)} documents are lost, the first is {lost[0]}"
    strangers = sorted(documents.keys() - wanted.keys())
    assert not strangers, f"{what}: {len(strangers)} documents nobody wrote, the first is {strangers[0]}"
    wrong = [id for id, document in wanted.items() if documents[id] != document]
    assert not wrong, f"{what}: {len(wrong)} documents are not what was written, the first is {wrong[0]}"


@pytest.mark.parametrize(("repeats", "sets"), [SHORT, MEDIUM, LONG])
@pytest.mark.parametrize(
    ("options", "grace_seconds"),
    [
        pytest.param({}, None, id="on-a-new-directory"),
        pytest.param({"compact_after": 150}, None, id="automatic-compactions"),
        pytest.param({}, 600.0, id="beside-a-compaction-loop"),
        pytest.param({"compact_after": 150}, 0.0, id="beside-a-compaction-loop-that-collects-at-once"),
    ],
)
def test_processes_writing_at_once_lose_nothing(
    place: Place, repeats: int, sets: int, options: dict[str, Any], grace_seconds: float | None
) -> None:
    """:param grace_seconds: the grace period of a store that a loop compacts. None: there is no such loop, and the
    processes create the store, all at the same instant."""
    for repeat in range(repeats):
        url = place.url(str(repeat))
        if grace_seconds is not None:
            opslog.open(url, agent="first", settings=opslog.Settings(grace_seconds=grace_seconds)).close()
        write_at_once(url, 4, sets, options, compactor=grace_seconds is not None)


@pytest.mark.long
@pytest.mark.parametrize("sets", [pytest.param(25, id="short"), pytest.param(500, id="long", marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", [REMOTE, *SERVERS], indirect=True)
def test_processes_on_a_server_lose_nothing(place: Place, sets: int) -> None:
    opslog.open(place.url(), agent="first", settings=opslog.Settings(grace_seconds=0, undo_window=8)).close()
    write_at_once(place.url(), 8, sets, {"compact_after": 150}, compactor=True)


@pytest.mark.parametrize("repeats", [3, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "place", [DIRECTORY, *(pytest.param(place, marks=pytest.mark.long) for place in (REMOTE, *SERVERS))], indirect=True
)
def test_processes_that_create_a_store_at_once_agree_on_its_settings(place: Place, repeats: int) -> None:
    for repeat in range(repeats):
        write_at_once(place.url(str(repeat)), 4, 2, {}, compactor=False)
        assert place.paths("manifests/", str(repeat)) == [manifest_path(1)]


def test_the_second_opener_of_a_name_learns_who_holds_it(tmp_path: Path) -> None:
    url = str(tmp_path)
    with start(programs.hold, url, "planner") as holder:
        pid = holder.hear()
        with pytest.raises(opslog.AgentBusyError) as caught:
            opslog.open(url, agent="planner")
        assert caught.value.agent == "planner"
        assert f"pid {pid} on host {socket.gethostname()}" in str(caught.value)
        assert str(pid) in caught.value.holder
        with opslog.open(url, agent="other") as store:
            assert store["held"] == {"pid": pid}
        holder.kill()
        with opslog.open(url, agent="planner") as store:
            store["mine"] = {}
            assert set(store) == {"held", "mine"}


def test_a_second_opener_in_the_same_process_is_refused_until_close(tmp_path: Path) -> None:
    with (
        opslog.open(tmp_path, agent="planner"),
        pytest.raises(opslog.AgentBusyError, match=rf"pid {os.getpid()} .*this process"),
    ):
        opslog.open(tmp_path, agent="planner")
    opslog.open(tmp_path, agent="planner").close()


def touches(store: opslog.Store[Any]) -> dict[str, Callable[[], object]]:
    def batch() -> None:
        with store.batch():
            store["a"] = {}

    return {
        "get": lambda: store["a"],
        "default": lambda: store.get("b"),
        "in": lambda: "a" in store,
        "len": lambda: len(store),
        "iter": lambda: list(store),
        "items": lambda: list(store.items()),
        "filter": lambda: store.filter(bool),
        "count": lambda: store.count(bool),
        "set": lambda: store.set("a", {}),
        "delete": lambda: store.delete("a"),
        "batch": batch,
        "undo": store.undo,
        "refresh": store.refresh,
        "watch": lambda: next(iter(store.watch())),
        "ops": lambda: list(store.ops()),
        "history": lambda: store.history("a"),
        "compact": store.compact,
        "archive": lambda: store.archive(bool),
        "archives": store.archives,
        "load_archive": lambda: store.load_archive("2026-Q4"),
        "stats": store.stats,
        "flush": store.flush,
    }


@pytest.mark.parametrize("durability", ["fsync", "buffered"])
def test_a_forked_child_cannot_use_the_store_and_harms_nobody(
    tmp_path: Path, forked: Callable[[Callable[[], None]], None], durability: Any
) -> None:
    with opslog.open(tmp_path, agent="parent", durability=durability, compact_after=None) as store:
        store["a"] = {"by": "parent"}

        def child() -> None:
            for name, touch in touches(store).items():
                try:
                    touch()
                except opslog.ClosedError as error:
                    assert "parent" in str(error)  # noqa: PT017  (pytest's own way needs its machinery, in a fork)
                else:
                    raise AssertionError(f"{name} worked in a forked child")
            with opslog.open(tmp_path, agent="child") as own:
                own["b"] = {"by": "child"}

        forked(child)
        store["c"] = {"by": "parent"}
        store.refresh()
        assert set(store) == {"a", "b", "c"}
        with pytest.raises(opslog.AgentBusyError):
            opslog.open(tmp_path, agent="parent")
    with opslog.open(tmp_path, agent="parent") as again:
        assert set(again) == {"a", "b", "c"}


@pytest.mark.parametrize("leave", ["close", "with", "exit", "batch"])
def test_a_forked_child_may_leave_as_it_likes(
    tmp_path: Path, forked: Callable[[Callable[[], None]], None], leave: str
) -> None:
    with opslog.open(tmp_path, agent="parent", durability="buffered", compact_after=None) as store:
        store["a"] = {}

        def child() -> None:
            if leave == "close":
                store.close()
                store.close()
            elif leave == "with":
                with store:
                    pass
            elif leave == "exit":
                with store:
                    sys.exit(0)
            else:
                batch.__exit__(None, None, None)

        if leave == "batch":
            batch = store.batch()
            batch.__enter__()
            store["in-batch"] = {}

            def refused() -> None:
                try:
                    child()
                except opslog.ClosedError:
                    return
                raise AssertionError("a batch of the parent was committed in a forked child")

            forked(refused)
            batch.__exit__(None, None, None)
        else:
            forked(child)
        store["b"] = {}
        store.flush()
        # The name still belongs to the parent.
        with pytest.raises(opslog.AgentBusyError):
            opslog.open(tmp_path, agent="parent")
    with opslog.open(tmp_path, read_only=True) as fresh:
        assert set(fresh) == {"a", "b"} | ({"in-batch"} if leave == "batch" else set())


def test_forks_in_the_midst_of_writing_threads(tmp_path: Path, forked: Callable[[Callable[[], None]], None]) -> None:
    """The child does not wait for any lock that a thread of the parent holds at that moment."""
    over, counts = threading.Event(), [0, 0, 0]
    with opslog.open(tmp_path, agent="parent", compact_after=20) as store:

        def write(thread: int) -> None:
            while not over.is_set():
                store[f"{thread}-{counts[thread]}"] = {}
                counts[thread] += 1

        def child(number: int) -> None:
            for touch in touches(store).values():
                try:
                    touch()
                except opslog.ClosedError:
                    continue
                raise AssertionError("it worked in a forked child")
            store.close()
            with opslog.open(tmp_path, agent=f"child-{number}", compact_after=None) as own:
                own[f"child-{number}"] = {}

        threads = [threading.Thread(target=write, args=[number]) for number in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(20):
                forked(partial(child, number))
        finally:
            over.set()
            for thread in threads:
                thread.join()
        store.refresh()
        wanted = {f"{thread}-{number}" for thread in range(3) for number in range(counts[thread])}
        assert set(store) == wanted | {f"child-{number}" for number in range(20)}
        documents = dict(store.items())
    with opslog.open(tmp_path, agent="parent") as again:
        assert dict(again.items()) == documents


class TestIdleAgent:
    """An agent that has not refreshed since before a compaction."""

    @pytest.mark.parametrize("full", [False, True])
    @pytest.mark.parametrize("grace_seconds", [0.0, 600.0])
    def test_its_writes_lose_nothing_and_never_beat_newer_ones(
        self, tmp_path: Path, full: bool, grace_seconds: float
    ) -> None:
        settings = opslog.Settings(grace_seconds=grace_seconds, undo_window=4)
        with (
            opslog.open(tmp_path, agent="idle", settings=settings, compact_after=None) as idle,
            opslog.open(tmp_path, agent="busy", compact_after=None) as busy,
        ):
            idle["shared"] = {"by": "idle", "turn": 0}
            idle["mine"] = {"turn": 0}
            for number in range(200):
                busy["shared"] = {"by": "busy", "number": number}
                busy[f"busy-{number}"] = {"number": number}
            busy["gone"] = {}
            del busy["gone"]
            for _ in range(3):
                assert busy.compact(full=full).commits >= 0
                busy["again"] = {}
            before = busy.stats().clock

            # With a view in which none of this has happened.
            idle["shared"] = {"by": "idle", "turn": 1}
            idle["gone"] = {"by": "idle"}
            idle["mine"] = {"turn": 1}
            busy.compact(full=full)
            wanted = {f"busy-{number}": {"number": number} for number in range(200)} | {
                "shared": {"by": "busy", "number": 199},
                "mine": {"turn": 1},
                "again": {},
            }
            for store in (idle, busy):
                store.refresh()
                assert dict(store.items()) == wanted
            assert idle.stats().clock >= before

            # Now it has refreshed, and wins.
            idle["shared"] = {"by": "idle", "turn": 2}
            idle["gone"] = {"by": "idle"}
            busy.refresh()
            assert busy["shared"] == {"by": "idle", "turn": 2}
            assert busy["gone"] == {"by": "idle"}
            newest = idle.stats().clock
            for number in range(10):
                idle[f"late-{number}"] = {}
            busy.compact(full=full)
            wanted = dict(idle.items())
        with opslog.open(tmp_path, read_only=True) as fresh:
            assert dict(fresh.items()) == wanted
            assert fresh.stats().clock >= newest + 10

    def test_the_clock_never_restarts(self, tmp_path: Path) -> None:
        settings = opslog.Settings(grace_seconds=0, undo_window=0)
        clocks = []
        for session in range(5):
            with opslog.open(tmp_path, agent=f"agent-{session % 2}", settings=settings, compact_after=None) as store:
                for number in range(20):
                    store["one"] = {"session": session, "number": number}
                clocks.append(store.stats().clock)
                store.compact(full=True, keep_history=0)
                store.compact(full=True)
        assert clocks == [20, 40, 60, 80, 100]
        with opslog.open(tmp_path, agent="new") as store:
            assert store["one"] == {"session": 4, "number": 19}
            store["one"] = {"session": "new"}
            assert store.stats().clock == 101
        with opslog.open(tmp_path, read_only=True) as fresh:
            assert fresh["one"] == {"session": "new"}
