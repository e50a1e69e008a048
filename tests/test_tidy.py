"""Rules of the house that no linter knows. Each failure says what to do instead."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import opslog

ROOT = Path(__file__).parents[1]
SOURCES = ("backends", "opslog", "server", "spark")
LINES_MAX = 600
"""The most lines that a reader takes in as one subject. Most modules should have a quarter of that."""


def texts(*suffixes: str) -> Iterator[tuple[str, str]]:
    """The path, relative to the checkout, and the content of each text file that people write."""
    folders = (ROOT / name for name in (*SOURCES, "benchmarks", "docs", "examples", "tests", ".ci"))
    files = [path for folder in folders for path in folder.rglob("*")] + list(ROOT.iterdir())
    for path in sorted(files):
        written = path.suffix in suffixes or (not suffixes and path.name in {"Makefile", "run", "release", "pythons"})
        if written and path.is_file():
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def all_texts() -> Iterator[tuple[str, str]]:
    yield from texts()
    yield from texts(".md", ".py", ".toml", ".yaml", ".yml")


def places(pattern: str) -> list[str]:
    """Where `pattern` occurs in any text, as file:line: text."""
    return [
        f"{path}:{number}: {line.strip()}"
        for path, text in all_texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if re.search(pattern, line)
    ]


def imports(path: Path) -> set[str]:
    """Every module that the file at `path` imports, wherever in the file."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


def test_no_paths_of_one_machine() -> None:
    found = places(r"(?<![\w.$}~*-])/(?:home|root|Users|work)/\w")
    assert not found, "paths of somebody's machine: compute them, or use a placeholder\n" + "\n".join(found)


def test_no_notes_to_self() -> None:
    found = places(r"\b(?:TO|FIX)(?:DO|ME)\b")
    assert not found, "do it now, or open an issue: notes in the code are not read again\n" + "\n".join(found)


def test_modules_are_short() -> None:
    long = [f"{path}: {lines} lines" for path, text in texts(".py") if (lines := text.count("\n")) > LINES_MAX]
    assert not long, f"split these by subject, they are over {LINES_MAX} lines\n" + "\n".join(long)


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{path}: {target}"
        for path, text in texts(".md")
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
        if not (ROOT / path).parent.joinpath(target).exists()
    ]
    assert not broken, "links to files that do not exist\n" + "\n".join(broken)


def test_tests_mirror_the_folders() -> None:
    """A test is in the folder named like the one it tests. Tests of the whole are directly in tests/. Tests that check
    the promises of an open store from outside are in tests/store/. Each further kind of test has a folder: simulation,
    power cuts, fuzzing, transactions of processes."""
    tested = {path.name for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.is_dir()}
    folders = {path.parent.name for path in (ROOT / "tests").rglob("test_*.py")}
    kinds = {"store", "simulation", "fuzz", "interrupts", "powercut", "benchmarks", "docs", "transactions"}
    strangers = folders - tested - {*SOURCES, "tests"} - kinds
    assert not strangers, f"name these folders of tests/ after the source folders they test: {strangers}"


def test_changelog_knows_this_version() -> None:
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sections[0] == "[Unreleased]", "what is done next has a place"
    newest = re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", sections[1])
    assert newest, "each release has a number and a date"
    if opslog.__version__ != newest[1]:
        assert re.fullmatch(r"\d+\.\d+\.\d+\.dev0", opslog.__version__), "docs/versions.md says how it goes on"
        coming = opslog.__version__.removesuffix(".dev0")
        assert [*map(int, coming.split("."))] > [*map(int, newest[1].split("."))], "it comes after the last release"


def test_no_merge_was_left_half_done() -> None:
    found = places(r"^(?:<{7}|>{7})(?: |$)|^={7}$")
    assert not found, "resolve these conflicts\n" + "\n".join(found)


def test_every_exception_to_a_rule_has_a_reason() -> None:
    """Every rule that pyproject.toml switches off has a comment on its line."""
    config = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lint = tomllib.loads(config)["tool"]["ruff"]["lint"]
    rules = {*lint["ignore"], *(rule for rules in lint["per-file-ignores"].values() for rule in rules)}
    silent = [line for line in config.splitlines() if any(f'"{rule}"' in line for rule in rules) and "#" not in line]
    assert not silent, "say why, on the same line\n" + "\n".join(silent)


def test_core_knows_no_concrete_backend() -> None:
    modules = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "backends").rglob("[a-z]*.py")]
    concrete = {f"opslog.{'.'.join(module.parts)}" for module in modules} - {
        "opslog.backends.contract",
        "opslog.backends.forking",  # what all of them, and the store, know about forks
        "opslog.backends.places",  # the places of URLs, of any kind
        "opslog.backends.registry",
    }
    known = {
        path.relative_to(ROOT).as_posix(): found
        for path in (ROOT / "opslog").rglob("*.py")
        if path.parent.name != "testing"  # it simulates two of them, and runs them on the simulation
        and (found := imports(path) & concrete)
    }
    assert not known, f"go through the contract and the registry of URL schemes: {known}"


