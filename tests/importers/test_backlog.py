"""Directories that the real npm package made, and hand-made ones in the formats of its older versions."""

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest

from opslog.errors import CorruptError, UsageError
from opslog.importers import ImportedCommit, ImportedOp
from opslog.importers.backlog import orphaned_logs, read_backlog, read_backlog_archives
from tests.support.npm import installed

PACKAGE = "@backloghq/opslog@0.8.1"
DRIVER = Path(__file__).with_name("backlog_driver.mjs")


State = dict[str, dict[str, Any]]
Start = Callable[[], "Process"]


def replay(commits: Iterable[ImportedCommit]) -> State:
    state: State = {}
    for commit in commits:
        for op in commit.ops:
            if op.document is not None:
                state[op.id] = op.document
            else:
                state.pop(op.id, None)
    return state


class Process:
    """A process that holds one store of the npm package. Its methods are commands of the driver."""

    def __init__(self, package: Path) -> None:
        command = ["node", str(DRIVER), str(package)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __getattr__(self, command: str) -> Callable[..., Any]:
        def call(*options: Any) -> Any:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            print(json.dumps([command, *options]), file=self._process.stdin, flush=True)
            answer = json.loads(self._process.stdout.readline())
            assert "error" not in answer, answer
            return answer["result"]

        return call

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="session")
def package() -> Path:
    """The package's entry module."""
    return installed("npm-backlog", PACKAGE) / "node_modules" / "@backloghq" / "opslog" / "dist" / "index.js"


@pytest.fixture
def start(package: Path) -> Iterator[Start]:
    """Starts processes, and ends all of them after the test."""
    with ExitStack() as stack:

        def process() -> Process:
            started = Process(package)
            stack.callback(started.end)
            return started

        yield process


def write_all_kinds(store: Process) -> None:
    store.set("é/日本", {"title": "naïve 😀", "n": 1e20, "list": [1, None, {"deep": True}], "long": "x" * 5000})
    store.set("task", {"title": "one", "long": "y" * 200})
    store.set("task", {"title": "two", "long": "y" * 200})
    store.set("gone", {})
    store.delete("gone")
    store.batch([["a", {"n": 1}], ["b", {"n": 2}], ["a", {"n": 3}], ["b", None]])
    store.set("mistake", {"n": 1})
    assert store.undo() is True
    store.set("task", {"title": "mistake"})
    assert store.undo() is True


ALL_KINDS = {
    "é/日本": {"title": "naïve 😀", "n": 10**20, "list": [1, None, {"deep": True}], "long": "x" * 5000},
    "task": {"title": "two", "long": "y" * 200},
    "a": {"n": 3},
}


def test_a_single_writer(start: Start, tmp_path: Path) -> None:
    store = start()
    store.open(str(tmp_path), {"checkpointOnClose": False})
    write_all_kinds(store)
    store.close()
    commits = list(read_backlog(tmp_path))
    assert '"encoding":"delta"' in next(tmp_path.glob("ops/*.jsonl")).read_text()
    assert replay(commits) == store_state(start, tmp_path) == ALL_KINDS
    assert [commit.ops[0].op for commit in commits] == ["set"] * 4 + ["delete"] + ["set"] * 3 + ["delete"]
    assert {commit.agent for commit in commits} == {None}
    assert all(re.fullmatch(r"[-0-9]{10}T[:0-9]{8}\.[0-9]{3}000Z", commit.ts or "") for commit in commits)
    assert orphaned_logs(tmp_path) == []


def store_state(start: Start, directory: Path, **options: Any) -> Any:
    store = start()
    store.open(str(directory), {"readOnly": True, **options})
    return store.state()


def test_a_snapshot_and_what_came_after_it(start: Start, tmp_path: Path) -> None:
    store = start()
    store.open(str(tmp_path), {"checkpointOnClose": False, "checkpointThreshold": 7})
    write_all_kinds(store)
    store.compact()
    store.set("later", {"n": 1})
    store.delete("a")
    store.close()
    expected = {id: ALL_KINDS[id] for id in ("é/日本", "task")} | {"later": {"n": 1}}
    assert replay(read_backlog(tmp_path)) == store_state(start, tmp_path) == expected
    assert len(orphaned_logs(tmp_path)) == 2
    assert replay(read_backlog(tmp_path, salvage=True)) == expected


