"""The modules of the project: what each imports, which floor it is on, and where it is tested.

`python -m tests.support.house` writes these facts into docs/architecture.md and docs/modules.md.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"opslog": "opslog", "backends": "opslog.backends", "server": "opslog.server", "spark": "opslog.spark"}
"""Folders of the checkout, and the names under which they are imported."""

TESTED_IN = {"testing": "simulation"}
"""Folders of tests whose name differs from that of the folder they test."""

Floors = list[tuple[str, ...]]
"""From the lowest floor up. Modules of one floor may not import each other, unless they are in one folder."""

FLOORS: Floors = [
    ("opslog.kernel",),
    ("opslog.errors", "opslog.environment", "opslog.chunks", "opslog.notebook", "opslog.logs"),
    ("opslog.format",),
    ("opslog.backends",),
    ("opslog.merge", "opslog.concurrency", "opslog.query"),
    ("opslog.snapshot",),
    ("opslog.log",),
    ("opslog.compaction",),
    ("opslog.replica",),
    ("opslog.history", "opslog.archive", "opslog.stats", "opslog.verify"),
    ("opslog.tables",),
    ("opslog.options",),
    ("opslog.store",),
    ("opslog.opening", "opslog.lease"),
    ("opslog.aio",),
    ("opslog",),  # the public page
    ("opslog.doors",),
    ("opslog.importers",),
    ("opslog.bulk",),
    ("opslog.testing",),
    ("opslog.server", "opslog.spark", "opslog.mcp"),
    ("opslog.cli.engines",),
    ("opslog.demo",),
    ("opslog.cli",),
    ("opslog.__main__", "opslog.spark.__main__"),  # commands
]

SERVER: Floors = [
    ("opslog.server.protocol",),
    ("opslog.server.options", "opslog.server.background", "opslog.server.metrics"),
    ("opslog.server.storage",),
    ("opslog.server.followers",),
    ("opslog.server.streams",),
    ("opslog.server.registry", "opslog.server.stores"),
    ("opslog.server.subscriptions",),
    ("opslog.server.http",),
    ("opslog.server",),
    ("opslog.server.client", "opslog.server.page"),
]

SPARK: Floors = [
    ("opslog.spark.errors",),
    ("opslog.spark.java",),
    ("opslog.spark.sessions",),
    ("opslog.spark.stores",),
    ("opslog.spark.read",),
    ("opslog.spark.write",),
    ("opslog.spark.stream",),
    ("opslog.spark.source",),
    ("opslog.spark.compaction",),
    ("opslog.spark",),
    ("opslog.spark.jobs",),
    ("opslog.spark.__main__",),
]


@cache
def modules() -> dict[str, Path]:
    """The file of each module, including packages."""
    found = {}
    for folder, package in PACKAGES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "discovery" not in path.parts:  # a name that Spark searches for
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                found[".".join([package, *parts]).removesuffix(".__init__")] = path
    return found


@cache
def _names(path: Path) -> list[ast.AST]:
    """The places where a file imports something, or uses an attribute."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom | ast.Attribute)]


def imported(path: Path) -> Iterator[str]:
    """Which of our modules a file imports: at its head, in a function, or only for types."""
    for node in _names(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module in modules():
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules() else node.module


@cache
def imports() -> dict[str, set[str]]:
    """For each of our modules, which others it imports."""
    return {module: set(imported(path)) - {module} for module, path in modules().items()}


def floor_of(module: str, floors: Floors) -> tuple[int, str]:
    """The number of its floor, and the name under which the floor lists it: the longest one that fits.

    :raises LookupError: it is on none.
    """
    packages = {"opslog", "opslog.server", "opslog.spark"} if floors is not FLOORS else {"opslog"}
    fitting = [
        (len(name), number, name)
        for number, names in enumerate(floors)
        for name in names
        if module == name or (name not in packages and module.startswith(f"{name}."))
    ]
    if not fitting:
        raise LookupError(f"{module} is on no floor: list it in tests/support/house.py")
    _, number, name = max(fitting)
    return number, name


def picture(floors: Floors, package: str) -> str:
    """The floors and the imports between them, in the language of Mermaid. It leaves out arrows that follow from
    others."""
    below: dict[str, set[str]] = {name: set() for names in floors for name in names}
    for module, others in imports().items():
        if module.startswith(package):
            name = floor_of(module, floors)[1]
            below[name] |= {floor_of(other, floors)[1] for other in others if other.startswith(package)} - {name}
    reached: dict[str, set[str]] = {}
    for names in floors:
        for name in names:
            reached[name] = below[name].union(*(reached[other] for other in below[name]))
    lines = ["```mermaid", "flowchart TD"]
    for names in reversed(floors):
        for name in names:
            direct = below[name] - set().union(*(reached[other] for other in below[name]))
            lines += [f"    {_shown(name, package)} --> {_shown(other, package)}" for other in sorted(direct)]
    return "\n".join([*lines, "```"])


def _shown(name: str, package: str) -> str:
    """A module as a node: `opslog.log` is shown as `log`. Its key ends in a character that no word of Mermaid's ends
    in."""
    short = name.removeprefix(f"{package}.")
    return f'{short.replace(".", "_")}_["{short}"]'


def table() -> str:
    """Every module by folder, with its purpose in its own words and its tests."""
    lines: list[str] = []
    for package in sorted({module.rpartition(".")[0] if not _is_package(module) else module for module in modules()}):
        inside = [m for m in modules() if m.rpartition(".")[0] == package and not _is_package(m)]
        folder = modules()[package].parent.relative_to(ROOT).as_posix()
        lines += [f"### {folder}/", "", _first_sentence(modules()[package]), ""]
        if inside:
            lines += ["| module | what it is for | tests |", "| --- | --- | --- |"]
            lines += [f"| `{m.rpartition('.')[2]}` | {_first_sentence(modules()[m])} | {_tests(m)} |" for m in inside]
            lines.append("")
    return "\n".join(lines)


def _is_package(module: str) -> bool:
    return modules()[module].name == "__init__.py"


def _first_sentence(path: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0].split())
    end = re.search(r"[.:](?= [A-Z`]|$)", text)
    return (text[: end.start()] if end else text.rstrip(":.")).replace("|", "\\|") + "."


