"""Workloads of opening: a long log, a large snapshot, the memory taken, and from the command line."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import orjson

import opslog
from benchmarks.amplification import grown
from benchmarks.material import DECODER, prepared
from benchmarks.npm import node, npm_modules
from benchmarks.peers import LARGE, NPM, Npm, Open, filled_peer
from benchmarks.reading import READS, SEED, WIDTH, compacted, fixed_lines, logged, some_ids
from benchmarks.runner import Round, Scale, Start, Timer, contender, workload
from opslog.format.commits import Commit

# -- a log


def npm_logged(count: int, ids: int) -> Path:
    def fill(folder: Path) -> None:
        with Npm(folder) as peer:
            peer.fill(count, ids)

    return prepared(f"{NPM}, {count} commits", fill)


_CHUNK_BYTES = 256 * 1024

LOG = workload("open a log of 1,000,000 commits over 200,000 ids, per commit", rounds=3)


@contender(LOG, "opslog, then one get", READS)
def log_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    path = logged(scale.log, scale.log // 5)

    def run(timer: Timer) -> int:
        with timer:
            store = opslog.open(path, read_only=True)
            assert store.get("task-0") is not None
        store.close()
        return scale.log

    yield run


def _decoded(path: Path) -> Iterator[list[Commit]]:
    """A segment in chunks that fit into the caches of a processor; none of them is kept."""
    rest = b""
    with path.open("rb", buffering=0) as file:
        while data := file.read(_CHUNK_BYTES):
            whole = rest + data
            end = whole.rfind(b"\n") + 1
            rest = whole[end:]
            yield DECODER.decode_lines(whole[:end])


@contender(LOG, "floor: read + msgspec", READS)
def log_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    paths = sorted(logged(scale.log, scale.log // 5).glob("ops/*/*.jsonl"))

    def run(timer: Timer) -> int:
        count = 0
        with timer:
            for path in paths:
                count += sum(map(len, _decoded(path)))
        return count

    yield run


def log_npm(folder: Path, scale: Scale) -> Iterator[Round]:
    path = npm_logged(scale.log, scale.log // 5)

    def run(timer: Timer) -> int:
        with Npm(path, reads=True) as peer:
            timer.seconds = peer.opening + peer.get(["task-0"])
        return scale.log

    yield run


if npm_modules() is not None:
    contender(LOG, f"{NPM}, then one get", READS)(log_npm)


# -- a snapshot


def _filled(name: str, open_peer: Open, scale: Scale) -> Path:
    return filled_peer(name, open_peer, scale.snapshot)


SNAPSHOT = "open a snapshot of 1,000,000, one get"
HUGE = "open a snapshot of 10,000,000, one get"


# Two sizes of opslog's own are compared, and the first open of a process takes most of its time to get code and pages
# into the processor's caches, which the next contender then finds there. So each opens so many times a round.
_OPENS = 10


def _snapshot_opslog(prepare: Callable[[Scale], Path], count: Callable[[Scale], int], opens: int = 1) -> Start:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        path, ids = prepare(scale), itertools.cycle(some_ids(count(scale), 100))

        def run(timer: Timer) -> int:
            for id in itertools.islice(ids, opens):
                with timer:
                    store = opslog.open(path, read_only=True)
                    assert store.get(id) is not None
                store.close()
            return opens

        yield run

    return start


def _snapshot_floor(count: Callable[[Scale], int]) -> Start:
    """Lines of one length, in order: nothing to open."""

    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        path, chosen = fixed_lines(count(scale)), random.Random(SEED)

        def run(timer: Timer) -> int:
            with timer, path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                at = chosen.randrange(count(scale)) * WIDTH
                orjson.loads(data[at : at + WIDTH])
            return 1

        yield run

    return start


def _snapshot_peer(name: str, open_peer: Open) -> Start:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        place, ids = filled_peer(name, open_peer, scale.snapshot), iter(some_ids(scale.snapshot, 100))

        def run(timer: Timer) -> int:
            begun = time.perf_counter()
            with open_peer(place) as peer:
                opening = peer.opening if isinstance(peer, Npm) else time.perf_counter() - begun
                timer.seconds = opening + peer.get([next(ids)])
            return 1

        yield run

    return start


contender(SNAPSHOT, "opslog", READS)(_snapshot_opslog(lambda s: compacted(s.snapshot), lambda s: s.snapshot))
contender(SNAPSHOT, "floor: mmap + orjson", READS)(_snapshot_floor(lambda s: s.snapshot))
for _name, _open_peer in LARGE.items():
    contender(SNAPSHOT, _name, READS)(_snapshot_peer(_name, _open_peer))
contender(HUGE, "opslog", READS)(_snapshot_opslog(lambda s: grown(s.huge).path, lambda s: s.huge, _OPENS))
contender(HUGE, "floor: mmap + orjson", READS)(_snapshot_floor(lambda s: s.huge))
contender(HUGE, "opslog with 1,000,000", READS)(
    _snapshot_opslog(lambda s: compacted(s.snapshot), lambda s: s.snapshot, _OPENS)
)


# -- memory


class Use(NamedTuple):
    """The work on an open store of this many documents before its memory is measured."""

    count: Callable[[Scale], int]
    gets: int = 0
    scans: bool = False


_CHILD = """
import json, sys
from pathlib import Path
import opslog
from benchmarks.peers import LARGE, own_memory
from benchmarks.reading import some_ids

name, path, count, gets, scans = json.loads(sys.argv[1])
ids = some_ids(count, gets)

before = own_memory()
if name == "opslog":
    store = opslog.open(path, read_only=True)
    for id in ids:
        store.get(id)
    if scans:
        store.count(lambda document: document["priority"] == 0)