def test_several_writers_are_merged_by_clock_and_agent(start: Start, tmp_path: Path) -> None:
    names = ["b", "A", "a", "B", "_x", "10"]
    stores = {name: start() for name in names}
    for name, store in stores.items():
        store.open(str(tmp_path), {"agentId": name, "checkpointOnClose": False})
    for round in range(3):
        for name, store in stores.items():
            store.set("shared", {"by": name, "round": round})
            store.set(f"own-{name}", {"round": round})
    stores["A"].refresh()
    stores["A"].delete("own-b")
    commits = list(read_backlog(tmp_path))
    assert replay(commits) == store_state(start, tmp_path, agentId="reader")
    assert replay(commits)["shared"] == {"by": "B", "round": 2}
    assert {commit.agent for commit in commits} == {"x", "10", "a", "A-2", "b", "B-2"}, "valid, one per agent"


def test_agents_sort_as_in_javascript(start: Start, tmp_path: Path) -> None:
    singles = [chr(code) for code in range(32, 127)]
    names = [*singles, *map("".join, product("aAbB-_1", repeat=3)), "é", "e", "É", "ea", "éa", "f"]
    ordered = start().sorted(names)
    write_manifest(tmp_path, activeOps="ops/all.jsonl", activeAgentOps={"all": "ops/all.jsonl"})
    ops = [op(f"{number}", {"agent": name}, agent=name, clock=1) for number, name in enumerate(reversed(names))]
    write_lines(tmp_path / "ops/all.jsonl", ops)
    assert [replay([commit]).popitem()[1]["agent"] for commit in read_backlog(tmp_path)] == ordered


def test_archives_come_separately(start: Start, tmp_path: Path) -> None:
    store = start()
    store.open(str(tmp_path), {"checkpointOnClose": False})
    for id in ("a", "b", "c", "d"):
        store.set(id, {"is": id})
    store.archive(["a", "b"], "2026-Q3")
    store.archive(["c"], "2026-Q4")
    store.set("b", {"is": "new"})
    store.compact()
    archived = list(read_backlog_archives(tmp_path))
    assert archived == [
        ("2026-Q3", "a", {"is": "a"}),
        ("2026-Q3", "b", {"is": "b"}),
        ("2026-Q4", "c", {"is": "c"}),
    ]
    for period in ("2026-Q3", "2026-Q4"):
        assert store.loadArchive(period) == {id: document for of, id, document in archived if of == period}
    expected = {"d": {"is": "d"}, "b": {"is": "new"}}
    assert replay(read_backlog(tmp_path)) == store.state() == expected
    assert replay(read_backlog(tmp_path, salvage=True)) == expected, "archived documents stay archived"


def test_salvage_recovers_what_racing_compactions_lost(start: Start, tmp_path: Path) -> None:
    """Four processes take steps in an order that loses writes. Each step waits for the answer to the one before."""
    stores = {name: start() for name in ("p1", "p2", "p3", "p4")}
    for name, store in stores.items():
        store.open(str(tmp_path), {"agentId": name, "checkpointOnClose": False})
        store.set(f"{name}-early", {"by": name})
        store.set("shared", {"by": name})
    stores["p2"].delete("p2-early")
    stores["p1"].compact()
    for name, store in stores.items():
        store.set(f"{name}-late", {"by": name})
    stores["p3"].compact()
    stores["p4"].set("p4-last", {"by": "p4"})
    stores["p1"].set("p1-last", {"by": "p1"})

    live = replay(read_backlog(tmp_path))
    assert live == store_state(start, tmp_path, agentId="reader")
    assert set(live) == {"p1-early", "p2-early", "p3-early", "p3-late", "shared"}
    assert len(orphaned_logs(tmp_path)) >= 4

    salvaged = replay(read_backlog(tmp_path, salvage=True))
    lost = {"p4-early", "p1-late", "p2-late", "p4-late", "p4-last", "p1-last"}
    assert set(salvaged) == set(live) | lost
    assert {id: salvaged[id] for id in live} == live, "live data wins"


# --- formats written by hand ------------------------------------------------------------------------------------------

TS = "2026-04-09T12:00:00.123Z"


