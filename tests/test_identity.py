"""The id of a store, in `store.json`: which stores have one, what it refuses, and what happens if it is damaged."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import opslog
from opslog.backends import open_backend
from opslog.backends.local.fs import FsBackend
from opslog.format.layout import STORE
from opslog.replica.token import Token
from opslog.snapshot.identity import make_identity, read_identity
from opslog.verify.verify import verify
from tests.support import bucket
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


def forget_id(url: str) -> None:
    """As in a store that a program before 0.2 created."""
    open_backend(url).delete([STORE])


def test_a_store_has_an_id_from_the_beginning(url: str) -> None:
    with open_writer(url, "a"):
        id = read_identity(open_backend(url))
        assert id
    with opslog.open(url, read_only=True) as reader:
        assert Token.parse(reader.changes().token).store == id


def test_a_creation_that_was_interrupted_behind_the_id_goes_on(url: str) -> None:
    backend = open_backend(url, create=True)
    id = make_identity(backend, "0123456789abcdef")
    with pytest.raises(opslog.NotFoundError):
        opslog.open(url, read_only=True)
    with open_writer(url, "a") as store:
        store["x"] = {}
        assert Token.parse(store.changes().token).store == id


def test_opening_a_store_and_writing_to_it_asks_for_no_id() -> None:
    url = f"bucket://identity-{next(_numbers)}"
    requests = bucket.BUCKETS.setdefault(url.removeprefix("bucket://"), bucket.Bucket()).asked

    def about_id() -> list[str]:
        return [request.method for request in requests if request.key.endswith(STORE)]

    with open_writer(url, "a") as store:
        assert about_id() == ["put_new"]
        store["x"] = {}
    for agent in "ab":
        with open_writer(url, agent) as store:
            store["x"] = {}
            store.refresh()
    assert about_id() == ["put_new"]
    with open_writer(url, "a") as store:
        for number in range(40):
            store["x"] = {"n": number}
        store.compact()
        assert about_id() == ["put_new", "get"]
        for _ in range(3):
            store.changes()
        assert about_id() == ["put_new", "get", "get"], "a store remembers its id"


def test_an_old_store_gets_an_id_from_a_compaction_and_not_from_a_reader(url: str) -> None:
    with open_writer(url, "a") as store:
        for number in range(40):
            store["x"] = {"n": number}
        forget_id(url)
    with opslog.open(url, read_only=True) as reader:
        token = reader.changes().token
        assert read_identity(open_backend(url)) is None
        assert Token.parse(token).store == ""
    with open_writer(url, "a") as store:
        assert read_identity(open_backend(url)) is None
        assert store.compact().number is not None
        assert read_identity(open_backend(url))
        assert not store.changes(token).reset


def test_a_compaction_leaves_a_damaged_id_to_verify(tmp_path: Path) -> None:
    with open_writer(str(tmp_path), "a") as store:
        for number in range(40):
            store["x"] = {"n": number}
        (tmp_path / STORE).write_bytes(b"damaged")
        assert store.compact().number is not None
    assert (tmp_path / STORE).read_bytes() == b"damaged"


def test_a_store_without_an_id_gets_one_from_a_writer(url: str) -> None:
    with open_writer(url, "a") as store:
        forget_id(url)
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
