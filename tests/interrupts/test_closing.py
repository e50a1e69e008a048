"""Two or three exceptions come into one `close` of a buffered store, as when Ctrl-C is pressed twice. What was
acknowledged is in the log, or the store says that it is not, or may not be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import opslog
from opslog.backends.memory import MemoryAppender
from opslog.replica.at_exit import write_buffer
from opslog.store import replica_of
from tests.interrupts.places import Place, at_places
from tests.support import bucket  # noqa: F401  (stores at bucket://)

Store = opslog.Store[dict[str, Any]]

_numbers = itertools.count()


def _exit(store: Store) -> None:
    """Ends the program as it ends after the second exception."""
    write_buffer(replica_of(store))
    failure = replica_of(store).failure
    if failure is not None:  # it was logged
        raise failure


by_any_end = pytest.mark.parametrize("then", [opslog.Store.close, _exit], ids=["closed-again", "exit"])


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("storage", ["memory", pytest.param("bucket", marks=pytest.mark.slow)])
@by_any_end
@pytest.mark.filterwarnings("ignore:unclosed <opslog.Store:ResourceWarning")
@pytest.mark.filterwarnings("ignore:the program ended, and buffered commits:RuntimeWarning")
def test_two_exceptions_in_one_close_lose_nothing_in_silence(
    storage: str, then: Callable[[Store], None], every: int
) -> None:
    both = 0
    came: list[Place] = []
    for first in itertools.count(1, every):
        # The second one comes right after the first one, or anywhere later.
        for second in itertools.count(first + 1):
            if every > 1 and second > first + 20 and second % 17:
                continue
            came = _close_interrupted(f"{storage}://closing-{next(_numbers)}", then, {first, second})
            both += len(came) == 2
            if len(came) < 2:
                break
        if not came:
            break
    assert both > 100


@by_any_end
@pytest.mark.filterwarnings("ignore:unclosed <opslog.Store:ResourceWarning")
@pytest.mark.filterwarnings("ignore:the program ended, and buffered commits:RuntimeWarning")
def test_three_exceptions_in_one_close_lose_nothing_in_silence(then: Callable[[Store], None]) -> None:
    """A close tries three times to write the buffer."""
    lost = 0
    for first in itertools.count(1, 10):
        came: list[Place] = []
        for second in itertools.count(first + 1, 23):
            for third in (second + 1, second + 11, second + 41):
                name = f"closing-{next(_numbers)}"
                came = _close_interrupted(f"memory://{name}", then, {first, second, third})
                with opslog.open(f"memory://{name}", read_only=True) as store:
                    lost += len(came) == 3 and len(store) == 1
            if len(came) < 2:
                break
        if not came:
            break
    assert lost > 10, "otherwise this shows nothing"


@pytest.mark.parametrize("call", [opslog.Store.flush, len, opslog.Store.refresh], ids=["flush", "len", "refresh"])
def test_close_reports_a_lost_buffer_if_an_exception_ended_the_call_that_was_about_to(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[Store], object]
) -> None:
    def refuse(self: MemoryAppender, data: bytes) -> None:
        raise opslog.WriteFailedError("the disk is full")

    interrupted = 0
    for number in itertools.count(1):
        store = opslog.open(f"memory://closing-{next(_numbers)}", agent="a", durability="buffered", buffer_seconds=3600)
        store["x"] = {"v": 1}
        log = replica_of(store).log
        assert log is not None
        with monkeypatch.context() as patch:
            patch.setattr(MemoryAppender, "append", refuse)
            log.flush()

        def at(place: Place, number: int = number) -> None:
            if place.number == number:
                raise KeyboardInterrupt

        try:
            at_places(partial(call, store), at)
        except KeyboardInterrupt:
            interrupted += 1
            with pytest.raises(opslog.WriteFailedError, match="the disk is full"):
                store.close()
        except opslog.ReopenError:
            store.close()
            break
    assert interrupted > 3


def _close_interrupted(url: str, then: Callable[[Store], None], numbers: set[int]) -> list[Place]:
    came: list[Place] = []

    def at(place: Place) -> None:
        if place.number in numbers:
            came.append(place)
            raise KeyboardInterrupt

    store = opslog.open(url, agent="a", durability="buffered", buffer_seconds=3600, compact_after=None)
    store["x"] = {"v": 1}
    store.flush()
    written = {"x": {"v": 2}, "y": {"v": 2}}
    store.update(written)
    try:
        at_places(store.close, at, goes_on=True)
    except KeyboardInterrupt:
        assert came
    said: opslog.OpslogError | None = None
    try:
        then(store)
    except (opslog.CommitUnknownError, opslog.WriteFailedError) as error:
        said = error
    with opslog.open(url, read_only=True) as fresh:
        assert said is not None or dict(fresh.items()) == written, came
        assert not isinstance(said, opslog.WriteFailedError) or dict(fresh.items()) == {"x": {"v": 1}}, came
    try:
        store.close()
    except opslog.CommitUnknownError as error:
        said = error
    with opslog.open(url, agent="a") as again:
        assert said is not None or dict(again.items()) == written, came
    return came
