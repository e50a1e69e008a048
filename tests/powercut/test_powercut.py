"""The power is cut at any point while stores are in use, and whatever may be left is opened.

`tests.powercut.disk` says what that is, `tests.powercut.judging` what must hold.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import posix
from opslog.backends.local import fs
from opslog.backends.local.fs_log import FsAppender
from opslog.compaction import compact as compaction
from opslog.compaction.garbage import find_garbage
from opslog.format import torn
from opslog.log import reader as log
from opslog.snapshot import manifests
from opslog.snapshot.manifests import ManifestStore
from opslog.store import replica_of
from opslog.verify import verify
from tests.powercut.cutting import Cutter
from tests.powercut.disk import EXTREMES, Ack, InTurn
from tests.powercut.recording import Killed, Recorder, read_record
from tests.powercut.story import NO_UNDO, SETTINGS, STORE, opened, play

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the recorder finds paths in /proc")

SLOW = [pytest.mark.slow, pytest.mark.timeout(7200)]


@pytest.fixture
def world(tmp_path: Path) -> Path:
    world = tmp_path / "world"
    world.mkdir()
    return world


@pytest.mark.parametrize(
    ("seeds", "each", "share"),
    [
        *((range(seed, seed + 1), 2, 0.15) for seed in range(2)),
        *(pytest.param(range(seed, seed + 1), 2, 0.15, marks=pytest.mark.long) for seed in range(2, 6)),
        *(pytest.param(range(seed, seed + 50), 8, 1.0, marks=SLOW) for seed in range(1000, 2000, 50)),
    ],
    ids=str,
)
def test_a_power_cut_at_any_point_loses_nothing_that_was_acknowledged(
    tmp_path: Path, seeds: range, each: int, share: float
) -> None:
    for seed in seeds:
        run(tmp_path / str(seed), seed, each=each, share=share)


def run(place: Path, seed: int, *, each: int, share: float) -> Cutter:
    world = place / "world"
    world.mkdir(parents=True)
    cutter = Cutter(world, place)
    events = play(world, seed)
    assert len(events) > 20
    cutter.at_random(events, seed, each=each, share=share)
    assert cutter.images > 5
    return cutter


@pytest.mark.parametrize(
    ("first", "count", "generations", "share"),
    [
        (0, 1, 3, 0.07),
        pytest.param(1, 2, 3, 0.07, marks=pytest.mark.long),
        *(pytest.param(first, 25, 5, 0.3, marks=SLOW) for first in range(100, 300, 25)),
    ],
)
def test_files_left_by_a_power_cut_survive_the_next_ones(
    tmp_path: Path, first: int, count: int, generations: int, share: float
) -> None:
    """Runs that begin with what a power cut left of the one before."""
    for seed in range(first, first + count):
        rng = random.Random(f"generations {seed}")
        world = tmp_path / f"{seed}-0"
        world.mkdir()
        cutter = Cutter(world, tmp_path)
        for generation in range(1, generations + 1):
            events = play(world, f"{seed} {generation}", sessions=2)
            events = events[: rng.randrange(len(events))]
            cutter.at_random(events, f"{seed} {generation}", each=1, share=share)
            world = tmp_path / f"{seed}-{generation}"
            world.mkdir()
            before = cutter.leave(world, f"{seed} {generation}")
            cutter = Cutter(world, tmp_path, before)


def small_run(world: Path) -> Recorder:
    """The smallest possible run: a store is created, two commits share an append, then an undo, a compaction, and
    garbage collection."""
    recorder = Recorder(world)
    with (
        recorder.recording(),
        opslog.open(
            world / STORE,
            agent="a",
            settings=SETTINGS,
            compact_after=None,
            durability="buffered",
            buffer_seconds=1e6,
        ) as store,
    ):
        recorder.acknowledge("a", 0)
        for turn in range(2):
            for number in range(2):
                store[str(number)] = {"turn": turn}
            store.flush()
            recorder.acknowledge("a", replica_of(store).clock.value)
        assert store.undo()
        store.flush()
        recorder.acknowledge("a", replica_of(store).clock.value)
        store.compact()
    return recorder


@pytest.mark.long
def test_all_that_can_be_left_of_a_small_run(world: Path, tmp_path: Path) -> None:
    """Every outcome that a reader can distinguish from another, at every point."""
    cutter = Cutter(world, tmp_path)
    for number, event in enumerate(small_run(world).events):
        cutter.apply(event)
        cutter.cut(InTurn.all(), f"{number}: {event}")
    assert cutter.points > 50
    assert cutter.images > 100


class Executioner:
    """Kills whoever makes system calls, at a certain call and as long as it is `armed`."""

    def __init__(self, calls: int) -> None:
        self.armed = True
        self._left = calls

    def __call__(self, call: str) -> None:
        if self.armed:
            if self._left == 0:
                raise Killed
            self._left -= 1

    @property
    def has_killed(self) -> bool:
        return self._left == 0


def found_and_cut(place: Path, agent: str, every: int = 1) -> int:
    """The very first session is killed at its first call, then at its second one, and so on. Each time a session of
    `agent` follows, and the power is cut when something was acknowledged to it. Returns how many calls there were.

    :param every: try only one out of so many calls.
    """
    for calls in itertools.count(0, every):
        world = place / str(calls)
        world.mkdir(parents=True)
        cutter = Cutter(world, place)
        executioner = Executioner(calls)
        recorder = Recorder(world, executioner)
        with recorder.recording():
            with suppress(Killed), opened(world / STORE, "a", NO_UNDO) as store:
                store["first"] = {"by": "a"}
            executioner.armed = False
            with opened(world / STORE, agent, NO_UNDO) as store:
                recorder.acknowledge(agent, replica_of(store).clock.value if agent == "a" else 0)
                store["second"] = {"by": agent}
                recorder.acknowledge(agent, replica_of(store).clock.value)
                store.compact()
        for number, event in enumerate(recorder.events):
            cutter.apply(event)
            if isinstance(event, Ack):
                cutter.cut(EXTREMES, f"{number}: {event}, the founder killed at its call {calls}")
        if not executioner.has_killed:
            return calls
    raise AssertionError("unreachable")


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("agent", ["a", "b"])
def test_a_process_after_a_killed_founder_is_safe(tmp_path: Path, agent: str, every: int) -> None:
    assert found_and_cut(tmp_path, agent, every) > 30


@pytest.mark.parametrize(
    ("commits", "share", "each"),
    [pytest.param(12, 0.06, 1, marks=pytest.mark.long), pytest.param(60, 0.5, 6, marks=SLOW)],
)
def test_a_power_cut_upon_many_processes(world: Path, tmp_path: Path, commits: int, share: float, each: int) -> None:
    cutter = Cutter(world, tmp_path)
    record = tmp_path / "record"
    agents = {"one": "single", "two": "single", "many": "threads", "late": "buffered"}
    running = [start_process(world, record, agent, kind, commits) for agent, kind in agents.items()]
    assert [process.wait() for process in running] == [0] * len(running)
    events = read_record(record)
    cutter.at_random(events, "processes", each=each, share=share)
    assert cutter.images > 20


def start_process(
    world: Path, record: Path, agent: str, kind: str, commits: int, *, under: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-W", "error", "-m", "tests.powercut.process"]
    command = [*under, *program, str(world), str(record), agent, kind, str(commits)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2])


def test_no_content_of_a_lock_file_does_harm(tmp_path: Path) -> None:
    """Lock files are not fsynced, so a cut may leave any content."""
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {}
        store.compact()
    for content in (b"", bytes(30), b"4711 host", b"\xff\n\n"):
        for path in (tmp_path / "locks").rglob("*.lock"):
            path.write_bytes(content)
        with opslog.open(tmp_path, agent="a") as store:
            assert dict(store.items()) == {"x": {}}
            store.compact()


# The tests above must notice each of these breakages of the product.


def _nothing(*args: object, **options: object) -> None:
    pass


def _made_all_at_once(self: fs.FsBackend, create: bool) -> None:
    """Makes the directories of a new store without care for those who find them half-made."""
    new, level = [], self.root
    while not os.path.isdir(level):
        new.append(level)
        level = os.path.dirname(level)
    os.makedirs(self.root, exist_ok=True)
    for level in new:
        posix.fsync_directory(os.path.dirname(level))


_persist = fs.FsBackend.persist


def _of_logs(self: fs.FsBackend, paths: Iterable[str]) -> None:
    _persist(self, [path for path in paths if path.startswith("ops/")])


def _in_one_go(backend: Any, number: int) -> Any:
    garbage = find_garbage(backend, backend.now(), number, ManifestStore(backend).newest().oldest)
    backend.delete(garbage.paths)
    return garbage


def _all_retained(numbers: Sequence[int], oldest: int) -> int:
    return 0


FOUNDERS = 0
"""This stands for a seed: the runs whose founder is killed."""
Patch = tuple[object, str, Any]

BREAKAGES: dict[str, tuple[int, list[Patch]]] = {
    "fsync of appends": (1, [(Recorder, "_fdatasync", lambda self, real, path, target: real(target))]),
    "fsync of directories": (1, [(fs.FsBackend, "sync_directory", _nothing)]),
    "order of new directories": (7, [(fs.FsBackend, "_make_root", _made_all_at_once)]),
    "tails durable before a compaction": (3, [(compaction, "tail_ends", lambda *_: [])]),
    "own log durable when opened": (FOUNDERS, [(FsAppender, "settle", _nothing)]),
    "manifest durable when opened": (FOUNDERS, [(fs.FsBackend, "persist", _of_logs)]),
    # Programs that do not know `oldest` rely on this order alone. The others ignore a manifest that comes back.
    "manifests collected first": (
        4,
        [
            (compaction, "collect", _in_one_go),
            (manifests, "first_retained", _all_retained),
            (verify, "first_retained", _all_retained),
        ],
    ),
    "zeros as damage": (
        1,
        [
            (log, "sound_length", lambda data: data.rfind(b"\n") + 1),
            (torn, "sound_length", lambda data: data.rfind(b"\n") + 1),
        ],
    ),
}
"""What to break, and a seed whose run shows the breakage."""


MARKS_OF_BROKEN: dict[str, Sequence[pytest.MarkDecorator]] = {
    "tails durable before a compaction": SLOW,
    "zeros as damage": [pytest.mark.long],
}


@pytest.mark.parametrize(
    "broken",
    [pytest.param(name, marks=MARKS_OF_BROKEN.get(name, ())) for name in BREAKAGES],
)
def test_a_broken_product_is_noticed(tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, patches = BREAKAGES[broken]
    for owner, name, replacement in patches:
        monkeypatch.setattr(owner, name, replacement)
    # If the runs change, another one may have to be found.
    assert any(fails(tmp_path / str(number), number) for number in [seed, *range(100, 200)])


def fails(place: Path, seed: int) -> bool:
    try:
        if seed == FOUNDERS:
            found_and_cut(place / "a", "a")
            found_and_cut(place / "b", "b")
        else:
            run(place, seed, each=1, share=0.3)
    except (AssertionError, opslog.OpslogError):
        return True
    return False
