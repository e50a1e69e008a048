"""The demo ends well, its check finds planted errors, and it leaves no process running."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

import opslog
import opslog.demo
import opslog.format.commits
from opslog.demo import display
from opslog.demo.check import Documents, check, compare
from opslog.demo.display import Display
from opslog.demo.journal import Begin, Call, Change, End
from opslog.demo.page import PageServer
from opslog.demo.spark import replay
from opslog.demo.tasks import TakenOver, TaskFindings, check_tasks
from opslog.demo.workers import DemoError, Status
from opslog.format.commits import Commit
from opslog.format.manifest import decode_manifest, encode_manifest
from tests.cli.calling import at_terminal
from tests.support.waiting import until

CODE = (
    "import pathlib, sys, opslog.demo as demo; "
    "sys.exit(demo.main(seconds=3, directory=pathlib.Path(sys.argv[1]), spark=False, json={json}))"
)


# Records what the display gets.
NOTING = """
import json, opslog.demo.display as display
show = display.Display.show
def noting(self, agents, *rest, **options):
    statuses = {worker.name: msgspec.structs.asdict(worker.status) for worker in agents}
    open(sys.argv[2], "a").write(json.dumps(statuses) + chr(10))
    show(self, agents, *rest, **options)
display.Display.show = noting
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The directory and the summary of a short demo."""
    directory = tmp_path_factory.mktemp("demo") / "run"
    code = f"import msgspec, sys{NOTING}{CODE.format(json=True)}"
    arguments = [str(directory), str(directory.with_name("shown"))]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory, json.loads(done.stdout)


def test_nothing_is_lost_and_all_agree(finished: tuple[Path, dict[str, Any]]) -> None:
    _, summary = finished
    agents = ["agent-1", "agent-2", "agent-3", "agent-4"]
    assert summary["ok"]
    assert summary["problems"] == []
    assert (summary["lost"], summary["unknown"], summary["kills"]) == (0, 0, 1)
    assert sorted(summary["agents"]) == agents
    assert summary["agreeing"] == ["a fresh open", *agents]
    assert summary["commits"] == sum(agent["commits"] for agent in summary["agents"].values())
    assert summary["without_spark"] == "it was not asked for"
    for figure in ("commits", "conflicts", "undos", "batches", "compactions", "documents"):
        assert summary[figure] > 0, figure


def test_the_killed_agent_came_back_and_wrote(finished: tuple[Path, dict[str, Any]]) -> None:
    directory, summary = finished
    names = [path.name for path in sorted((directory / "journals").iterdir())]
    (back,) = [name.partition(".")[0] for name in names if ".002." in name]
    with opslog.open(directory / "store", read_only=True) as store:
        written = [commit for commit in store.ops() if commit.agent == back and b'"session":2' in _data(commit)]
    assert written
    assert {call["agent"] for call in summary["in_flight"]} <= {back}


def test_the_counts_of_an_agent_never_fall_and_all_end_as_done(finished: tuple[Path, dict[str, Any]]) -> None:
    directory, summary = finished
    shown = [json.loads(line) for line in directory.with_name("shown").read_text().splitlines()]
    for name, agent in summary["agents"].items():
        for count in ("commits", "undos", "batches", "conflicts", "tasks"):
            counts = [statuses[name][count] for statuses in shown if name in statuses]
            assert counts == sorted(counts), (name, count)
            assert counts[-1] == agent[count], "the summary says the same"
    assert {status["state"] for status in shown[-1].values()} == {"done"}
    (killed,) = [path.name.partition(".")[0] for path in (directory / "journals").iterdir() if ".002." in path.name]
    (found,) = {statuses[killed]["found"] for statuses in shown if statuses.get(killed, {}).get("found") is not None}
    before = max(statuses[killed]["commits"] for statuses in shown if statuses.get(killed, {}).get("found") is None)
    assert found >= before > 0, "and perhaps one that the kill kept from an answer"
    assert [name for name, status in shown[-1].items() if status["found"] is not None] == [killed]


def test_the_table_explains_its_words(tmp_path: Path) -> None:
    shown = at_terminal(tmp_path / "none", "demo", "--seconds", "1", "--agents", "2", "--no-spark", columns=120)
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).rpartition("several processes write")[2]
    assert re.findall(r"│ (agent-\d) │ (\w+) ", last) == [("agent-1", "done"), ("agent-2", "done")]
    assert re.search(r"agent-\d was killed and came back: it found [\d,]+ commits of its own", last)
    headings = set(last.partition("┃ agent")[2].partition("\n")[0].replace("┃", " ").split())
    assert headings - {"state", "commits/s"} == set(re.findall(r"^(\w+)  +[a-z]", last, re.MULTILINE))
    assert "All is well." in last


def test_lines_count_in_english_and_name_a_rate_that_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(display, "REAL", opslog.Environment(monotonic=lambda: now))
    agent, compactor = mock.Mock(is_killed=False), mock.Mock(status=Status("running", compactions=1))
    agent.name = "agent-1"
    shown = Display(10, quiet=False)
    for commits, state in ((1, "running"), (241, "running"), (250, "done")):
        agent.status = Status(state, commits=commits, tasks=1)
        shown.show([agent], compactor, {"agent-1": 1}, is_last=True)
        now += 2
    assert capsys.readouterr().out.splitlines() == [
        "1 commit, lag at most 0, 1 task done, 1 compaction; agent-1 running",
        "241 commits, 120 a second, lag at most 0, 1 task done, 1 compaction; agent-1 running",
        "250 commits, lag at most 0, 1 task done, 1 compaction; agent-1 done",
    ]


def test_tasks_are_done_once_and_that_of_the_killed_agent_too(finished: tuple[Path, dict[str, Any]]) -> None:
    directory, summary = finished
    finishes = sum(agent["tasks"] for agent in summary["agents"].values())
    unheard = sum(call["call"] == "finish" and call["in_history"] for call in summary["in_flight"])
    assert summary["tasks"] == finishes + unheard > 4
    (killed,) = [path.name.partition(".")[0] for path in (directory / "journals").iterdir() if ".002." in path.name]
    taken_over = [found["task"] for found in summary["taken_over"] if found["holder"] == killed]
    assert taken_over
    with opslog.open(directory / "store", read_only=True) as store:
        assert {store[task]["status"] for task in taken_over} == {"done"}
        tasks = store.filter(lambda document: "call" not in document)
    assert [document["status"] for _, document in tasks] == ["done"] * summary["tasks"]


def test_a_commit_missing_from_the_shared_log_is_found(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    copy = _copy(finished[0], tmp_path)
    newest = sorted((copy / "store" / "ops" / "transactions").iterdir())[-1]
    *kept, dropped = newest.read_bytes().splitlines(keepends=True)
    newest.write_bytes(b"".join(kept))
    _forget_ends(copy)
    findings, _ = check(copy)
    assert findings.lost == 1
    clock = json.loads(dropped)["clock"]
    assert [problem for problem in findings.problems if problem.startswith("lost") and problem.endswith(str(clock))]


def _forget_ends(copy: Path) -> None:
    """Manifests do not record the ends of logs. Otherwise the store could not be opened any more."""
    for path in (copy / "store" / "manifests").iterdir():
        manifest = decode_manifest(path.read_bytes(), path.name, int(path.stem))
        path.write_bytes(encode_manifest(msgspec.structs.replace(manifest, logs=msgspec.UNSET)))


def _data(commit: Commit) -> bytes:
    return bytes(commit.data) if isinstance(commit, opslog.Set) else b""


def test_a_commit_missing_from_a_log_is_found(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    copy = _copy(finished[0], tmp_path)
    newest = sorted((copy / "store" / "ops" / "agent-1").iterdir())[-1]
    *kept, dropped = newest.read_bytes().splitlines(keepends=True)
    newest.write_bytes(b"".join(kept))
    _forget_ends(copy)
    findings, _ = check(copy)
    assert findings.lost == 1
    clock = json.loads(dropped)["clock"]
    assert [problem for problem in findings.problems if problem.startswith("lost") and f'"clock":{clock},' in problem]


def test_a_call_missing_from_a_journal_is_found(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    copy = _copy(finished[0], tmp_path)
    journal = min((copy / "journals").iterdir())
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[2:]))  # the first call of every session is a set
    (clock,) = json.loads(lines[1])["clocks"]
    findings, _ = check(copy)
    assert findings.unknown >= 1  # so an undo of it belongs to nobody, too
    unknown = [problem for problem in findings.problems if problem.startswith("nobody made this commit")]
    assert [problem for problem in unknown if f'"clock":{clock},' in problem]


def test_an_agent_that_sees_something_else_is_found(finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    copy = _copy(finished[0], tmp_path)
    state = copy / "states" / "agent-2.jsonl"
    state.write_bytes(b"".join(state.read_bytes().splitlines(keepends=True)[1:]))
    findings, _ = check(copy)
    assert "agent-2" not in findings.agreeing
    assert [problem for problem in findings.problems if problem.startswith("agent-2 has")]


def _copy(directory: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "-r", str(directory), str(tmp_path / "copy")], check=True)
    return tmp_path / "copy"


@pytest.mark.slow
def test_spark_takes_the_last_act(tmp_path: Path) -> None:
    """It works on what a demo leaves: a store, and a place for states."""
    pytest.importorskip("pyspark")
    with opslog.open(tmp_path / "store") as store:
        for number in range(50):
            store[f"{number % 7}"] = {"n": number, "é": None}
        store.compact()
        del store["3"]
        expected = sorted(store.items())
    for name in ("errors", "states"):
        (tmp_path / name).mkdir()
    said: list[str] = []
    assert replay(tmp_path, said.append) is None
    assert list(dict.fromkeys(text.rpartition(":")[0] for text in said))[:2] == [
        *("Spark is starting", "Spark replays the store")
    ]
    lines = (tmp_path / "states" / "Spark.jsonl").read_bytes().splitlines()
    assert sorted((id, document) for id, document in map(json.loads, lines)) == expected


def test_the_demo_says_why_it_is_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opslog.demo.spark.spark_missing", lambda master: "there is no Java")
    assert replay(tmp_path) == "there is no Java"
    (tmp_path / "store").write_text("no store")
    for name in ("errors", "states"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("opslog.demo.spark.spark_missing", lambda master: None)
    said: list[str] = []
    with pytest.raises(DemoError, match="Spark could not replay the store"):
        replay(tmp_path, said.append)
    assert said[0].startswith("Spark is starting: ")


# The check itself, on one agent that set a document, set it again, and undid that.

FIRST, SECOND = {"value": 1}, {"value": 2}


def _calls() -> list[Call]:
    return [
        Call(Begin("set", [Change("a", FIRST)]), End(True, [1])),
        Call(Begin("set", [Change("a", SECOND)]), End(True, [2])),
        Call(Begin("undo"), End(True, [3])),
    ]


def _history() -> list[Commit]:
    return [
        opslog.Set("", 1, "x", "a", msgspec.Raw(b'{"value":1}')),
        opslog.Set("", 2, "x", "a", msgspec.Raw(b'{"value":2}')),
        opslog.Undo("", 3, "x", 2),
    ]


def test_the_check_accepts_what_is_right() -> None:
    findings = compare({"x": _calls()}, _history(), {"y": {"a": FIRST}})
    assert (findings.problems, findings.agreeing, findings.documents) == ([], ["y"], 1)


@pytest.mark.parametrize("happened", [True, False])
def test_an_interrupted_call_may_have_happened(happened: bool) -> None:
    calls = _calls()
    calls[2] = Call(calls[2].begin, None)
    state: Documents = {"a": FIRST if happened else SECOND}
    findings = compare({"x": calls}, _history()[: 3 if happened else 2], {"y": state})
    assert findings.problems == []
    assert findings.in_flight == [("x", "undo", happened)]


def _lose(calls: list[Call], history: list[Commit]) -> None:
    del history[1]


def _repeat(calls: list[Call], history: list[Commit]) -> None:
    history.append(history[0])


def _alter(calls: list[Call], history: list[Commit]) -> None:
    history[0] = opslog.Set("", 1, "x", "a", msgspec.Raw(b'{"value":3}'))


def _invent(calls: list[Call], history: list[Commit]) -> None:
    history.append(opslog.Delete("", 4, "z", "a"))


def _acknowledge_too_early(calls: list[Call], history: list[Commit]) -> None:
    calls[1] = Call(calls[1].begin, End(True, []))


def _write_what_was_rolled_back(calls: list[Call], history: list[Commit]) -> None:
    calls.append(Call(Begin("rollback", [Change("b", FIRST)]), End(False, [4])))
    history.append(opslog.Batch("", 4, "x", [opslog.format.commits.SetOp("b", msgspec.Raw(b'{"value":1}'))]))


def _undo_something_else(calls: list[Call], history: list[Commit]) -> None:
    history[2] = opslog.Undo("", 3, "x", 1)


def _refuse_an_undo(calls: list[Call], history: list[Commit]) -> None:
    calls[2] = Call(calls[2].begin, End(False, []))
    del history[2]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_lose, "lost"),
        (_repeat, "more than once"),
        (_alter, "found as"),
        (_invent, "nobody made"),
        (_acknowledge_too_early, "was acknowledged"),
        (_write_what_was_rolled_back, "changed nothing"),
        (_undo_something_else, "found as"),
        (_refuse_an_undo, "an undo was refused"),
    ],
)
def test_the_check_finds(damage: Callable[[list[Call], list[Commit]], None], words: str) -> None:
    calls, history = _calls(), _history()
    damage(calls, history)
    problems = compare({"x": calls}, history, {}).problems
    assert [problem for problem in problems if words in problem], problems


# The check of tasks, on one that x made and claimed, and that y took over and did.

OPEN_TASK = {"status": "open"}
DONE_TASK = {"status": "done"}


def _task_journals() -> dict[str, list[Call]]:
    return {
        "x": [
            Call(Begin("create", [Change("t", OPEN_TASK)]), End(True, [1000])),
            Call(Begin("claim", task="t"), End(True, [2000])),
            Call(Begin("finish", [Change("t", DONE_TASK)], "t"), End(False, [])),
        ],
        "y": [
            Call(Begin("create", [Change("t", OPEN_TASK)]), End(False, [])),
            Call(Begin("claim", task="t"), End(True, [3000])),
            Call(Begin("finish", [Change("t", DONE_TASK)], "t"), End(True, [4000])),
        ],
    }


def _shared(commit: Commit, by: str) -> Commit:
    return msgspec.structs.replace(commit, agent="transactions", by=by, tx="0")


def _lease(clock: int, by: str) -> Commit:
    data = json.dumps({"holder": by, "seconds": 1.0, "claim": by}).encode()
    return _shared(opslog.Set("", clock, "", "lease/t", msgspec.Raw(data)), by)


def _task_set(clock: int, by: str, status: str) -> Commit:
    return _shared(opslog.Set("", clock, "", "t", msgspec.Raw(json.dumps({"status": status}).encode())), by)


def _finish(clock: int, by: str) -> Commit:
    data = msgspec.Raw(b'{"status":"done"}')
    batch = opslog.Batch(
        "", clock, "", [opslog.format.commits.DeleteOp("lease/t"), opslog.format.commits.SetOp("t", data)]
    )
    return _shared(batch, by)


def _task_history() -> list[Commit]:
    return [_task_set(1000, "x", "open"), _lease(2000, "x"), _lease(3000, "y"), _finish(4000, "y")]


def test_the_check_of_tasks_accepts_what_is_right() -> None:
    history = _task_history()
    right = TaskFindings(history, [], 0, [], 1, {"t": 1}, [TakenOver("t", "x", "y")])  # type: ignore[arg-type]
    assert check_tasks(_task_journals(), history) == right


@pytest.mark.parametrize("happened", [True, False])
def test_an_interrupted_claim_may_have_happened(happened: bool) -> None:
    journals, history = _task_journals(), _task_history()
    journals["x"] = [journals["x"][0], Call(Begin("claim", task="t"), None)]
    findings = check_tasks(journals, history if happened else [history[0], *history[2:]])
    assert (findings.problems, findings.in_flight) == ([], [("x", "claim", happened)])
    assert len(findings.taken_over) == happened


@pytest.mark.parametrize(
    ("place", "commits", "words"),
    [
        (3, [], "lost: y's finish at clock 4000"),
        (3, [], "t was done 0 times"),
        (3, [_finish(3500, "x"), _finish(4000, "y")], "t was done 2 times"),
        (2, [_lease(3000, "x")], "is in the history as"),
        (3, [_task_set(4000, "y", "done")], "is in the history as"),
        (0, [_task_set(1000, "x", "open"), _task_set(1500, "y", "open")], "t was made 2 times"),
    ],
)
def test_the_check_of_tasks_finds(place: int, commits: list[Commit], words: str) -> None:
    history = _task_history()
    history[place : place + 1] = commits
    problems = check_tasks(_task_journals(), history).problems
    assert [problem for problem in problems if words in problem], problems


def test_a_transaction_that_nobody_made_is_found() -> None:
    history = [*_task_history(), _shared(opslog.Delete("", 5000, "", "t"), "z")]
    findings = compare(_task_journals(), history, {})
    assert (findings.unknown, findings.lost, findings.tasks) == (1, 0, 1)
    assert compare(_task_journals(), _task_history(), {"y": {"t": DONE_TASK}}).problems == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_demo(sent: signal.Signals, tmp_path: Path) -> None:
    """Workers hold the write end of this pipe as long as they live. So its end can be read when the last one is
    gone."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    code = "import subprocess; P = subprocess.Popen; subprocess.Popen = lambda *a, **k: P(*a, pass_fds=[PIPE], **k); "
    demo = subprocess.Popen(
        [sys.executable, "-c", code.replace("PIPE", str(writer)) + CODE.format(json=False), str(tmp_path / "run")],
        pass_fds=[writer],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    os.close(writer)
    with demo:
        assert demo.stdout is not None
        assert b"agent-4 running" in demo.stdout.readline()
        demo.send_signal(sent)
    assert demo.returncode != 0
    assert select.select([reader], [], [], 60)[0], "a worker is still running"
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_worker_that_dies_is_named(tmp_path: Path) -> None:
    """A store that cannot be opened, because its directory is a file."""
    code = (
        "import pathlib, sys, opslog.demo.run as run; make = run._working_directory\n"
        "def spoiled(directory):\n    work = make(directory); (work / 'store').write_text(''); return work\n"
        "run._working_directory = spoiled\n"
        "sys.exit(run.main(seconds=1, directory=pathlib.Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "ended by itself with exit code 1" in done.stderr
    assert str(tmp_path / "run") in done.stderr


def _demo(tmp_path: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    """A demo without a terminal."""
    known = {name: value for name, value in os.environ.items() if name not in {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}}
    command = [sys.executable, "-m", "opslog", "demo", "--agents", "2", "--no-spark", "--directory", *options]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**known, **environment},
    )


ADDRESS = re.compile(r"the page of the store (is open|can be opened): (http://127\.0\.0\.1:\d+)/#/store/demo\n")


@pytest.mark.long
@pytest.mark.parametrize("has_screen", [True, False])
def test_the_page_of_its_store_is_served_while_the_agents_work(tmp_path: Path, has_screen: bool) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened.part; mv {tmp_path}/opened.part {tmp_path}/opened\n')
    browser.chmod(0o755)
    environment = {"DISPLAY": ":7", "BROWSER": str(browser)} if has_screen else {}
    with _demo(tmp_path, "run", "--seconds", "3", "--page", **environment) as demo:
        assert demo.stdout is not None
        found = ADDRESS.match(demo.stdout.readline())
        assert found is not None
        assert found[1] == ("is open" if has_screen else "can be opened")
        described = json.loads(urllib.request.urlopen(f"{found[2]}/v1/store/demo", timeout=60).read())
        assert described["documents"] > 0
        assert urllib.request.urlopen(found[2], timeout=60).headers["content-type"].startswith("text/html")
        last = demo.stdout.read()
    assert demo.returncode == 0, last
    if has_screen:
        assert (tmp_path / "opened").read_text() == f"{found[2]}/#/store/demo\n"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(found[2], timeout=60)
    assert last.endswith(
        "To see its store: opslog serve --store demo=run/store\nand open http://127.0.0.1:4437/#/store/demo\n"
    )
    assert (tmp_path / "run" / "store").is_dir()


def test_the_server_of_the_page_ends_with_a_demo_that_is_killed(tmp_path: Path) -> None:
    with _demo(tmp_path, "run", "--seconds", "60", "--page") as demo:
        assert demo.stdout is not None
        found = ADDRESS.match(demo.stdout.readline())
        assert found is not None
        demo.kill()
        demo.stdout.read()  # its processes share this pipe, so it ends with the last of them

    def is_gone() -> bool:
        try:
            urllib.request.urlopen(found[2], timeout=60)
        except OSError:
            return True
        return False

    until(is_gone)


def test_a_page_that_cannot_be_served_is_said(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("no store")
    with pytest.raises(DemoError, match="the page could not be served"):
        PageServer(tmp_path / "store", tmp_path / "page.txt")


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(opslog.UsageError, match="is not empty"):
        opslog.demo.main(directory=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