def words_of(column: int) -> list[str]:
    """A column of the table of words in CONTRIBUTING.md: 1 has the words in use, 3 the retired ones."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("### Words")[2].partition("\n## ")[0]
    cells = [line.split("|")[column].strip() for line in text.splitlines() if line.startswith("| ")][2:]
    return [word for cell in cells for word in cell.split(", ") if word]


def pattern_of(words: Iterable[str]) -> str:
    """A regular expression for any of some words and phrases, with `~` for the endings of a verb."""
    return "|".join(
        r"[\s_#\"'.-]+".join(re.escape(part).replace("\\~", "(?:s|ed|ing)?") for part in word.split()) for word in words
    )


def uses(retired: Iterable[str], text: str, used: Iterable[str] = ()) -> list[tuple[int, str]]:
    """The line and form of every use, also as a part of a name (`_late_seals`), and across the end of a line. A word in
    use that begins with a retired one (look up: look) does not count."""
    found = re.finditer(rf"(?i)(?<![a-z])(?!(?:{pattern_of(used)})(?![a-z]))(?:{pattern_of(retired)})s?(?![a-z])", text)
    return [(text.count("\n", 0, use.start()) + 1, " ".join(use[0].split())) for use in found]


def test_uses_of_a_word_are_found_in_names_and_across_lines() -> None:
    assert uses(["orphan", "late seal"], "Orphans, a late\n# seal,\nof_late_seals and orphaned") == [
        (1, "Orphans"),
        (1, "late # seal"),
        (3, "late_seals"),
    ]
    assert uses(["look~", "cut place"], "looked up, cut.place and\nlooks_at; lookup", ["look~ up"]) == [
        (1, "cut.place"),
        (2, "looks"),
    ]


def test_retired_words_are_not_used() -> None:
    retired, used = words_of(3), [word for word in words_of(1) if "~" in word]
    assert {"orphan", "late seal", "look~"} <= {*retired}
    assert used
    found = [
        f"{path}:{line}: {use}"
        for path, text in all_texts()
        if path not in ("CONTRIBUTING.md", "CHANGELOG.md", "tests/test_tidy.py")
        for line, use in uses(retired, text, used)
    ]
    assert not found, "CONTRIBUTING.md says which word to use instead\n" + "\n".join(found)


PURE_FOLDERS = ("opslog/format", "opslog/merge", "opslog/query", "server/protocol")
"""Modules that decide and encode. They know nothing of files, threads and processes."""

NOT_PURE = ("opslog/merge/clock.py",)
"""Modules with a counter that threads share."""

IMPURE = {
    "asyncio",
    "fcntl",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "portalocker",
    "socket",
    "subprocess",
    "threading",
}


@pytest.mark.parametrize(
    "path",
    sorted(
        {path.relative_to(ROOT).as_posix() for folder in PURE_FOLDERS for path in (ROOT / folder).glob("*.py")}
        - {*NOT_PURE}
    ),
)
def test_core_is_pure(path: str) -> None:
    found = {module for module in imports(ROOT / path) if module.partition(".")[0] in IMPURE}
    assert not found, f"{path} decides and encodes only; move what touches the machine to its caller: {found}"


SLOW_TO_IMPORT = {
    "asyncio",
    "concurrent.futures",
    "fsspec",
    "hashlib",
    "importlib.metadata",
    "logging",
    "multiprocessing",
    "portalocker",
    "rich",
    "shutil",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "traceback",
    "urllib.parse",
}
"""Modules, our own and others', that take a noticeable part of the time to open and read a store."""


NOT_FOR_READING = {
    "opslog.archive",
    "opslog.compaction.compact",
    "opslog.compaction.garbage",
    "opslog.concurrency.exiting",
    "opslog.history",
    "opslog.lease",
    "opslog.log.session",
    "opslog.log.shared",
    "opslog.log.writer",
    "opslog.notebook",
    "opslog.options",
    "opslog.query.question",
    "opslog.replica.deciding",
    "opslog.replica.feed",
    "opslog.replica.keys",
    "opslog.replica.questions",
    "opslog.replica.transaction",
    "opslog.snapshot.identity",
    "opslog.stats",
}
"""Modules that a program does not need to open a store and read a document."""


def loaded_by(code: str, *arguments: str) -> set[str]:
    """The modules that a program loads, besides those with which Python starts."""
    printing = "print(json.dumps(sorted(set(sys.modules) - old)))"
    code = f"import atexit, json, sys; old = set(sys.modules); atexit.register(lambda: {printing}); {code}"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_is_light() -> None:
    """`import opslog` loads these foreign packages and no more. Only those who use the rest load it."""
    loaded = loaded_by("import opslog")
    optional = {"typing_extensions"}  # msgspec uses it if it happens to be installed
    third_party = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names - optional - {"opslog"}
    assert third_party == {"msgspec", "orjson"}, "import what only some users need inside the function that needs it"
    assert not loaded & (SLOW_TO_IMPORT | NOT_FOR_READING), "likewise: these take time, and few programs use them"


