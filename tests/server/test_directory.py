"""Changes that people may make to a server's directory, both while a server uses it and while none does."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest

from opslog.errors import (
    CommitUnknownError,
    CorruptError,
    LockedError,
    ReopenError,
    UsageError,
    WriteFailedError,
)
from opslog.server import Options
from opslog.server.http.asgi import App
from opslog.server.protocol.model import Stream
from opslog.server.protocol.storage import Changes
from opslog.server.storage.directory import DirectoryStorage
from opslog.server.storage.lmdb_file import missing_page
from opslog.server.storage.lmdb_shard import LmdbShard
from tests.server.conftest import MAP_BYTES
from tests.support.asgi import Caller
from tests.support.servers import Follower, http, serving
from tests.support.waiting import until

TEXT = {"content-type": "text/plain"}


def copied(data: Path) -> None:
    """The same content in another file."""
    copy = data.with_name("copy")
    shutil.copy(data, copy)
    copy.replace(data)


def put_a_directory(data: Path) -> None:
    data.unlink()
    data.mkdir()


DONE: dict[str, Callable[[Path], object]] = {
    "directory deleted": shutil.rmtree,
    "directory moved": lambda path: path.rename(path.with_name("elsewhere")),
    "directory replaced by a copy": lambda path: shutil.copytree(path.rename(path.with_name("elsewhere")), path),
    "parent moved": lambda path: path.parent.rename(path.parent.with_name("elsewhere")),
    "shard deleted": lambda path: shutil.rmtree(path / "shard-000"),
    "database deleted": lambda path: (path / "shard-000" / "data.mdb").unlink(),
    "database replaced by a copy": lambda path: copied(path / "shard-000" / "data.mdb"),
    "database replaced by a directory": lambda path: put_a_directory(path / "shard-000" / "data.mdb"),
    "locks of the database deleted": lambda path: (path / "shard-000" / "lock.mdb").unlink(),
    "lock deleted": lambda path: (path / "lock").unlink(),
    "lock replaced": lambda path: copied(path / "lock"),
}


@pytest.mark.parametrize("what", DONE)
def test_nothing_is_acknowledged_that_nobody_will_find(tmp_path: Path, what: str) -> None:
    data = tmp_path / "above" / "data"
    storage = DirectoryStorage(data, map_bytes=MAP_BYTES)
    caller = Caller(App(storage, Options()))
    assert caller.put("a", headers=TEXT).status_code == 201
    assert caller.get("http://test/readyz").status_code == 200
    DONE[what](data)
    ready = caller.get("http://test/readyz")
    assert (ready.status_code, caller.get("http://test/healthz").status_code) == (503, 200)
    assert str(tmp_path) in ready.text
    assert "start it again" in ready.text
    for answer in (
        caller.post("a", content=b"x", headers=TEXT),
        caller.put("b", headers=TEXT),
        caller.post("a", headers={"stream-closed": "true"}),
        caller.delete("a"),
    ):
        assert answer.status_code == 507
    assert caller.get("a").status_code == 200, "what is there can be read"
    caller.close()


def test_a_moved_directory_may_come_back(tmp_path: Path) -> None:
    caller = Caller(App(DirectoryStorage(tmp_path / "data", map_bytes=MAP_BYTES), Options()))
    caller.put("a", headers=TEXT)
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert caller.post("a", content=b"x", headers=TEXT).status_code == 507
    (tmp_path / "elsewhere").rename(tmp_path / "data")
    assert caller.post("a", content=b"y", headers=TEXT).status_code == 204
    assert caller.get("http://test/readyz").status_code == 200
    caller.close()
    again = Caller(App(DirectoryStorage(tmp_path / "data", map_bytes=MAP_BYTES), Options()))
    assert again.get("a").content == b"y"
    again.close()


def test_a_working_directory_that_changes_is_no_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shard = DirectoryStorage("data", map_bytes=MAP_BYTES)
    monkeypatch.chdir("/")
    shard.shards[0].commit(Changes(values={b"a": b"b"}))
    assert shard.shards[0].problem() is None
    shard.close()


@pytest.mark.parametrize("what", DONE)
def test_a_change_during_a_commit_is_seen_before_its_answer(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "above" / "data"
    storage = DirectoryStorage(data, map_bytes=MAP_BYTES)
    shard = storage.shards[0]
    assert isinstance(shard, LmdbShard)
    apply = shard._apply

    def meanwhile(changes: Changes, txn: Any) -> None:
        apply(changes, txn)
        DONE[what](data)

    monkeypatch.setattr(shard, "_apply", meanwhile)
    with pytest.raises(CommitUnknownError, match="unknown whether"):
        shard.commit(Changes(values={b"a": b"b"}))
    with pytest.raises(WriteFailedError, match="nothing was changed"):
        shard.commit(Changes(values={b"a": b"b"}))
    storage.close()


def test_what_may_have_been_committed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt comes between a commit and the note of it in memory."""
    storage = DirectoryStorage(tmp_path / "data", map_bytes=MAP_BYTES)
    shard = storage.shards[0]
    assert isinstance(shard, LmdbShard)
    before = Stream(1, "a", "text/plain", 0.0, 0.0)
    after = msgspec.structs.replace(before, tail=1)
    shard.commit(Changes(streams={"a": before}))
    real = shard._commit

    def interrupted(changes: Changes, applied: Callable[[], None] | None) -> None:
        real(changes, applied)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shard, "_commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shard.commit(Changes(streams={"a": after}, records=[(1, 0, b"x")]))
    assert shard.stream("a") == after
    storage.close()


