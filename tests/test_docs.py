"""The documents are true: their examples run, their links lead to existing places, and the specification of the format
is enough to read a store without opslog."""

from __future__ import annotations

import configparser
import hashlib
import importlib
import inspect
import json
import random
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opslog
from opslog.backends.local.fs import FsBackend
from opslog.environment import Environment
from opslog.format.checksum import encode_checked
from opslog.format.commits import DeleteOp, SetOp, decode_commits, encode_commit
from opslog.format.manifest import Cut, Manifest, Part, Run, decode_manifest, encode_manifest
from opslog.format.snapshot import Index, decode_index
from tests.support.documents import ROOT, blocks, name_of, run_examples
from tests.support.s3_servers import running

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FORMAT = ROOT / "docs" / "format.md"
SPARK = ROOT / "docs" / "spark.md"
"""Its examples run in tests/spark/test_examples.py, where there is a Spark."""
TUTORIAL = ROOT / "docs" / "tutorial.md"
"""tests/test_tutorial.py follows it."""
RECIPES = ROOT / "docs" / "recipes.md"
"""One of them needs a bucket."""
PUBLIC_MODULES = [
    "opslog.aio",
    *(f"opslog.{name}" for name in ("backends", "testing", "spark", "server", "server.client")),
]
"""The modules that docs/versions.md calls public."""