def op(id: str, data: Any, *, ts: str = TS, prev: Any = None, **more: Any) -> dict[str, Any]:
    """One op of a log. If `data` is None, it is a delete."""
    if data is None:
        return {"ts": ts, "op": "delete", "id": id, "prev": prev or {}, **more}
    return {"ts": ts, "op": "set", "id": id, "prev": prev, "data": data, **more}


def write_lines(path: Path, values: Iterable[Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))


def write_manifest(
    root: Path,
    *,
    snapshot: str = "snapshots/snap-1.json",
    activeOps: str = "ops/ops-1.jsonl",
    archives: Iterable[str] = (),
    **more: Any,
) -> None:
    stats = {"activeRecords": 0, "archivedRecords": 0, "opsCount": 0, "created": TS, "lastCheckpoint": TS}
    names = {"currentSnapshot": snapshot, "activeOps": activeOps, "archiveSegments": list(archives)}
    (root / "manifest.json").write_text(json.dumps({"version": 1, **names, "stats": stats, **more}, indent=2))
    if not (root / snapshot).exists():
        write_snapshot(root / snapshot, {})


def write_snapshot(path: Path, records: Any, *, indent: int | None = 2) -> None:
    """Write the format up to 0.6, which is one JSON value."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"version": 1, "timestamp": TS, "records": records}, indent=indent))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A directory as 0.2 wrote it: an indented snapshot, a log with whole previous documents, and an archive."""
    write_manifest(tmp_path, archives=["archive/archive-2026-Q1.json"])
    write_snapshot(tmp_path / "snapshots/snap-1.json", {"a": {"n": 1}, "b": {"n": 1}, "10": {}})
    write_lines(
        tmp_path / "ops/ops-1.jsonl",
        [op("a", {"n": 2}, prev={"n": 1}, encoding="full"), op("b", None, prev={"n": 1}), op("c", {"é": "日本"})],
    )
    archive = {"version": 1, "period": "2026-Q1", "timestamp": TS, "records": {"z": {"n": 9}}}
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive/archive-2026-Q1.json").write_text(json.dumps(archive, indent=2))
    return tmp_path


OLD = {"a": {"n": 2}, "10": {}, "c": {"é": "日本"}}


def test_the_format_of_0_2(old: Path) -> None:
    commits = list(read_backlog(old))
    assert replay(commits) == OLD
    assert commits[0].source == str(old / "snapshots/snap-1.json")
    assert commits[-1].source == f"{old / 'ops/ops-1.jsonl'}:3"
    assert commits[-1].ops == (ImportedOp("set", "c", {"é": "日本"}),)
    assert {commit.ts for commit in commits} == {"2026-04-09T12:00:00.123000Z"}
    assert list(read_backlog_archives(old)) == [("2026-Q1", "z", {"n": 9})]


def test_the_package_reads_the_hand_made_directory_alike(old: Path, start: Start) -> None:
    assert store_state(start, old) == OLD


def test_a_snapshot_that_is_json_on_one_line(old: Path) -> None:
    write_snapshot(old / "snapshots/snap-1.json", {"a": {"n": 1}, "b": {}, "10": {}}, indent=None)
    assert replay(read_backlog(old)) == OLD


def test_a_snapshot_of_0_7(old: Path) -> None:
    records = [{"id": "a", "data": {"n": 1}}, {"id": "b", "data": {}}, {"id": "10", "data": {}}]
    write_lines(old / "snapshots/snap-2.jsonl", [{"version": 1, "timestamp": TS}, *records])
    write_manifest(old, snapshot="snapshots/snap-2.jsonl")
    commits = list(read_backlog(old))
    assert replay(commits) == OLD
    assert commits[0].source == f"{old / 'snapshots/snap-2.jsonl'}:2"


def test_the_agents_of_0_3(tmp_path: Path) -> None:
    logs = {"w1": "ops/agent-w1-1.jsonl", "w 2": "ops/agent-w 2-2.jsonl"}
    write_manifest(tmp_path, activeOps=logs["w1"], activeAgentOps=logs)
    write_lines(tmp_path / logs["w1"], [op("x", {"by": 1}, agent="w1", clock=1), op("y", {}, agent="w1", clock=4)])
    later = [op("x", {"by": 2}, agent="w 2", clock=2), op("y", None, agent="w 2", clock=3)]
    write_lines(tmp_path / logs["w 2"], later)
    commits = list(read_backlog(tmp_path))
    assert replay(commits) == {"x": {"by": 2}, "y": {}}
    assert [commit.agent for commit in commits] == ["w1", "w-2", "w-2", "w1"]