@cache
def _test_files() -> list[Path]:
    return sorted((ROOT / "tests").rglob("test_*.py"))


def _dotted(node: ast.expr) -> str:
    """The attributes of a name, as written; empty for attributes of anything else."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@cache
def _test_imports() -> dict[str, Counter[str]]:
    """For each module, the tests that import it, or use it as an attribute of a package, as in `opslog.aio.open`."""
    found: dict[str, Counter[str]] = {}
    for path in _test_files():
        used = {_dotted(node) for node in _names(path) if isinstance(node, ast.Attribute)}
        for module in [*imported(path), *(used & modules().keys())]:
            found.setdefault(module, Counter())[path.relative_to(ROOT).as_posix()] += 1
    return found


def folder_of_tests(module: str) -> Path:
    """The folder of tests that is nearest to a module's own folder."""
    folder = ROOT / "tests"
    for part in module.split(".")[1:]:
        inner = folder / TESTED_IN.get(part, part)
        if not inner.is_dir():
            break
        folder = inner
    return folder


def is_test_of(path: Path, module: str) -> bool:
    """Whether a test with a module's name tests this module: it uses the module, or it is in the folder of the module's
    tests. Tests of commands and processes import nothing."""
    users = _test_imports().get(module, ())
    return path.relative_to(ROOT).as_posix() in users or path.parent == folder_of_tests(module)


def _tests(module: str) -> str:
    """The tests named after a module; or those that use it; or, if only other modules use it, the tests of those
    modules."""
    stem, folder = module.rpartition(".")[2], folder_of_tests(module)
    whole = f"{folder.relative_to(ROOT).as_posix()}/"
    named = [path for path in _test_files() if path.stem == f"test_{stem}" and is_test_of(path, module)]
    if folder.name == stem:
        found = [whole]
    elif named:
        found = sorted(path.relative_to(ROOT).as_posix() for path in named)
    elif module in _test_imports():
        found = sorted(_test_imports()[module], key=lambda path: (-_test_imports()[module][path], path))
    elif users := sorted(user for user, needed in imports().items() if module in needed):
        shown = [f"`{user.removeprefix('opslog.')}`" for user in users[:3]]
        return f"through {', '.join(shown)}"
    elif folder == ROOT / "tests":
        return "by running it"
    else:
        found = [whole]  # a command, which nothing imports
    return ", ".join(f"[{path.removeprefix('tests/')}](../{path})" for path in found[:3])


def documents() -> dict[Path, str]:
    """The documents with their generated parts as they should be."""
    architecture, index = ROOT / "docs/architecture.md", ROOT / "docs/modules.md"
    text = architecture.read_text(encoding="utf-8")
    for name, floors, package in (
        ("library", FLOORS, "opslog"),
        ("server", SERVER, "opslog.server"),
        ("spark", SPARK, "opslog.spark"),
    ):
        mark, end = f"<!-- floors: {name} -->\n", "<!-- end -->"
        before, _, rest = text.partition(mark)
        text = f"{before}{mark}\n{picture(floors, package)}\n\n{end}{rest.partition(end)[2]}"
    head = index.read_text(encoding="utf-8").partition("<!-- modules -->")[0] if index.exists() else ""
    return {architecture: text, index: f"{head}<!-- modules -->\n\n{table()}"}


def main() -> None:
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
