"""Stream servers side by side: opslog, the reference server from npm, and two floors.

    python -m benchmarks.server [--small] [--rounds N] [--only TEXT …] [--page FILE]

Both keep streams in files and answer an append when it is on disk. Each workload runs in turns on a fresh server, with
an empty directory, in a process of its own; what the clients do runs in another (`benchmarks.server_load`). Memory is
the most that the server's process ever held, as the system counts it, over the whole workload, writing what is read
included.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.report import at_least_one, machine, shown
from benchmarks.server_page import Report, Result, write_page
from tests.support.node_streams import package
from tests.support.npm import PackagesMissingError

ROOT = Path(__file__).parents[1]


class Server(NamedTuple):
    url: str
    pid: int


Start = Callable[[Path], AbstractContextManager[Server]]


@contextmanager
def _process(command: list[str], line: str) -> Iterator[Server]:
    """A server that writes a line in which `line` finds its address."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            for said in process.stdout:
                if (found := re.search(line, said)) is not None:
                    yield Server(found[1].rstrip("/"), process.pid)
                    return
            raise RuntimeError(f"{command} did not start")
        finally:
            process.terminate()
            process.communicate(timeout=60)


def opslog(folder: Path) -> AbstractContextManager[Server]:
    serve = f"{sys.executable} -m opslog serve --json --port 0 --data {folder} 2>&1"
    return _process(["sh", "-c", f"exec {serve}"], r'"url": ?"([^"]+)"')


def reference(folder: Path) -> AbstractContextManager[Server]:
    script = ROOT / "tests" / "support" / "node_streams.mjs"
    command = ["node", str(script), str(package()), json.dumps({"dataDir": str(folder)})]

    @contextmanager
    def started() -> Iterator[Server]:
        with _process(command, r"(http://\S+)") as server:
            yield server._replace(url=f"{server.url}/v1/stream")

    return started()


def floor(kind: str, folder: Path) -> AbstractContextManager[Server]:
    command = [sys.executable, "-m", "benchmarks.server_floor", kind, str(folder / "file")]
    return _process(command, r"(http://\S+)")


OPSLOG, REFERENCE, FLOOR, LOWER_FLOOR = "opslog", "reference server 0.3.7", "floor: uvicorn", "floor: httptools"
CONTENDERS: dict[str, Start] = {
    OPSLOG: opslog,
    REFERENCE: reference,
    FLOOR: partial(floor, "uvicorn"),
    LOWER_FLOOR: partial(floor, "httptools"),
}


class Workload(NamedTuple):
    """:ivar name: of the function in `benchmarks.server_load`; `options`: for it; `small`: those of a try."""

    name: str
    options: dict[str, Any]
    small: dict[str, Any]
    contenders: tuple[str, ...] = (OPSLOG, REFERENCE)


def _workloads() -> dict[str, Workload]:
    found: dict[str, Workload] = {}
    options: dict[str, Any]
    small: dict[str, Any]
    for streams in (1, 64):
        for connections in (1, 16, 64):
            options = {"connections": connections, "streams": streams, "seconds": 5.0}
            small = {"connections": connections, "streams": min(streams, 4), "seconds": 0.1}
            plural = (f"{connections} connection{'s' * (connections > 1)}", f"{streams} stream{'s' * (streams > 1)}")
            found[f"append, {plural[0]}, {plural[1]}"] = Workload("append", options, small, tuple(CONTENDERS))
    for large, text in ((False, "1 kB"), (True, "1 MB")):
        options = {"bytes": 100_000_000, "large": large}
        small = {"bytes": 200_000, "large": large}
        found[f"catch up on 100 MB, messages of {text}"] = Workload("catch_up", options, small)
    for live in ("sse", "long-poll"):
        small = {"followers": 5, "messages": 3, "live": live}
        for followers, messages in ((200, 50), (1000, 20)):
            options = {"followers": followers, "messages": messages, "live": live}
            name = f"deliver to {followers:,} followers, {live}"
            found[name] = Workload("follow", options, small, tuple(CONTENDERS))
        options = {"followers": 1000, "appends": 30, "live": live, "pause": 0.5}
        small = {"followers": 5, "appends": 3, "live": live, "pause": 0.01}
        found[f"append to a stream that 1,000 follow, {live}"] = Workload("append_followed", options, small)
    return found


WORKLOADS = _workloads()


def measure(workload: Workload, contender: str, *, small: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="opslog-bench-") as folder, CONTENDERS[contender](Path(folder)) as server:
        options = json.dumps(workload.small if small else workload.options)
        load = [sys.executable, "-m", "benchmarks.server_load", server.url, str(server.pid), workload.name, options]
        done = subprocess.run(load, capture_output=True, text=True, cwd=ROOT, timeout=900, check=False)
        if done.returncode:
            raise RuntimeError(f"{contender}: {done.stderr.strip()[-2000:]}")
        figures: dict[str, float] = json.loads(done.stdout)
        return {**figures, "memory MB": peak_memory(server.pid)}


def peak_memory(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 / 1e6 if found else float("nan")


def run(names: list[str], contenders: list[str], *, rounds: int, small: bool) -> list[Result]:
    """All workloads; the contenders of one take turns, and nobody always comes first."""
    results = []
    for name in names:
        workload = WORKLOADS[name]
        taking_part = [contender for contender in contenders if contender in workload.contenders]
        rows: dict[str, list[dict[str, float]]] = {contender: [] for contender in taking_part}
        for number in range(rounds):
            for turn in range(len(taking_part)):
                contender = taking_part[(turn + number) % len(taking_part)]
                rows[contender].append(measure(workload, contender, small=small))
        for contender, measured in rows.items():
            figures = {figure: [row[figure] for row in measured] for figure in measured[0]}
            results.append(Result(name, contender, figures))
        Console(width=140).print(table([result for result in results if result.workload == name]))
    return results


def table(results: list[Result]) -> Table:
    table = Table(title=results[0].workload)
    table.add_column("contender")
    for figure in results[0].figures:
        table.add_column(figure, justify="right")
    for result in results:
        table.add_row(result.contender, *(shown(result.median(figure)) for figure in result.figures))
    return table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server", description="Measure stream servers.")
    parser.add_argument("--small", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--rounds", type=at_least_one, default=5, help="how often each contender runs (default 5)")
    parser.add_argument("--only", action="append", default=[], help="only workloads whose name contains this (repeat)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a page there, and results.json in its folder")
    given = parser.parse_args(arguments)
    # A thousand followers are a thousand descriptors, in the server and in its clients: both inherit this.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    contenders = list(CONTENDERS)
    try:
        package()
    except PackagesMissingError as error:
        contenders.remove(REFERENCE)
        print(f"without the reference server: {error}", file=sys.stderr)
    names = [name for name in WORKLOADS if not given.only or any(part in name for part in given.only)]
    rounds = 1 if given.small else given.rounds
    environment = machine() | {"node": _node_version()}
    report = Report(environment, rounds, run(names, contenders, rounds=rounds, small=given.small))
    if given.page is not None:
        write_page(report, given.page)


def _node_version() -> str:
    try:
        return subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    except OSError:
        return "none"


if __name__ == "__main__":
    main()