else:
    store = LARGE[name](Path(path))
    store.get(ids)
    if scans:
        store.scan()
print(max(own_memory() - before, 4096) / 1e6)  # less than a page cannot be distinguished from none
"""


def memory_of(name: str, prepare: Callable[[Scale], Path], use: Use) -> Start:
    """How much more memory of its own a process has after it has opened a store and used it."""

    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        path, gets = prepare(scale), min(use.gets, scale.documents)
        arguments = json.dumps([name, str(path), use.count(scale), gets, use.scans])

        def run(timer: Timer) -> int:
            command = [sys.executable, "-c", _CHILD, arguments]
            timer.measured = float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            return 1

        yield run

    return start


def memory_of_npm(prepare: Callable[[Scale], Path], use: Use) -> Start:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        path = prepare(scale)

        def run(timer: Timer) -> int:
            with Npm(folder) as peer:
                before = peer.memory()
            with Npm(path, reads=True) as peer:
                peer.get(some_ids(use.count(scale), min(use.gets, scale.documents)))
                if use.scans:
                    peer.scan()
                timer.measured = (peer.memory() - before) / 1e6
            return 1

        yield run

    return start


def _memory_workload(name: str, kind: str, opslog_store: Callable[[Scale], Path], use: Use) -> str:
    title = workload(f"memory: {name}", rounds=3, unit="MB")
    contender(title, "opslog", kind)(memory_of("opslog", opslog_store, use))
    return title


def _snapshot_of(scale: Scale) -> Path:
    return compacted(scale.snapshot)


for _what, _use in {
    "opened": Use(lambda s: s.snapshot),
    "after 10,000 gets": Use(lambda s: s.snapshot, 10_000),
    "after a scan": Use(lambda s: s.snapshot, 0, True),
}.items():
    _title = _memory_workload(f"1,000,000 documents, {_what}", READS, _snapshot_of, _use)
    for _name, _open_peer in LARGE.items():
        _prepare = partial(_filled, _name, _open_peer)
        _start = memory_of_npm(_prepare, _use) if _name == NPM else memory_of(_name, _prepare, _use)
        contender(_title, _name, READS)(_start)

_title = _memory_workload(
    "a log of 1,000,000 commits, opened", READS, lambda s: logged(s.log, s.log // 5), Use(lambda s: s.log // 5)
)
if npm_modules() is not None:
    _use = Use(lambda s: s.log // 5)
    contender(_title, NPM, READS)(memory_of_npm(lambda s: npm_logged(s.log, s.log // 5), _use))
LOG_MEMORY = _memory_workload(
    "a log of 1,000,000 documents, opened",
    READS,
    lambda s: logged(s.log, s.log),
    Use(lambda s: s.log),
)
_memory_workload(
    "10,000,000 documents, after 10,000 gets", READS, lambda s: grown(s.huge).path, Use(lambda s: s.huge, 10_000)
)


# -- the command line

COLD = "get from the command line"


def _command(prepare: Callable[[Scale], list[str]]) -> Start:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        command = prepare(scale)
        # With the compiled modules that every installed program has.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

        def run(timer: Timer) -> int:
            for _ in range(10):
                with timer:
                    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
            return 10

        yield run

    return start


def _small_store(scale: Scale) -> Path:
    return logged(scale.documents, scale.documents)


def _npm_small(scale: Scale) -> Path:
    return _filled(NPM, Npm, msgspec.structs.replace(scale, snapshot=scale.documents))


LISTED, LOGGED = "first byte of opslog ls, 150,000 documents", "first byte of opslog ops, 150,000 commits"


def _first_byte(prepare: Callable[[Scale], list[str]]) -> Start:
    """The time until a command prints something. It is ended then."""

    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        command = prepare(scale)

        def run(timer: Timer) -> int:
            for _ in range(5):
                with timer:
                    process = subprocess.Popen(command, stdout=subprocess.PIPE)
                    assert process.stdout is not None
                    assert process.stdout.read(1)
                with process:
                    process.kill()
            return 5

        yield run

    return start


def _log_of(scale: Scale) -> str:
    """A store whose documents are all in one log, which takes longer to open than a snapshot."""
    count = scale.questions * 3 // 4
    return str(logged(count, count))


_NODE = """
const {Store} = await import(process.argv[1] + "/@backloghq/opslog/dist/index.js");
const store = new Store();
await store.open(process.argv[2], {readOnly: true});
console.log(store.get(process.argv[3]));
"""
_BIN = Path(sys.executable).parent
contender(COLD, "opslog get", READS)(
    _command(lambda s: [str(_BIN / "opslog"), "get", "--store", str(_small_store(s)), "task-1"])
)
for _workload, _name in ((LISTED, "ls"), (LOGGED, "ops")):
    contender(_workload, f"opslog {_name}", READS)(
        _first_byte(lambda s, name=_name: [str(_BIN / "opslog"), name, "--store", _log_of(s)])  # type: ignore[misc]
    )
    contender(_workload, "floor: python -c print(0)", READS)(_first_byte(lambda s: [sys.executable, "-c", "print(0)"]))
contender(COLD, "floor: python -c pass", READS)(_command(lambda s: [sys.executable, "-c", "pass"]))
contender(COLD, "msgspec and orjson alone", READS)(_command(lambda s: [sys.executable, "-c", "import msgspec, orjson"]))
if (_modules := npm_modules()) is not None:
    _start_node = [node(_modules), "--input-type=module", "-e", _NODE, str(_modules)]
    contender(COLD, f"node and {NPM}", READS)(_command(lambda s: [*_start_node, str(_npm_small(s)), "task-1"]))
