"""opslog 0.1.0, as it was published, and this version use one store: each reads what the other one wrote."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import open_backend
from opslog.snapshot.manifests import ManifestStore
from opslog.verify.verify import verify
from tests.support.releases import release_in


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment where 0.1.0 is installed, from a wheel that is built from its commit. Skips the test if git does
    not have that commit."""
    folder = tmp_path_factory.mktemp("old")
    source = release_in(folder)
    build = ("wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder, source)
    subprocess.run([sys.executable, "-m", "pip", *build], check=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.startswith("opslog-0.1.0-")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    return folder / "installed"


def run(old: Path, program: str, *arguments: object) -> Any:
    """The output of a program that runs with 0.1.0, as JSON."""
    head = "import json, sys, opslog\n"
    done = subprocess.run(
        [sys.executable, "-c", head + program, *map(str, arguments)],
        env={"PYTHONPATH": str(old), "PATH": ""},
        cwd=old,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def documents(root: Path) -> dict[str, Any]:
    with opslog.open(root, read_only=True) as store:
        return dict(store.items())


READ = """
assert opslog.__file__.startswith(sys.path[0]) or "installed" in opslog.__file__, opslog.__file__
with opslog.open(sys.argv[1], read_only=True) as store:
    print(json.dumps(dict(store.items())))
"""


def test_a_store_with_transactions_is_read_by_the_old_version(old: Path, tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a", settings=opslog.Settings(undo_window=2)) as a:
        for number in range(6):
            a.create(f"claim-{number}", {"n": number})
        a["plain"] = {"f": 1.0}
        a.modify("claim-0", lambda document: None)
        with a.transaction() as transaction:
            transaction["x"] = {"n": 1}
            transaction["y"] = {"n": 2}
        a.changes()  # this creates the file with the id of the store
        a.modify("claim-1", lambda document: {"undone": True})
        assert a.undo()
        assert run(old, READ, tmp_path) == documents(tmp_path)
        a.compact()
        a.create("later", {})
        assert run(old, READ, tmp_path) == documents(tmp_path)
    printed = run(
        old,
        """
from opslog.backends import open_backend
from opslog.verify import verify
report = verify(open_backend(sys.argv[1]))
print(json.dumps([str(problem) for problem in report.problems if problem.severity == "error"]))
""",
        tmp_path,
    )
    assert printed == [], "and it finds nothing wrong"


def test_stores_written_and_compacted_by_the_old_version_stay_right(old: Path, tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a", settings=opslog.Settings(undo_window=2)) as a:
        for number in range(6):
            a.create(f"claim-{number}", {"n": number})
    printed = run(
        old,
        """
with opslog.open(sys.argv[1], agent="old", compact_after=None) as store:
    store["claim-0"] = {"by": "old"}
    del store["claim-1"]
    store["own"] = {"n": 1}
    store.compact(full=True)
    store["later"] = {}
    print(json.dumps(dict(store.items())))
""",
        tmp_path,
    )
    assert printed == documents(tmp_path)
    assert printed["claim-0"] == {"by": "old"}
    report = verify(open_backend(str(tmp_path)))
    assert [problem for problem in report.problems if problem.severity == "error"] == []
    with opslog.open(tmp_path, agent="a") as a:
        record = a.record("claim-2")
        assert record is not None
        assert (record.agent, record.by) == ("transactions", ""), "compacted by one that knows no authors"
        assert record.author == "transactions"
        a.set("claim-2", {"n": 3}, if_stamp=record.stamp)
        with pytest.raises(opslog.ConflictError):
            a.set("claim-2", {"n": 4}, if_stamp=record.stamp)
        with pytest.raises(opslog.ExistsError):
            a.create("claim-0", {})
    assert verify(open_backend(str(tmp_path))).ok


@pytest.mark.parametrize("compacted", [False, True])
def test_an_agent_of_the_old_version_with_the_name_of_the_shared_log_is_read(
    old: Path, tmp_path: Path, compacted: bool
) -> None:
    printed = run(
        old,
        """
settings = opslog.Settings(undo_window=2)
with opslog.open(sys.argv[1], agent="transactions", compact_after=None, settings=settings) as store:
    for number in range(5):
        store[f"d{number}"] = {"n": number}
    with store.batch():
        store["x"] = {}
        del store["d0"]
    store["undone"] = {}
    store.undo()
    if sys.argv[2] == "True":
        store.compact()
    print(json.dumps(dict(store.items())))
""",
        tmp_path,
        compacted,
    )
    assert printed == documents(tmp_path)
    assert verify(open_backend(str(tmp_path))).ok
    with pytest.raises(opslog.InvalidNameError, match="no agent is called 'transactions'"):
        opslog.open(tmp_path, agent="transactions")
    with opslog.open(tmp_path, agent="a") as store:
        assert not store.undo(), "nobody is the author of those"
        record = store.record("x")
        assert record is not None
        assert (record.author, record.by) == ("transactions", "")
        store.set("x", {"n": 1}, if_stamp=record.stamp)
        store.create("new", {})
        store["d1"] = {"plain": True}
        assert store.undo()
        store.compact(full=True)
        assert documents(tmp_path) == dict(store.items()) == printed | {"x": {"n": 1}, "new": {}}
    assert verify(open_backend(str(tmp_path))).ok
    assert run(old, READ, tmp_path) == documents(tmp_path)


def test_the_old_version_knows_nothing_of_the_ends_of_logs(old: Path, tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as a:
        a["x"] = {"n": 1}
        assert a.compact().number == 2
    manifests = ManifestStore(open_backend(str(tmp_path)))
    assert manifests.newest().log_ends.keys() == {"a"}
    printed = run(
        old,
        """
with opslog.open(sys.argv[1], agent="old", compact_after=None) as store:
    for number in range(40):
        store[str(number)] = {}
    store.compact()
    print(json.dumps(dict(store.items())))
""",
        tmp_path,
    )
    assert printed == documents(tmp_path)
    assert manifests.newest().log_ends == {}
    assert verify(open_backend(str(tmp_path))).ok
    with opslog.open(tmp_path, agent="b") as b:
        assert b.compact().number == 4
    assert manifests.newest().log_ends.keys() == {"a", "old"}
    assert verify(open_backend(str(tmp_path))).ok
