"""A plain write never outranks a transaction that its store has not read, wherever a refresh ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import Backend, Entry, open_backend, posix
from opslog.bulk.ingest import ingest
from opslog.format.commits import Commit
from opslog.importers import ImportedCommit, ImportedOp
from opslog.log.reader import Cursor, list_log
from opslog.replica.following import Following
from opslog.store import replica_of
from tests.support.bucket import BUCKETS, Fault, Request

SHARED = "ops/transactions/"

Store = opslog.Store[dict[str, Any]]


def opened(url: str | Path, agent: str) -> Store:
    return opslog.open(url, agent=agent, compact_after=None)


def shown(url: str | Path) -> dict[str, Any]:
    return dict(opslog.open(url, read_only=True))


@contextmanager
def shared_log_unreadable_in_bucket(url: str) -> Iterator[None]:
    def fault(request: Request) -> Fault | None:
        return Fault("refused") if request.method == "get" and "ops/transactions" in request.key else None

    with BUCKETS[url.removeprefix("bucket://")].failing(fault):
        yield


def claimed_and_read(url: str | Path) -> None:
    """A transaction in the shared log, and a plain commit that rests on it in a log that listings show before."""
    with opened(url, "c") as c, opened(url, "b") as b:
        c.create("claim", {"by": "c"})
        b.refresh()
        b["y"] = {"by": "b"}


def test_after_a_refresh_that_could_not_read_the_shared_log_of_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opslog.backends.objects.backend._READS_MAX", 1)  # so that the segments are read one by one
    url = "bucket://unread-refused"
    with opened(url, "a") as a:
        claimed_and_read(url)
        with pytest.raises(opslog.RetryError), shared_log_unreadable_in_bucket(url):
            a.refresh()
        a["claim"] = {"by": "a"}
        assert shown(url)["claim"] == {"by": "c"}
        a.refresh()
        assert a["claim"] == {"by": "c"}


def test_after_a_refresh_that_could_not_read_the_shared_log_of_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = posix.read_range

    def unreadable(path: str, *arguments: Any) -> bytes:
        if "transactions" in path:
            raise OSError(5, "no such luck")
        return read(path, *arguments)

    with opened(tmp_path, "a") as a:
        claimed_and_read(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(posix, "read_range", unreadable)
            with pytest.raises(opslog.RetryError):
                a.refresh()
        a["claim"] = {"by": "a"}
        assert shown(tmp_path)["claim"] == {"by": "c"}


def test_the_shared_log_is_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may write whatever this one has read so far."""
    url = "memory://unread-thread"
    taken: list[str] = []
    take = Following._take

    def note(self: Following, commits: Sequence[Commit], cursor: Cursor, news: Sequence[Commit]) -> None:
        taken.append(cursor.agent)
        take(self, commits, cursor, news)

    with opened(url, "a") as a:
        claimed_and_read(url)
        monkeypatch.setattr(Following, "_take", note)
        a.refresh()
    assert list(dict.fromkeys(taken)) == ["transactions", "b"]


class Late:
    """Makes a transaction, and a plain commit that rests on it, while the logs are listed: after the shared log was
    listed and before the others are.

    :param backends: of the class whose next listing this is.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, backends: type[Backend], *stores: Store) -> None:
        self.came = False
        list_logs = backends.list_logs

        def listing(backend: Backend, seen: Mapping[str, int]) -> list[Entry]:
            if self.came:
                return list_logs(backend, seen)
            self.came = True
            shared = [entry for entry in list_logs(backend, seen) if entry.path.startswith(SHARED)]
            deciding, resting = stores
            deciding.create("claim", {"by": "c"})
            resting.refresh()
            resting["y"] = {}
            return sorted(
                [*shared, *(entry for entry in list_logs(backend, seen) if not entry.path.startswith(SHARED))]
            )

        monkeypatch.setattr(backends, "list_logs", listing)


@pytest.fixture(params=["directory", "memory", "first in memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store, with or without an earlier transaction."""
    url = str(tmp_path / "store") if request.param == "directory" else f"memory://{tmp_path}"
    with opened(url, "c") as store:
        store["old"] = {}
        if request.param != "first in memory":
            store.create("first", {})
    return url


@pytest.fixture
def others(url: str) -> Iterator[list[Store]]:
    stores = [opened(url, "c"), opened(url, "z")]
    yield stores
    for store in stores:
        store.close()


def test_a_refresh_whose_listing_missed_the_transaction(
    url: str, others: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(url, "a") as a:
        late = Late(monkeypatch, type(replica_of(a).backend), *others)
        assert {commit.agent for commit in a.refresh()} == {"transactions", "z"}
        assert late.came
        assert "claim" in a


def test_an_open_whose_listing_missed_the_transaction(
    url: str, others: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Late(monkeypatch, type(replica_of(others[0]).backend), *others)
    with opened(url, "a") as a:
        assert late.came
        assert "claim" in a


def test_an_import_whose_listing_missed_the_transaction(
    url: str, others: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The imported document wins, by a transaction: a plain commit would not have read what it outranks."""
    late = Late(monkeypatch, type(replica_of(others[0]).backend), *others)
    with closing(open_backend(url)) as backend:
        op = ImportedOp("set", "claim", {"by": "import"})
        ingest(backend, [ImportedCommit("i", None, (op,), "line 1")], agent="i")
    assert late.came
    others[0].refresh()
    record = others[0].record("claim")
    assert record is not None
    assert (record.agent, record.author, record.document) == ("transactions", "i", {"by": "import"})


def test_nothing_is_read_that_came_after_the_listing(url: str, others: list[Store]) -> None:
    """It may rest on a transaction that came after the listing, too."""
    c, z = others
    backend = replica_of(c).backend
    z["y"] = {"n": 0}
    listed = list_log(backend, "z")
    z["y"] = {"n": 1}
    cursor = Cursor("z")
    assert len(list(cursor.read(backend, listed))) == 1
    assert len(list(cursor.read(backend, list_log(backend, "z")))) == 1


def test_after_transactions_of_its_own_a_store_is_where_a_reader_of_the_shared_log_is(url: str) -> None:
    """Also at the same mark, which a token would have."""
    with opened(url, "a") as a, opened(url, "b") as b:
        b.create("x", {})
        a.refresh()
        a.create("y", {})
        own = replica_of(a).state.cursors["transactions"]
        with opslog.open(url, read_only=True) as reader:
            read = replica_of(reader).state.cursors["transactions"]
            assert (own.position, own.clock, own.mark) == (read.position, read.clock, read.mark)