def test_a_log_from_before_the_first_agent_is_orphaned_by_it(old: Path) -> None:
    """The package replays activeOps only as long as there are no agents, and drops it when the first agent
    registers."""
    (old / "ops/agent-w1-2.jsonl").touch()
    write_manifest(old, activeAgentOps={"w1": "ops/agent-w1-2.jsonl"})
    assert replay(read_backlog(old)) == {"a": {"n": 1}, "b": {"n": 1}, "10": {}}
    assert orphaned_logs(old) == [old / "ops/ops-1.jsonl"]
    assert replay(read_backlog(old, salvage=True)) == {"a": {"n": 1}, "b": {"n": 1}, "10": {}, "c": {"é": "日本"}}


def test_salvage_is_in_order_of_time_but_never_against_a_log(tmp_path: Path) -> None:
    def at(second: int) -> str:
        return f"2026-04-09T12:00:{second:02d}.000Z"

    write_manifest(tmp_path)
    write_lines(tmp_path / "ops/ops-1.jsonl", [])
    clock_set_back = [op("a", {"n": 3}, ts=at(3)), op("a", {"n": 4}, ts=at(1)), op("b", {"n": 5}, ts=at(5))]
    write_lines(tmp_path / "ops/agent-w1-10.jsonl", clock_set_back)
    write_lines(tmp_path / "ops/agent-w2-20.jsonl", [op("c", {"n": 2}, ts=at(2)), op("b", None, ts=at(5))])
    commits = list(read_backlog(tmp_path, salvage=True))
    assert [(commit.ops[0].id, (commit.ops[0].document or {}).get("n")) for commit in commits] == [
        *(("c", 2), ("a", 3), ("a", 4)),
        *(("b", 5), ("b", None)),  # at the same moment: the older log goes first
    ]


def test_salvage_keeps_what_changed_after_archiving(old: Path) -> None:
    orphaned = [op("z", {"n": 9}), op("y", {"n": True}), op("y", {"n": 1})]
    write_lines(old / "ops/ops-0.jsonl", orphaned)
    assert replay(read_backlog(old, salvage=True)) == OLD | {"y": {"n": 1}}
    write_lines(old / "ops/ops-0.jsonl", [*orphaned, op("z", {"n": 10})])
    assert replay(read_backlog(old, salvage=True)) == OLD | {"y": {"n": 1}, "z": {"n": 10}}


def test_an_archive_that_the_manifest_lost_is_read(old: Path) -> None:
    write_manifest(old, archives=[])
    assert list(read_backlog_archives(old)) == [("2026-Q1", "z", {"n": 9})]


@pytest.mark.parametrize(
    "torn", ['{"ts":"2026', '{"ts":"x","op":"set","id":"d","prev":null,"data":{"é":"\udcc3', "\0\0\0"]
)
def test_a_torn_last_line_is_normal(old: Path, torn: str) -> None:
    with (old / "ops/ops-1.jsonl").open("a", errors="surrogateescape") as log:
        log.write(torn)
    assert replay(read_backlog(old)) == OLD


@pytest.mark.parametrize("data", [r'{"x":"\ud800"}', '{"x":1,"x":2}', '{"x":1e999}', "7"])
def test_a_whole_last_line_that_is_not_exact_is_not_mistaken_for_a_torn_one(old: Path, data: str) -> None:
    with (old / "ops/ops-1.jsonl").open("a") as log:
        log.write(f'{{"ts":"{TS}","op":"set","id":"d","prev":null,"data":{data}}}')
    with pytest.raises(CorruptError, match="remove it from a copy"):
        list(read_backlog(old))


def test_a_whole_last_line_without_its_end_counts(old: Path) -> None:
    with (old / "ops/ops-1.jsonl").open("a") as log:
        log.write(json.dumps(op("d", {})))
    assert replay(read_backlog(old)) == OLD | {"d": {}}


