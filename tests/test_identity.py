"""The id of a store, in `store.json`: who has one, what it refuses, and what becomes of a damaged one."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import opslog
from opslog.backends import open_backend
from opslog.backends.local.fs import FsBackend
from opslog.format.layout import STORE
from opslog.replica.token import Token
from opslog.verify.verify import verify
from tests.support import bucket  # noqa: F401  (stores at bucket://)
from tests.test_changes import open_writer, seen

_numbers = itertools.count()


@pytest.fixture(params=["directory", "memory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "directory" else f"{request.param}://identity-{next(_numbers)}"


def test_a_token_of_another_store_is_refused(tmp_path: Path) -> None:
    with open_writer(str(tmp_path / "one"), "a") as one, open_writer(str(tmp_path / "two"), "a") as two:
        token = one.changes().token
        with pytest.raises(opslog.UsageError, match="of another store"):
            two.changes(token)


def test_a_store_without_an_id_gets_one_from_a_writer(url: str) -> None:
    with open_writer(url, "a") as store:
        with opslog.open(url, read_only=True) as reader:
            token = reader.changes().token
        store["x"] = {}
        changes = store.changes(token)
        assert not changes.reset
        with opslog.open(url, read_only=True) as reader:
            assert seen(reader.changes(token)) == [("x", {}, False)]
            assert Token.parse(reader.changes(token).token).store == Token.parse(changes.token).store != ""


def test_a_damaged_id_is_an_error(tmp_path: Path) -> None:
    with open_writer(str(tmp_path), "a") as store:
        store.changes()
    (tmp_path / STORE).write_bytes(b'{"id":"x"}\n')
    with open_writer(str(tmp_path), "a") as store, pytest.raises(opslog.CorruptError, match=STORE):
        store.changes()
    (problem,) = verify(open_backend(str(tmp_path))).problems
    assert (problem.severity, problem.path) == ("error", STORE)


def test_a_name_that_the_storage_cannot_read_is_a_problem_that_verify_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_writer(str(tmp_path), "a") as store:
        store.changes()
    read = FsBackend.read

    def fail(self: FsBackend, path: str, start: int = 0, stop: int | None = None) -> bytes:
        if path == STORE:
            raise opslog.RetryError("no answer")
        return read(self, path, start, stop)

    monkeypatch.setattr(FsBackend, "read", fail)
    (problem,) = verify(open_backend(str(tmp_path))).problems
    assert (problem.severity, problem.path) == ("error", STORE)
    assert "no answer" in problem.message