def test_late_imports_exist() -> None:
    """Names that `import opslog` does not load exist on the page as soon as somebody uses them."""
    for name in opslog.__all__:
        assert getattr(opslog, name) is getattr(opslog, name)
        assert name in dir(opslog)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        opslog.Nothing  # noqa: B018


def test_reading_one_document_from_a_shell_is_light(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["task-1"] = {"title": "Build API"}
    loaded = loaded_by("from opslog.cli import main; main()", "--store", str(tmp_path), "get", "task-1")
    assert "opslog.cli.reading" in loaded
    assert not loaded & {*SLOW_TO_IMPORT, "click"}, "import these where they are used: everybody waits for them"
    commands = {f"opslog.cli.{name}" for name in ("feed", "listing", "maintenance", "past", "transfer", "query")}
    others = {"opslog.aio", "opslog.importers", *commands}
    assert not loaded & others, "these belong to other commands"
    ours = {name for name in loaded if name.partition(".")[0] == "opslog"}
    assert not ours & NOT_FOR_READING, "a get needs none of these: import them where they are used"
    assert len(ours) <= 78, f"{len(ours)} of our modules for one get: {sorted(ours)}"


def test_writing_one_document_from_a_shell_loads_nothing_that_only_servers_need(tmp_path: Path) -> None:
    loaded = loaded_by("from opslog.cli import main; main()", "--store", str(tmp_path), "set", "task-1", "{}")
    assert "opslog.doors.operations" in loaded
    others = ("archive", "compaction.compact", "doors.activity", "doors.once", "doors.description", "replica.feed")
    assert not loaded & {f"opslog.{name}" for name in others}, "import these where they are used"
    ours = {name for name in loaded if name.partition(".")[0] == "opslog"}
    assert len(ours) <= 109, f"{len(ours)} of our modules for one set: {sorted(ours)}"


def documented(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


TAG = r":(?:raises|ivar|param|returns)\b[^:\n]*:"


def test_docstrings_can_be_read_by_a_tool() -> None:
    """Each tag begins a line, names one thing and says something. A comment above a name, or the docstring, describes
    the name; a string that nothing uses does not."""
    found = []
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in documented(tree):
                lines = (ast.get_docstring(node) or "").splitlines()
                name = f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}"
                found += [f"{name}: {line.strip()}" for line in lines if re.search(rf"\S.*{TAG}(?:\s|$)", line)]
                found += [f"{name}: {line.strip()} names two" for line in lines if re.match(r"\s*:raises [^:]*,", line)]
                found += [f"{name}: {line.strip()} is empty" for line in lines if re.fullmatch(rf"\s*{TAG}\s*", line)]
            bodies = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
            strings = [
                statement.lineno
                for body in bodies
                for statement in body[1:]
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                if isinstance(statement.value.value, str)
            ]
            found += [f"{path.relative_to(ROOT)}:{line}: a string as a statement" for line in strings]
    assert not found, "one tag a line, with what it says; comments for the rest\n" + "\n".join(found)


def test_tests_that_are_named_exist() -> None:
    """If code or a document names a test, a test of that name exists."""
    there = set[str]()
    for path in (ROOT / "tests").rglob("*.py"):
        there.add(path.stem)
        there |= {
            node.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
    for path in (ROOT / "backends").glob("testing*.py"):
        there |= set(re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")))
    named = [
        (path, name)
        for path, text in [*texts(".py"), *texts(".md")]
        if not path.startswith(("tests/", "CHANGELOG"))
        for name in re.findall(r"(?<![\w/-])test_\w+", text)
    ]
    missing = [f"{path}: {name}" for path, name in named if name not in there]
    assert not missing, "no test has these names\n" + "\n".join(sorted(set(missing)))


def test_nobody_appends_to_a_log_but_through_a_session() -> None:
    sources = [path for folder in ("opslog", "spark") for path in (ROOT / folder).rglob("*.py")]

    def users(pattern: str) -> set[str]:
        return {
            path.relative_to(ROOT).as_posix()
            for path in sources
            if "opslog/testing/" not in path.as_posix() and re.search(pattern, path.read_text(encoding="utf-8"))
        }

    assert users(r"appender\.append\(") == {"opslog/log/session.py"}
    assert users(r"backend\.appender\(") == {"opslog/log/session.py", "opslog/log/sealing.py"}
    names = users(r"(?<!def )take_name\(") | users(r"backend\.appender\(")
    sessions = users(r"(?<!class )WriterSession\(")
    assert names - {"opslog/opening.py", "opslog/log/session.py"} == sessions - {
        "opslog/replica/replica.py",
        "opslog/log/shared.py",
    }
    assert users(r"(?<!def )append_at\(") == {"opslog/log/shared.py"}