def test_a_running_server_whose_directory_is_deleted(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data")) as server:
        http("PUT", f"{server.url}/a", headers=TEXT)
        assert http("POST", f"{server.url}/a", content=b"x", headers=TEXT).status_code == 204
        shutil.rmtree(tmp_path / "data")
        assert http("POST", f"{server.url}/a", content=b"x", headers=TEXT).status_code == 507
        assert http("GET", f"{server.root}/readyz").status_code == 503
        until(lambda: any("deleted or moved" in str(log.get("error")) for log in server.logs))
        with serving("--data", str(tmp_path / "data")) as other:  # it is another directory now
            assert http("PUT", f"{other.url}/a", headers=TEXT).status_code == 201
            assert http("POST", f"{server.url}/a", content=b"x", headers=TEXT).status_code == 507


class TestASecondServer:
    @pytest.mark.parametrize("removed", ["lock", "layout.json", "shard-000/lock.mdb"])
    def test_does_not_get_in_because_a_file_was_removed(self, tmp_path: Path, removed: str) -> None:
        first = DirectoryStorage(tmp_path, map_bytes=MAP_BYTES)
        (tmp_path / removed).unlink()
        for _ in range(2):
            with pytest.raises(LockedError, match=r"another process|is locked by"):
                DirectoryStorage(tmp_path, map_bytes=MAP_BYTES, wait_seconds=0.05)
        first.close()

    def test_gets_in_by_no_other_path(self, tmp_path: Path) -> None:
        first = DirectoryStorage(tmp_path / "data", map_bytes=MAP_BYTES)
        (tmp_path / "link").symlink_to(tmp_path / "data")
        (tmp_path / "data" / "lock").unlink()
        with pytest.raises(LockedError, match="stop that process"):
            DirectoryStorage(tmp_path / "link", map_bytes=MAP_BYTES, wait_seconds=0.05)
        first.close()

    def test_gets_in_after_the_first_one(self, tmp_path: Path) -> None:
        for removed in (None, "lock"):
            first = DirectoryStorage(tmp_path, map_bytes=MAP_BYTES)
            if removed:
                (tmp_path / removed).unlink()
            first.close()
            DirectoryStorage(tmp_path, map_bytes=MAP_BYTES, wait_seconds=0).close()


class TestFilesThatAreMissing:
    @pytest.mark.parametrize("what", ["deleted", "empty"])
    def test_a_missing_database_is_not_replaced_by_an_empty_one(self, tmp_path: Path, what: str) -> None:
        DirectoryStorage(tmp_path, shards=2, map_bytes=MAP_BYTES).close()
        data = tmp_path / "shard-001" / "data.mdb"
        if what == "deleted":
            data.unlink()
        else:
            data.write_bytes(b"")
        for _ in range(2):
            with pytest.raises(CorruptError, match=r"shard-001/data\.mdb is (missing|empty): restore"):
                DirectoryStorage(tmp_path, map_bytes=MAP_BYTES)

    def test_a_directory_without_its_layout_is_not_replaced_by_an_empty_one(self, tmp_path: Path) -> None:
        DirectoryStorage(tmp_path, map_bytes=MAP_BYTES).close()
        (tmp_path / "layout.json").unlink()
        with pytest.raises(UsageError, match="is not empty"):
            DirectoryStorage(tmp_path, map_bytes=MAP_BYTES)

    @pytest.mark.parametrize("step", range(8))
    def test_laying_out_may_be_cut_off_anywhere(
        self, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever was done before the cut, the next start makes a working directory of it."""
        left = step

        def cut_off(*_: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

        def before(owner: Any, name: str) -> None:
            original = getattr(owner, name)

            def call(*arguments: Any, **options: Any) -> Any:
                cut_off()
                return original(*arguments, **options)

            monkeypatch.setattr(owner, name, call)

        with monkeypatch.context():
            before(Path, "mkdir")
            before(Path, "rename")
            before(LmdbShard, "__init__")
            before(os, "fsync")
            with pytest.raises(KeyboardInterrupt):
                DirectoryStorage(tmp_path, shards=2, map_bytes=MAP_BYTES)
        monkeypatch.undo()
        storage = DirectoryStorage(tmp_path, shards=2, map_bytes=MAP_BYTES)
        storage.shards[1].commit(Changes(values={b"a": b"b"}))
        storage.close()
        storage = DirectoryStorage(tmp_path, map_bytes=MAP_BYTES)
        assert storage.shards[1].value(b"a") == b"b"
        storage.close()


READ_ALL = """
import sys
from opslog.errors import CorruptError
from opslog.server.storage.directory import DirectoryStorage
from opslog.server.protocol.model import Stream
from opslog.server.protocol.storage import Changes
try:
    storage = DirectoryStorage(sys.argv[1])
except CorruptError as error:
    assert "was truncated" in str(error) or "cannot be read" in str(error) or "is empty" in str(error), error
    assert "restore the directory from a backup" in str(error), error
    print("refused")
else:
    shard = storage.shards[0]
    for stream in shard.streams():
        print(stream.path, sum(len(data) for _, data in shard.records(stream.id, 0, stream.tail, 2**40)))
    shard.commit(Changes(values={b"k": b"v" * 100_000}))
"""


def filled(path: Path, seed: int) -> Path:
    """A directory with some streams. Returns the path of its database."""
    chance = random.Random(seed)
    caller = Caller(App(DirectoryStorage(path), Options()))
    for number in range(20):
        caller.put(f"{number}", headers=TEXT)
        for _ in range(chance.randint(1, 10)):
            caller.post(f"{number}", content=b"x" * chance.choice([1, 1000, 5000, 50_000]), headers=TEXT)
    for number in range(0, 20, 3):
        caller.delete(f"{number}")
    caller.close()
    return path / "shard-000" / "data.mdb"


def test_a_truncated_database_does_not_start(tmp_path: Path) -> None:
    """It may also start, if the cut removed nothing that it needs. It never crashes on a missing page."""
    data = filled(tmp_path / "data", 1)
    whole, size = data.read_bytes(), data.stat().st_size
    outcomes = []
    for length in (1, 4096, 5000, 8192, size // 3, size // 2, size - 4096, size - 1, size):
        data.write_bytes(whole[:length])
        done = subprocess.run(
            [sys.executable, "-c", READ_ALL, tmp_path / "data"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (length, done.returncode, done.stderr)
        outcomes.append(done.stdout == "refused\n")
    assert outcomes[:6] == [True] * 6
    assert outcomes[-1] is False


def test_a_database_that_is_truncated_while_it_is_served(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path, map_bytes=MAP_BYTES)
    storage.shards[0].commit(Changes(values={b"k": b"v" * 100_000}))
    data = tmp_path / "shard-000" / "data.mdb"
    size = data.stat().st_size
    os.truncate(data, size - 4096)
    with pytest.raises(WriteFailedError, match=f"was truncated to {size - 4096} bytes"):
        storage.shards[0].commit(Changes(values={b"k": b"v"}))
    storage.close()


TRUNCATED = pytest.mark.parametrize("name", ["data.mdb", "lock.mdb"])


def cut_off(data: Path, name: str) -> Path:
    """Truncate a file of the database to nothing: a process that reads any page of it is killed."""
    os.truncate(data / "shard-000" / name, 0)
    return data / "shard-000" / name


@TRUNCATED
def test_a_shard_that_was_truncated_is_not_read(tmp_path: Path, name: str) -> None:
    """This holds even if something has made the file long again."""
    storage = DirectoryStorage(tmp_path, map_bytes=MAP_BYTES)
    shard = storage.shards[0]
    shard.commit(Changes(values={b"k": b"v"}))
    size = (tmp_path / "shard-000" / name).stat().st_size
    calls: dict[str, Callable[[], object]] = {
        "stream": lambda: shard.stream("a"),
        "streams": lambda: list(shard.streams()),
        "producer": lambda: shard.producer(1, "p"),
        "producers": lambda: shard.producers(1, 10),
        "records": lambda: shard.records(1, 0, 10, 10),
        "value": lambda: shard.value(b"k"),
        "values": lambda: list(shard.values(b"")),
        "next_id": shard.next_id,
        "usage": shard.usage,
        "tidy": shard.tidy,
    }
    known = Stream(1, "known", "text/plain", 0.0, 0.0)
    shard.commit(Changes(streams={"known": known}))
    calls["known"] = lambda: shard.stream("known")
    cut = cut_off(tmp_path, name)
    assert shard.stream("known", is_checked=True) == known
    for length in (0, size):
        os.truncate(cut, length)
        for call in calls.values():
            with pytest.raises(ReopenError, match=rf"{cut} was truncated to 0 bytes; stop the server"):
                call()
        with pytest.raises(WriteFailedError, match=r"nothing was changed: .*was truncated to 0 bytes"):
            shard.commit(Changes(values={b"k": b"w"}))
        os.truncate(cut, 0)
    storage.close()


@TRUNCATED
def test_a_running_server_whose_database_is_truncated(tmp_path: Path, name: str) -> None:
    """It logs that, and ends when asked to, instead of being killed."""
    with serving("--data", str(tmp_path), "--registry") as server:
        http("PUT", f"{server.url}/a", headers=TEXT)
        http("POST", f"{server.url}/a", content=b"x", headers=TEXT)
        follower = Follower(f"{server.url}/a", offset="-1", live="sse")
        until(lambda: "data:x" in follower.text)
        cut = cut_off(tmp_path, name)
        for method, path in (
            ("GET", "/a?offset=-1"),
            ("GET", "/a?offset=-1&live=sse"),
            ("HEAD", "/a"),
            ("POST", "/a"),
            ("PUT", "/b"),
            ("DELETE", "/a"),
        ):
            answer = http(method, f"{server.url}{path}", content=b"x" if method == "POST" else b"", headers=TEXT)
            assert answer.status_code == 503, (method, path)
            assert method == "HEAD" or answer.text.startswith("the storage cannot be read until the server is started")
        assert http("GET", f"{server.root}/metrics").status_code == 503
        ready = http("GET", f"{server.root}/readyz")
        assert ready.status_code == 503
        assert ready.text.startswith(f"{cut} was truncated to 0 bytes; stop the server")
        until(lambda: any(f"nothing can be read: {cut} was" in str(log.get("error")) for log in server.logs))
        assert server.stop() == -signal.SIGTERM, "not of SIGBUS"
        follower.join()
        assert not any("traceback" in log for log in server.logs), server.logs


@pytest.mark.parametrize("seed", range(4))
def test_a_database_without_pages_that_were_never_written_is_whole(tmp_path: Path, seed: int) -> None:
    """LMDB does not write pages at the end of the file that one transaction took and freed. So the file may be shorter
    than the highest page that LMDB knows. In a copy that was cut off, either everything can be read, or a page is
    missing."""
    chance = random.Random(seed)
    opened = lmdb.open(str(tmp_path), map_size=MAP_BYTES, max_dbs=4, sync=False)
    tables = [opened.open_db(b"a"), opened.open_db(b"b")]
    data = tmp_path / "data.mdb"
    page = opened.stat()["psize"]
    short = last = 0
    for _ in range(12):
        with opened.begin(write=True) as txn:
            for _ in range(chance.choice([1, 5, 100])):
                size = chance.choice([5, 500, 2000, 5000, 100_000])
                txn.put(chance.randbytes(chance.choice([8, 200])), bytes(size), db=chance.choice(tables))
            txn.put(b"large", bytes(500_000), db=tables[0])
            txn.delete(b"large", db=tables[0])
        last = opened.info()["last_pgno"]
        short += data.stat().st_size < (last + 1) * page
        assert missing_page(str(data), page, last) is None
    assert short, "this test shows nothing without such a file"
    needed = (last + 1) * page - 500_000
    cut = tmp_path / "cut"
    for _ in range(20):
        shutil.copy(data, cut)
        os.truncate(cut, chance.randrange(8192, needed - 200_000))
        missing = missing_page(str(cut), page, last)
        assert missing is not None
        assert missing >= cut.stat().st_size // page
    opened.close()


def test_a_server_stops_whatever_happened_to_its_directory(tmp_path: Path) -> None:
    async def scenario() -> None:
        application = App(DirectoryStorage(tmp_path / "data", map_bytes=MAP_BYTES), Options(registry=True))
        await application.start()
        shutil.rmtree(tmp_path / "data")
        await application.stop()

    asyncio.run(scenario())
