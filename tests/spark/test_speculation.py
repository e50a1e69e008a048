"""Tasks that Spark runs twice at once: both attempts do all their work, and it counts once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import opslog
from opslog.backends import open_backend
from opslog.verify.verify import verify
from tests.support.spark_cluster import cluster

PROGRAM = Path(__file__).parents[1] / "support" / "speculation_program.py"


SETTINGS = opslog.Settings(undo_window=3, grace_seconds=0)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, cluster(tmp_path_factory.mktemp("cluster")) as url:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        yield url


def run(master: str, url: Path, job: str) -> set[str]:
    """Run one job. Returns which attempts of which steps did all their work at once."""
    attempts = Path(f"{url}-attempts")
    attempts.mkdir()
    command = [sys.executable, str(PROGRAM), master, str(url), job]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.name for path in attempts.iterdir() if not path.is_symlink()}


def documents(url: Path) -> dict[str, object]:
    """All documents of a store that must be sound and have no extra files."""
    with closing(open_backend(str(url))) as backend:
        assert verify(backend).problems == []
        assert backend.list("staging/") == []
    with opslog.open(url, read_only=True) as store:
        return dict(store.items())


def test_parts_that_two_tasks_write_at_once(master: str, tmp_path: Path) -> None:
    url = tmp_path / "store"
    with opslog.open(url, agent="app", compact_after=None, durability="buffered", settings=SETTINGS) as store:
        for number in range(123):
            store[f"{number:03}"] = {"n": number, "text": "x" * 300_000}
        expected = dict(store.items())
    assert run(master, url, "compact") == {f"{step}-{n}" for step in ("write_parts", "write_rest") for n in (0, 1)}
    assert documents(url) == expected


def test_rows_that_two_tasks_bring_at_once(master: str, tmp_path: Path) -> None:
    url = tmp_path / "store"
    opslog.open(url, settings=SETTINGS).close()
    assert run(master, url, "append") == {"append-0", "append-1"}
    assert documents(url) == {f"new-{n}": {"n": n} for n in range(100)}
    with opslog.open(url, read_only=True) as store:
        assert [commit.agent for commit in store.ops()] == ["etl"]
