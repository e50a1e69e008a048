"""Workloads whose cost must depend on what is new, not on what exists: refresh and undo over long tails; many
agents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import opslog
from benchmarks.material import DECODER, document, line, prepared, sqlite
from benchmarks.npm import npm_modules
from benchmarks.opening import npm_logged
from benchmarks.peers import NPM, ON_DISK, Npm
from benchmarks.reading import READS, logged
from benchmarks.runner import Round, Scale, Start, Timer, contender
from benchmarks.writing import bare

LENGTHS: dict[str, Callable[[Scale], int]] = {"100,000": lambda s: s.log // 10, "1,000,000": lambda s: s.log}
"""How many commits are in the tails, by the name of the workload."""


def _refresh(commits: Callable[[Scale], int]) -> Start:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        path = logged(commits(scale), commits(scale) // 5)
        with (
            opslog.open(path, agent="writer", durability="buffered", compact_after=None) as writer,
            opslog.open(path, read_only=True) as reader,
        ):

            def run(timer: Timer) -> int:
                for number in range(scale.writes):
                    writer.set("task", document(number))
                    writer.flush()
                    with timer:
                        assert len(reader.refresh()) == 1
                return scale.writes

            yield run

    return start


def _refresh_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    path, lines = folder / "floor", [line(number) for number in range(scale.writes)]
    with path.open("ab", buffering=0) as written, path.open("rb", buffering=0) as file:

        def run(timer: Timer) -> int:
            for new in lines:
                written.write(new)
                with timer:
                    size = path.stat().st_size
                    assert len(DECODER.decode_lines(file.read(size - file.tell()))) == 1
            return len(lines)

        yield run


def _refresh_sqlite(folder: Path, scale: Scale) -> Iterator[Round]:
    with sqlite(folder, "OFF") as writer, sqlite(folder) as reader:
        writer.execute("CREATE TABLE log (number INTEGER PRIMARY KEY, line BLOB)")
        last = 0

        def run(timer: Timer) -> int:
            nonlocal last
            for number in range(scale.writes):
                writer.execute("INSERT INTO log (line) VALUES (?)", (line(number),))
                with timer:
                    new = reader.execute("SELECT number, line FROM log WHERE number > ?", (last,)).fetchall()
                    ((last, data),) = new
                    DECODER.decode(data)
            return scale.writes

        yield run


def _refresh_npm(commits: Callable[[Scale], int]) -> Start:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        with Npm(npm_logged(commits(scale), commits(scale) // 5)) as peer:
            peer.open({"readOnly": True})

            def run(timer: Timer) -> int:
                peer.use(0)
                peer.set([("task", document(timer.number))])
                peer.use(1)
                timer.seconds = peer.refresh()
                return 1

            yield run

    return start


def _undo(commits: Callable[[Scale], int]) -> Start:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        with opslog.open(logged(commits(scale), commits(scale) // 5), agent="undoer", compact_after=None) as store:

            def run(timer: Timer) -> int:
                for number in range(scale.writes):
                    store.set("task", document(number))
                    with timer:
                        assert store.undo()
                return scale.writes

            yield run

    return start


def _undo_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    undo = b'{"ts":"2026-01-01T00:00:00.000000Z","clock":1000,"agent":"main","op":"undo","target":999}\n'
    return bare(folder, [undo] * scale.writes, scale.writes)


def _undo_npm(commits: Callable[[Scale], int]) -> Start:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        with Npm(npm_logged(commits(scale), commits(scale) // 5)) as peer:

            def run(timer: Timer) -> int:
                peer.set([("task", document(timer.number))])
                timer.seconds = peer.undo()
                return 1

            yield run

    return start


for _name, _commits in LENGTHS.items():
    _title = f"refresh after 1 commit, {_name} in the tails"
    contender(_title, "opslog", READS)(_refresh(_commits))
    contender(_title, "floor: stat + read + msgspec", READS)(_refresh_floor)
    contender(_title, "SQLite WAL, select what is new", READS)(_refresh_sqlite)
    if npm_modules() is not None:
        contender(_title, NPM, READS)(_refresh_npm(_commits))
for _name, _commits in LENGTHS.items():
    _title = f"undo, {_name} in the tails"
    contender(_title, "opslog", ON_DISK)(_undo(_commits))
    contender(_title, "floor: write + fdatasync", ON_DISK)(_undo_floor)
    if npm_modules() is not None:
        contender(_title, NPM, "when the system writes it")(_undo_npm(_commits))


# -- many agents

AGENTS = "refresh after 1 commit of each of 100 agents"


def _names(scale: Scale) -> list[str]:
    return [f"agent-{number:03}" for number in range(scale.agents)]


def _many_agents(scale: Scale) -> Path:
    def fill(folder: Path) -> None:
        for agent in _names(scale):
            with opslog.open(folder, agent=agent, durability="buffered", compact_after=None) as store:
                for number in range(scale.log // 1000):
                    store.set(f"task-{number}", document(number))

    return prepared("opslog, many agents", fill)


@contender(AGENTS, "opslog", READS)
def agents_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    path = _many_agents(scale)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(opslog.open(path, agent=agent, durability="buffered", compact_after=None))
            for agent in _names(scale)
        ]
        reader = stack.enter_context(opslog.open(path, read_only=True))

        def run(timer: Timer) -> int:
            for writer in writers:
                writer.set("task", document(timer.number))
                writer.flush()
            with timer:
                assert len(reader.refresh()) == len(writers)
            return 1

        yield run


@contender(AGENTS, "floor: stat + read + msgspec, 100 files", READS)
def agents_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    with ExitStack() as stack:
        paths = [folder / agent for agent in _names(scale)]
        written = [stack.enter_context(path.open("ab", buffering=0)) for path in paths]
        files = [stack.enter_context(path.open("rb", buffering=0)) for path in paths]

        def run(timer: Timer) -> int:
            for number, file in enumerate(written):
                file.write(line(number))
            with timer:
                for path, read in zip(paths, files, strict=True):
                    size = path.stat().st_size
                    assert len(DECODER.decode_lines(read.read(size - read.tell()))) == 1
            return 1

        yield run


def agents_npm(folder: Path, scale: Scale) -> Iterator[Round]:
    names = _names(scale)
    with Npm(folder, agent=names[0]) as peer:
        peer.fill(scale.log // 1000, scale.log // 1000)
        for agent in names[1:]:
            peer.open({"agentId": agent})
            peer.fill(scale.log // 1000, scale.log // 1000)
        peer.open({"agentId": "reader"})

        def run(timer: Timer) -> int:
            for number in range(len(names)):
                peer.use(number)
                peer.set([("task", document(timer.number))])
            peer.use(len(names))
            timer.seconds = peer.refresh()
            return 1

        yield run


if npm_modules() is not None:
    contender(AGENTS, NPM, READS)(agents_npm)
