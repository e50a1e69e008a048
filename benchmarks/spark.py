"""python -m benchmarks.spark: replay of a store by Spark, beside plans written by hand and one process of Python.

Each contender has a process, and so a Java, of its own; the starts are not counted. The stores are logs of four agents
who set documents at random, all of it behind the cut: nothing is in a snapshot that would make it easier.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import msgspec

import opslog
from benchmarks.report import machine
from benchmarks.spark_jobs import PYTHON, SPARK, Job
from opslog.format.layout import segment_path

AGENTS = 4
SEGMENT_BYTES = 64 * 1024 * 1024
STORES = ("unique", "hot")
OPSLOG, MAX_BY, WINDOW = SPARK
ONE_PROCESS, FILES, FLOOR = PYTHON


class Sizes(msgspec.Struct, frozen=True):
    """:ivar ops: in each store, over `ids` documents, or `hot` of them. :ivar growth: how many ops, over `ids`."""

    ops: int = 5_000_000
    ids: int = 1_000_000
    hot: int = 5_000
    growth: tuple[int, ...] = (1_000_000, 5_000_000, 10_000_000, 20_000_000)
    cores: int = 2


SMALL = Sizes(ops=2000, ids=500, hot=10, growth=(1000,))


class Measured(msgspec.Struct, frozen=True):
    """A contender on a store of so many ops over so many documents, `bytes` of logs."""

    store: str
    ops: int
    ids: int
    bytes: int
    job: Job


class Report(msgspec.Struct, frozen=True):
    """Everything that a run measured, and what the figures depend on."""

    command: str
    environment: dict[str, str]
    sizes: Sizes
    results: list[Measured]


def fill(root: Path, ops: int, ids: int) -> int:
    """Write the logs of a store; returns their bytes."""
    opslog.open(root).close()
    choices, total = random.Random(ops), 0
    for number in range(AGENTS):
        agent = f"agent-{number}"
        clocks = iter(range(number + 1, ops + 1, AGENTS))
        segment = 0
        while lines := list(_lines(agent, clocks, ids, choices)):
            segment += 1
            path = root / segment_path(agent, segment)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(lines))
            total += path.stat().st_size
    return total


def _lines(agent: str, clocks: Iterator[int], ids: int, choices: random.Random) -> Iterator[bytes]:
    """The lines of one segment: 250 bytes each."""
    size = 0
    for clock in clocks:
        number = choices.randrange(ids)
        seconds, microseconds = divmod(clock, 1_000_000)
        line = (
            f'{{"ts":"2026-11-20T12:00:{seconds:02}.{microseconds:06}Z","clock":{clock},"agent":"{agent}",'
            f'"op":"set","id":"task-{number:08}","data":{{"title":"Task number {number}","status":"active",'
            f'"revision":{clock},"priority":{clock % 5},"tags":["build","b{clock % 7}"],'
            f'"assignee":"user-{clock % 100}","notes":"what a person would write {clock * 7}","done":false}}}}\n'
        ).encode()
        yield line
        size += len(line)
        if size >= SEGMENT_BYTES:
            return


@contextmanager
def store_of(ops: int, ids: int) -> Iterator[tuple[Path, int]]:
    root = Path(tempfile.mkdtemp(prefix="opslog-bench-"))
    try:
        yield root / "store", fill(root / "store", ops, ids)
    finally:
        shutil.rmtree(root)


class Work(msgspec.Struct, frozen=True):
    """A contender on a store. :ivar store: the store's name in a report."""

    contender: str
    store: str
    path: Path
    ops: int
    ids: int
    bytes: int


def measure(works: list[Work], cores: int) -> list[Measured]:
    """Do some works in one new process."""
    described = json.dumps([(work.contender, str(work.path)) for work in works])
    command = [sys.executable, "-m", "benchmarks.spark_jobs", described, str(cores)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[1]).stdout
    jobs = [msgspec.json.decode(line, type=Job) for line in done.splitlines()]
    results = [Measured(w.store, w.ops, w.ids, w.bytes, job) for w, job in zip(works, jobs, strict=True)]
    for each in results:
        print(f"{each.store}, {each.ops:,} ops: {_line(each.job)}", flush=True)
    return results


def run(sizes: Sizes) -> list[Measured]:
    """Each contender in a process of its own."""
    stores = [("unique", sizes.ops, sizes.ids), ("hot", sizes.ops, sizes.hot)]
    results: list[Measured] = []
    for name, ops, ids in [*stores, *(("growth", ops, sizes.ids) for ops in sizes.growth)]:
        with store_of(ops, ids) as (path, size):
            for contender in [OPSLOG] if name == "growth" else [*SPARK, *PYTHON]:
                results += measure([Work(contender, name, path, ops, ids, size)], sizes.cores)
    return results


def run_small(sizes: Sizes) -> list[Measured]:
    """All contenders that are Spark's in one process, the others in another: that is quick, and measures nothing."""
    with store_of(sizes.ops, sizes.ids) as (path, size):
        works = [Work(name, store, path, sizes.ops, sizes.ids, size) for store in STORES for name in SPARK]
        works += [Work(OPSLOG, "growth", path, ops, sizes.ids, size) for ops in sizes.growth]
        others = [Work(name, store, path, sizes.ops, sizes.ids, size) for store in STORES for name in PYTHON]
        return measure(works, sizes.cores) + measure(others, sizes.cores)