# -- examples


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in DOCUMENTS
        if path not in (SPARK, TUTORIAL, RECIPES) and any(block.language == "python" for block in blocks(path))
    ],
    ids=name_of,
)
def test_examples_run_and_print_what_is_shown(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All python blocks of a document run in order. A text block right after one shows what it prints."""
    run_examples(path, tmp_path, monkeypatch)


def test_recipes_run_and_print_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running("moto", tmp_path, bucket="my-bucket") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        run_examples(RECIPES, tmp_path, monkeypatch)
    (shown,) = [block.text for block in blocks(ROOT / "docs" / "s3.md") if block.language == "json"]
    made = sys.modules["document"].policy("bucket", "prefix", writes=True)
    assert json.loads(made) == json.loads(shown), "the policy of docs/s3.md"


def test_jobs_have_the_form_that_their_programs_read() -> None:
    jobs = [block for block in blocks(ROOT / "docs" / "operations.md") if block.language in ("cron", "ini", "yaml")]
    (cron,) = (block.text for block in jobs if block.language == "cron")
    assert re.fullmatch(r"(?:[-*/,0-9]+ +){5}\S.*\n", cron)
    units = [configparser.ConfigParser(interpolation=None) for _ in range(2)]
    for unit, block in zip(units, (block for block in jobs if block.language == "ini"), strict=True):
        unit.read_string(block.text)
    service, timer = units
    assert service["Service"]["Type"] == "oneshot"
    assert timer["Timer"]["OnCalendar"]
    (job,) = (block.text for block in jobs if block.language == "yaml")
    assert "kind: CronJob\n" in job
    assert "\t" not in job
    assert all((len(line) - len(line.lstrip())) % 2 == 0 for line in job.splitlines())
    for text in (cron, service["Service"]["ExecStart"], job.replace('", "', " ")):
        assert "opslog compact" in text


# -- links and coverage


def slugs(path: Path) -> set[str]:
    """The anchors that headings make."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_to_headings(path: Path) -> None:
    """test_tidy.py shows that the files exist."""
    links = re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", path.read_text(encoding="utf-8"))
    broken = [f"{file}#{anchor}" for file, anchor in links if anchor not in slugs(path.parent / file if file else path)]
    assert not broken


def code_in_documents() -> str:
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    return "\n".join(
        code for text in texts for code in re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```$", "", text))
    )


def test_public_names_are_documented() -> None:
    documented = set(re.findall(r"\w+", code_in_documents()))
    methods = {name for name, value in vars(opslog.Store).items() if inspect.isfunction(value) and name[0] != "_"}
    missing = sorted({*opslog.__all__, *methods} - documented)
    assert not missing, "name these in the table of docs/library.md, or elsewhere in docs/"


def test_public_names_have_docstrings() -> None:
    values = {name: getattr(opslog, name) for name in opslog.__all__}
    values |= {f"Store.{name}": value for name, value in vars(opslog.Store).items() if name[0] != "_"}
    silent = [
        name
        for name, value in values.items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and not value.__doc__
    ]
    assert not silent


@pytest.mark.parametrize("name", ["opslog", *PUBLIC_MODULES])
def test_the_reference_has_every_public_name_and_each_has_a_docstring(name: str) -> None:
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    listed = {found.rpartition(".")[2] for found in re.findall(r"^::: (opslog\.\w+)$", reference, re.MULTILINE)}
    whole = re.search(rf"^::: {re.escape(name)}\n((?: .*\n)*)", reference, re.MULTILINE)
    assert whole, "a section of docs/reference.md"
    members = set(re.findall(r"- (\w+)", whole[1]))
    module = importlib.import_module(name)
    values = {each: getattr(module, each) for each in module.__all__}
    if name == "opslog":  # its errors are shown with their module
        members |= listed | {each for each, value in values.items() if value.__module__ == "opslog.errors"}
    if members:
        assert members - listed <= {*module.__all__}
        assert not {*module.__all__} - members, "name these in docs/reference.md"
    kinds = (inspect.isclass, inspect.isfunction)
    assert not [
        each for each, value in values.items() if any(is_kind(value) for is_kind in kinds) and not value.__doc__
    ]


def test_every_public_module_is_in_the_reference() -> None:
    policy = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    named = policy.partition("The public API is")[2].partition(";")[0]
    assert {*re.findall(r"`(opslog\.[a-z.]+)`", named)} == {*PUBLIC_MODULES}


def test_every_parameter_of_open_is_described() -> None:
    parameters = set(inspect.signature(opslog.open).parameters)
    described = set(re.findall(r":param (\w+):", opslog.open.__doc__ or ""))
    assert parameters == described


def test_every_decision_is_listed() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in (ROOT / "docs/decisions").glob("*.md")} - {"README.md"}


# -- the specification of the format, held against the code


def test_every_stored_field_is_specified() -> None:
    specified = set(re.findall(r"`(\w+)`", FORMAT.read_text(encoding="utf-8")))
    kinds: list[type[msgspec.Struct]] = [
        *(opslog.Set, opslog.Delete, opslog.Batch, opslog.Undo, opslog.Seal, SetOp, DeleteOp),
        *(Manifest, opslog.Settings, Part, Index),
    ]
    fields = {field for kind in kinds for field in kind.__struct_fields__}
    assert not fields - specified
    for kind in (Cut, Run):
        assert all(f'"{field}":' in FORMAT.read_text(encoding="utf-8") for field in kind.__struct_fields__)


def test_settings_have_the_defaults_that_are_specified() -> None:
    text = FORMAT.read_text(encoding="utf-8")
    for field, value in msgspec.structs.asdict(opslog.Settings()).items():
        assert f"| `{field}` | {value:g} |" in text


def test_line_forms_are_what_is_written() -> None:
    (forms,) = (
        block.text.encode()
        for block in blocks(FORMAT)
        if block.language == "jsonl" and not block.before.startswith("`")
    )
    commits = decode_commits(forms, "format.md", 0)
    assert {commit.op for commit in commits} == {"set", "delete", "batch", "undo", "seal"}
    assert b"".join(map(encode_commit, commits)) == forms


def shown_files() -> dict[str, bytes]:
    """The files of the example store, by path."""
    return {
        block.before.strip("`"): block.text.encode()
        for block in blocks(FORMAT)
        if re.fullmatch(r"`\w+/[^`]+`", block.before)
    }


def show_store(root: Path) -> None:
    """Make the example store."""
    for path, data in shown_files().items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


def shown_state() -> Any:
    (state,) = (json.loads(block.text) for block in blocks(FORMAT) if block.before.endswith("The state:"))
    return state


def stored_files(root: Path) -> dict[str, bytes]:
    folders = ("manifests", "ops", "snapshots")
    files = (path for folder in folders for path in (root / folder).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def test_the_example_is_what_a_store_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FsBackend, "now", lambda self: 1795521608.5)
    ticks, nonces = iter(range(1795521600, 1795525200)), iter(range(100))  # the id is the first
    environment = Environment(time=lambda: float(next(ticks)), nonce=lambda: f"{next(nonces):016x}")
    settings = opslog.Settings(undo_window=2)
    with (
        opslog.open(tmp_path, agent="planner", environment=environment, settings=settings) as planner,
        opslog.open(tmp_path, agent="worker", environment=environment) as worker,
    ):
        planner["task-1"] = {"title": "Build API", "done": False}
        with planner.batch():
            planner["task-2"] = {"title": "Write tests"}
            del planner["task-1"]
        planner.undo()
        worker.refresh()
        worker["task-2"] = {"title": "Write tests", "done": True}
        worker["task-3"] = {"title": "Überprüfen 🚀"}
        planner.refresh()
        planner["task-4"] = {}
        planner["task-5"] = {}
        planner.compact()
        del worker["task-3"]
    with opslog.open(tmp_path, agent="planner", environment=environment) as planner:
        planner.undo()
        assert dict(planner) == shown_state()
    written = stored_files(tmp_path)
    del written["manifests/00000000000000000001.json"]
    assert written == shown_files()


def test_the_example_opens(tmp_path: Path) -> None:
    show_store(tmp_path)
    with opslog.open(tmp_path, read_only=True) as store:
        assert dict(store) == shown_state()
    assert Stranger(tmp_path).state() == shown_state()


def test_manifests_and_indexes_are_written_as_specified() -> None:
    for path, data in shown_files().items():
        if path.startswith("manifests/"):
            assert encode_manifest(decode_manifest(data, path, 2)) == data
        elif path.endswith(".index"):
            assert encode_checked(decode_index(data, path)) == data


# -- the stranger: a reader that knows docs/format.md and nothing of opslog


class Stranger:
    """Reads a store in a directory that nobody writes to meanwhile, and trusts no byte that it can check."""

    def __init__(self, root: Path) -> None:
        self.root = root
        number, path = max((int(path.stem), path) for path in (root / "manifests").glob("*.json"))
        self.manifest = self.checked(path)
        assert self.manifest["format"] == 1
        assert self.manifest["number"] == number
        self.window = self.manifest["settings"].get("undo_window", 32)

    def state(self) -> dict[str, Any]:
        winners = self.snapshot()
        for log in self.tails():
            cancelled = self.cancelled(log)
            for commit in log:
                if commit["clock"] in cancelled:
                    continue
                for record in self.records(commit):
                    best = winners.get(record["id"])
                    if best is None or self.stamp(record) > self.stamp(best):
                        winners[record["id"]] = record
        return {id: record["data"] for id, record in winners.items() if record["op"] == "set"}

    def snapshot(self) -> dict[str, Any]:
        winners: dict[str, Any] = {}
        for run in reversed(self.manifest["runs"]):
            ids: list[str] = []
            for part in run["parts"]:
                records = self.part(part)
                ids += [record["id"] for record in records]
                winners |= {record["id"]: record for record in records}
            assert ids == sorted(set(ids))
        assert sum(record["op"] == "set" for record in winners.values()) == self.manifest["documents"]
        return winners

    def part(self, part: dict[str, Any]) -> list[Any]:
        data = (self.root / part["path"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == part["sha256"]
        assert len(data) == part["bytes"]
        index = self.checked((self.root / part["path"]).with_suffix(".index"))
        assert (index["bytes"], index["sha256"]) == (part["bytes"], part["sha256"])
        end = 0
        for first, offset, length, crc in index["blocks"]:
            block = data[offset : offset + length]
            assert offset == end
            assert json.loads(block.split(b"\n")[0])["id"] == first
            assert f"{zlib.crc32(block):08x}" == crc
            end += length
        assert end == len(data)
        records = [json.loads(line) for line in data.splitlines()]
        assert len(records) == part["records"] == index["records"]
        assert sum(record["op"] == "set" for record in records) == part["live"]
        assert (records[0]["id"], records[-1]["id"]) == (part["first"], part["last"])
        return records

    def tails(self) -> Iterator[list[Any]]:
        for folder in (self.root / "ops").iterdir():
            cut = self.manifest["cut"].get(folder.name, {"segment": 1, "offset": 0})
            log: list[Any] = []
            expected = cut["segment"]
            for path in sorted(folder.iterdir()):
                number = int(path.stem)
                if number < cut["segment"]:
                    continue
                assert number == expected
                expected += 1
                data = path.read_bytes()[cut["offset"] if number == cut["segment"] else 0 :]
                log += [json.loads(line) for line in data.split(b"\n")[:-1]]
            assert all(commit["agent"] == folder.name for commit in log)
            clocks = [commit["clock"] for commit in log]
            assert clocks == sorted(set(clocks))
            yield log

    def cancelled(self, log: list[Any]) -> set[int]:
        found = set()
        for place, commit in enumerate(log):
            if commit["op"] == "undo":
                seals = [before for before, other in enumerate(log[:place]) if other["op"] == "seal"]
                start = max(0, place - self.window, seals[-1] + 1 if seals else 0)
                if any(other["clock"] == commit["target"] for other in log[start:place]):
                    found.add(commit["target"])
        return found

    @staticmethod
    def records(commit: dict[str, Any]) -> list[Any]:
        if commit["op"] == "batch":
            last = {op["id"]: {**op, "clock": commit["clock"], "agent": commit["agent"]} for op in commit["ops"]}
            return list(last.values())
        return [commit] if commit["op"] in ("set", "delete") else []

    @staticmethod
    def stamp(record: dict[str, Any]) -> tuple[int, str]:
        return record["clock"], record["agent"]

    @staticmethod
    def checked(path: Path) -> Any:
        data = path.read_bytes()
        body, tail = data[:-80], data[-80:]
        assert tail == f',"checksum":"{hashlib.sha256(body).hexdigest()}"}}\n'.encode()
        return json.loads(data)


def act(store: opslog.Store[Any], chance: random.Random) -> None:
    """One action of an agent."""
    id = chance.choice("abcdefghijklmnop")
    match chance.randrange(8):
        case 0:
            store.undo()
        case 1:
            store.pop(id, None)
        case 2:
            store.refresh()
        case 3:
            with store.batch():
                store[id] = {"batch": chance.random()}
                store.pop(chance.choice("abc"), None)
                store["last"] = {"of": id}
        case _:
            store[id] = {"n": chance.getrandbits(63), "text": chance.choice(["\u2028 ü 🚀", "\n", "", '"\\'])}


@pytest.mark.parametrize("seed", range(6))
def test_an_independent_reader_reads_what_the_store_reads(tmp_path: Path, seed: int) -> None:
    """Agents with stale views, sessions that come and go, torn tails, compactions, seals and garbage collection."""
    chance = random.Random(seed)
    settings = opslog.Settings(undo_window=3, grace_seconds=0.0, undo_ttl_seconds=0.0)
    root = tmp_path / "store"
    for _ in range(6):
        with ExitStack() as stack:
            agents = [
                stack.enter_context(opslog.open(root, agent=agent, settings=settings))
                for agent in chance.sample(["a", "b", "c.d", "E"], 3)
            ]
            for _ in range(60):
                act(chance.choice(agents), chance)
            if chance.random() < 0.8:
                agents[0].compact(full=chance.random() < 0.3)
            for _ in range(chance.randrange(20)):
                act(chance.choice(agents), chance)
        log = chance.choice(sorted((root / "ops").iterdir()))
        with max(log.iterdir()).open("ab") as file:
            file.write(b'{"ts":"2026-11-24T12:0')
        with opslog.open(root, read_only=True) as store:
            expected = dict(store)
        assert Stranger(root).state() == expected
    assert len(Stranger(root).manifest["runs"]) > 0


def test_the_independent_reader_notices_damage(tmp_path: Path) -> None:
    """Otherwise its checks above would prove nothing."""
    show_store(tmp_path)
    for path, data in shown_files().items():
        if path.startswith("ops/"):
            continue  # lines of logs carry no checksum
        for place in (0, len(data) // 2, len(data) - 2):
            changed = bytearray(data)
            changed[place] ^= 1
            (tmp_path / path).write_bytes(changed)
            with pytest.raises((AssertionError, ValueError)):
                Stranger(tmp_path).state()
        (tmp_path / path).write_bytes(data)