BAD = {
    "torn": '{"ts":"20{"ts":"2026","op":"set"}',
    "blank id": json.dumps(op("", {})),
    "no previous document": '{"ts":"2026-04-09T12:00:00Z","op":"set","id":"a","data":{}}',
    "no document": json.dumps(op("a", {}) | {"data": None}),
    "a document that is a list": json.dumps(op("a", [])),
    "a delete of nothing": json.dumps(op("a", None) | {"prev": None}),
    "a delete with a document": json.dumps(op("a", None) | {"data": {}}),
    "an unknown op": json.dumps(op("a", {}) | {"op": "merge"}),
    "an unknown encoding": json.dumps(op("a", {}, encoding="zip")),
    "a blank agent": json.dumps(op("a", {}, agent="")),
    "a negative clock": json.dumps(op("a", {}, clock=-1)),
    "no time": json.dumps(op("a", {}, ts="noon")),
    "not an object": "[]",
    "a name twice": '{"ts":"2026-04-09T12:00:00Z","op":"set","id":"a","prev":null,"data":{"n":1,"n":2}}',
}


@pytest.mark.parametrize("line", BAD.values(), ids=BAD)
@pytest.mark.parametrize("salvage", [False, True])
def test_a_bad_line_of_a_log_is_corrupt(old: Path, line: str, salvage: bool) -> None:
    log = old / ("ops/ops-0.jsonl" if salvage else "ops/ops-1.jsonl")
    good = json.dumps(op("first", {})) + "\n"
    log.write_text(good + line + "\n" + good)
    with pytest.raises(CorruptError) as caught:
        list(read_backlog(old, salvage=salvage))
    assert caught.value.path == str(log)
    assert caught.value.offset in range(len(good), len(good + line))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("manifest.json", "{"),
        ("manifest.json", "{}"),
        ("manifest.json", '{"currentSnapshot":"s","activeOps":"","archiveSegments":[]}'),
        ("snapshots/snap-1.json", ""),
        ("snapshots/snap-1.json", '{"version":1,"timestamp":"x","records":[]}'),
        ("snapshots/snap-1.json", '{"version":1,"timestamp":"2026-04-09T12:00:00Z","records":{"a":1}}'),
        ("snapshots/snap-1.json", '{\n"version":1,\n'),
        ("snapshots/snap-1.json", '{"version":1}\n{"id":"a","data":{}}\n'),
        ("snapshots/snap-1.json", '{"version":1,"timestamp":"2026-04-09T12:00:00Z"}\n{"id":"a","data":null}\n'),
        ("snapshots/snap-1.json", '{"version":1,"timestamp":"2026-04-09T12:00:00Z"}\n{"id":"a","da'),
        ("snapshots/snap-1.json", None),
        ("ops/ops-1.jsonl", None),
        ("archive/archive-2026-Q1.json", '{"version":1'),
        ("archive/archive-2026-Q1.json", None),
    ],
)
def test_a_damaged_or_missing_file_is_named(old: Path, file: str, content: str | None) -> None:
    if content is None:
        (old / file).unlink()
    else:
        (old / file).write_text(content)
    with pytest.raises(CorruptError) as caught:
        list(chain(read_backlog(old), read_backlog_archives(old)))
    assert caught.value.path == str(old / file)
    assert str(old / file) in str(caught.value)


def test_another_directory_is_a_usage_error(tmp_path: Path) -> None:
    for read in (read_backlog, read_backlog_archives, orphaned_logs):
        with pytest.raises(UsageError, match="manifest"):
            list(read(tmp_path))


@pytest.mark.parametrize(
    "name", ["../outside.jsonl", "/etc/passwd", "ops/../../outside.jsonl", "ops/link.jsonl", "a\0b"]
)
@pytest.mark.parametrize("field", ["currentSnapshot", "activeOps", "archiveSegments"])
def test_a_manifest_that_names_files_elsewhere_is_refused(old: Path, field: str, name: str) -> None:
    """The directory may come from anybody, and others can read the store into which its files are imported."""
    (old.parent / "outside.jsonl").write_text('{"version":1,"timestamp":"2026-01-01T00:00:00Z","records":{"x":{}}}')
    (old / "ops" / "link.jsonl").symlink_to(old.parent / "outside.jsonl")
    manifest = json.loads((old / "manifest.json").read_text())
    manifest[field] = [name] if field == "archiveSegments" else name
    (old / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CorruptError, match="which is not inside") as caught:
        list(read_backlog_archives(old) if field == "archiveSegments" else read_backlog(old))
    assert caught.value.path == str(old / "manifest.json")