def check(results: list[Measured]) -> None:
    """All contenders found the same documents."""
    for store in STORES:
        jobs = [each.job for each in results if each.store == store and each.job.contender not in (FILES, FLOOR)]
        found = {(job.documents, job.checksum) for job in jobs}
        if len(found) != 1:
            raise SystemExit(f"{store}: the contenders found different documents: {found}")


def _line(job: Job) -> str:
    return (
        f"{job.contender}: {job.wall:.1f} s, processor {job.jvm:.1f} s Java and {job.python:.1f} s Python, shuffle "
        f"{job.shuffle / 1e6:.1f} MB, memory {job.peak / 1e6:.0f} MB"
    )


# -- the page


_HEAD = """# Benchmarks of Spark

Written by `{command}`; do not edit.

Every contender finds the newest document of each id in logs of four agents, on {cores} cores, and all find the same.

- The start of Spark and of its workers is not counted.
- The native plans are written by hand for logs of single sets and deletes; they support no batches and no undo.
- Memory is that of all processes together.
- A ratio divides the processor time of opslog's replay by Spark by that of the contender.

{environment}
"""


def page(report: Report) -> str:
    environment = ", ".join(f"{name} {value}" for name, value in report.environment.items())
    sizes = report.sizes
    parts = [
        _HEAD.format(command=report.command, cores=sizes.cores, environment=environment),
    ]
    for name in STORES:
        results = [each for each in report.results if each.store == name]
        first = results[0]
        title = f"{first.ops:,} ops over {first.ids:,} documents, {first.bytes / 1e9:.2f} GB"
        parts.append(f"## {title}{', hot' if name == 'hot' else ''}\n\n{_table(results)}")
    growth = [each for each in report.results if each.store == "growth"]
    parts.append(f"## As ops grow, over {sizes.ids:,} documents\n\n{_growth(growth)}")
    parts.append(f"## Goals\n\n{_goals(report.results)}")
    return "\n".join(parts)


def _rows(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


def _table(results: list[Measured]) -> str:
    own = results[0].job.processor
    head = ["contender", "wall, s", "Java, CPU-s", "Python, CPU-s", "shuffle, MB", "peak, MB", "ratio"]
    return _rows(
        head,
        [
            [
                job.contender,
                f"{job.wall:.1f}",
                f"{job.jvm:.1f}",
                f"{job.python:.1f}",
                f"{job.shuffle / 1e6:.0f}",
                f"{job.peak / 1e6:.0f}",
                f"{own / max(job.processor, 0.01):.2f}",
            ]
            for job in (each.job for each in results)
        ],
    )


def _growth(results: list[Measured]) -> str:
    head = ["ops", "logs, GB", "wall, s", "CPU-s", "CPU-s per million ops", "shuffle, MB", "peak, MB"]
    return _rows(
        head,
        [
            [
                f"{each.ops:,}",
                f"{each.bytes / 1e9:.2f}",
                f"{each.job.wall:.1f}",
                f"{each.job.processor:.1f}",
                f"{each.job.processor / each.ops * 1e6:.1f}",
                f"{each.job.shuffle / 1e6:.0f}",
                f"{each.job.peak / 1e6:.0f}",
            ]
            for each in results
        ],
    )


def _goals(results: list[Measured]) -> str:
    took = {(each.store, each.job.contender): each.job.processor for each in results}
    best = {name: min(took[name, MAX_BY], took[name, WINDOW]) for name in ("unique", "hot")}
    unique, hot = (took[name, OPSLOG] / best[name] for name in ("unique", "hot"))
    files = took["unique", FILES] / max(took["unique", FLOOR], 0.01)
    peaks = [each.job.peak for each in results if each.store == "growth"]
    growth = peaks[-1] / peaks[0]
    rows = [
        ("unique ids: at most the processor time of the best native plan", f"{unique:.2f} x", unique <= 1),
        ("hot ids: at most half the processor time of the best native plan", f"{hot:.2f} x", hot <= 0.5),
        ("replay --engine python: within 1.5 x of decoding alone", f"{files:.2f} x", files <= 1.5),
        (
            "memory stays flat as ops grow: at most 1.5 x from the fewest ops to the most",
            f"{growth:.2f} x",
            growth <= 1.5,
        ),
    ]
    return _rows(["goal", "measured", ""], [[text, value, "met" if met else "missed"] for text, value, met in rows])


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.spark", description="Measure replay by Spark.")
    defaults = Sizes()
    parser.add_argument("--small", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--ops", type=int, default=defaults.ops)
    parser.add_argument("--ids", type=int, default=defaults.ids)
    parser.add_argument("--hot", type=int, default=defaults.hot)
    parser.add_argument("--growth", type=int, nargs="*", default=list(defaults.growth), metavar="OPS")
    parser.add_argument("--cores", type=int, default=defaults.cores)
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a page there, with raw figures beside it")
    given = parser.parse_args()
    sizes = SMALL if given.small else Sizes(given.ops, given.ids, given.hot, tuple(given.growth), given.cores)
    environment = machine() | {name: version(name) for name in ("pyspark", "pyarrow")}
    results = run_small(sizes) if given.small else run(sizes)
    check(results)
    command = " ".join(["python -m benchmarks.spark", *sys.argv[1:]])
    report = Report(command, environment | {"cores used": str(sizes.cores)}, sizes, results)
    if given.page is not None:
        raw = given.page.with_suffix(".json")
        raw.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
        given.page.write_text(page(report), encoding="utf-8")
    print(_goals(results))


if __name__ == "__main__":
    main()
