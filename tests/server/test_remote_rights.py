"""Remote agents with tokens, of whose calls the server also checks what they mean for the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opslog
from opslog.backends import Position, Range, open_backend
from opslog.backends.remote.backend import RemoteBackend
from opslog.backends.remote.protocol import CloseLog
from opslog.errors import InvalidNameError, UsageError
from opslog.format.commits import CLOCK_MAX, encode_commit
from opslog.format.layout import TRANSACTIONS, segment_path
from opslog.server.stores.rights import Client
from opslog.server.stores.served import ServedStore, ServedStores
from tests.support.served_storage import Handing

TS = "2026-11-23T12:00:00.000000Z"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "tasks")


@pytest.fixture
def served(url: str) -> Iterator[ServedStore]:
    stores = ServedStores({"tasks": url}, "main")
    yield stores.find("tasks")
    stores.close()


@pytest.fixture
def mine(served: ServedStore) -> Iterator[RemoteBackend]:
    """The storage, as the client with the token of the agent `mine` has it."""
    client = Client("mine", writes=True, operates=False)
    backend = RemoteBackend("http://server/tasks", transport=Handing(lambda: served.storage, client))
    yield backend
    backend.close()


def a_set(clock: int, agent: str = TRANSACTIONS, id: str = "a") -> bytes:
    by = "mine" if agent == TRANSACTIONS else ""
    return encode_commit(opslog.Set(TS, clock, agent, id, msgspec.Raw(b'{"by":"mine"}'), 1, by=by, tx=f"{clock:016x}"))


def an_undo(clock: int, target: int) -> bytes:
    return encode_commit(opslog.Undo(TS, clock, TRANSACTIONS, target, by="mine", tx=f"{clock:016x}"))


def append(backend: RemoteBackend, *lines: bytes) -> Position | None:
    """Append to the shared log, where it ends."""
    (data,) = backend.read_many([Range(segment_path(TRANSACTIONS, 1))])
    return backend.append_at(TRANSACTIONS, Position(1, len(data or b"")), b"".join(lines))


def write(served: ServedStore, author: str, document: dict[str, Any]) -> int:
    """The clock of the transaction."""
    stamp = served.operations(author).set("a", document).stamp
    assert stamp is not None
    return int(stamp.partition("@")[0])


def test_nobody_undoes_what_others_wrote(served: ServedStore, mine: RemoteBackend) -> None:
    write(served, "other", {"n": 1})
    theirs = write(served, "other", {"n": 2})
    for target in (theirs, theirs + 500):  # that may be the clock of their next one
        with pytest.raises(UsageError, match="undoes only what 'mine' wrote"):
            append(mine, an_undo(theirs + 1000, target))
    assert served.operations().get("a").data == {"n": 2}
    own = write(served, "mine", {"n": 3})
    assert append(mine, an_undo(own + 1000, own)) is not None
    assert served.operations().get("a").data == {"n": 2}
    assert append(mine, a_set(own + 2000), an_undo(own + 3000, own + 2000)) is not None
    assert served.operations().get("a").data == {"n": 2}
    assert append(mine, an_undo(own + 4000, own)) is not None, "such as one that is sent again: it does nothing"
    assert served.operations("other").undo().undone


def test_nobody_uses_up_the_clock(served: ServedStore, mine: RemoteBackend, url: str) -> None:
    """After a commit with the greatest clock, nothing more can be written."""
    clock = write(served, "other", {})
    with pytest.raises(UsageError, match="too far above all others"):
        append(mine, a_set(clock + 1000), a_set(CLOCK_MAX, id="b"))
    appender = mine.appender("mine")
    with pytest.raises(UsageError, match="too far above all others"):
        appender.append(a_set(CLOCK_MAX, "mine"))
    appender.append(a_set(clock + 1, "mine"))
    appender.close()
    beside = open_backend(url)
    (data,) = beside.read_many([Range(segment_path(TRANSACTIONS, 1))])
    assert beside.append_at(TRANSACTIONS, Position(1, len(data or b"")), a_set(2**40, id="jump")) is not None
    beside.close()
    assert append(mine, a_set(2**40 + 1000)) is not None, "the server reads what is new before it refuses"
    assert write(served, "other", {}) > 2**40


def test_names_are_checked_and_forgotten(served: ServedStore, mine: RemoteBackend) -> None:
    """A session may end again and again, and the server remembers none of these names."""
    everybody = RemoteBackend("http://server/tasks", transport=Handing(lambda: served.storage))

    def closing(agent: str) -> Callable[[object], CloseLog]:
        return lambda _: CloseLog(agent, "session")

    with pytest.raises(InvalidNameError):
        everybody.channel.change(closing("x" * 1000))
    for number in range(3):
        everybody.channel.change(closing(f"agent-{number}"))
    everybody.appender("agent").close()
    assert not served.storage._sessions._busy
    everybody.close()
