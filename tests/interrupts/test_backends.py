"""The names, locks, descriptors and half-made files that storages hold when an exception comes in at any place of a
call."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from opslog.backends import Backend, open_backend
from opslog.backends.testing_turns import end_of
from opslog.errors import AlreadyExistsError
from opslog.format.layout import segment_path
from tests.interrupts.places import Kind, Place, at_places
from tests.interrupts.watching import EXCEPTIONS, complaints_of, resources
from tests.support import bucket  # noqa: F401  (stores at bucket://)

_numbers = itertools.count()

SEED = 7
STEPS = [11, pytest.param(1, marks=pytest.mark.slow)]
"""One out of this many places is tried."""

LINE = b"a line\n"
PATH = "manifests/00000000000000000001.json"


def append(backend: Backend, agent: str = "a") -> None:
    appender = backend.appender(agent)
    try:
        for _ in range(2):
            appender.append(LINE)
    finally:
        try:
            appender.close()
        finally:
            appender.close()  # once more, in case the exception came into the first one


def append_at(backend: Backend) -> None:
    for _ in range(2):
        end = end_of(backend, "a")
        assert backend.append_at("a", end, LINE) == end


def lock(backend: Backend) -> None:
    with backend.lock("compaction"):
        """Held."""


def create(backend: Backend) -> None:
    with suppress(AlreadyExistsError):
        backend.create(PATH, LINE)
    assert backend.read(PATH) == LINE


def delete(backend: Backend) -> None:
    create(backend)
    backend.delete([PATH])
    assert PATH not in [entry.path for entry in backend.list("manifests/")]


def read(backend: Backend) -> None:
    assert backend.now() > 0
    backend.list("")
    backend.list_logs({})
    backend.read_many([])


CALLS: dict[str, Callable[[Backend], None]] = {
    "append": append,
    "append_at": append_at,
    "lock": lock,
    "create": create,
    "delete": delete,
    "read": read,
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("storage", ["memory", "directory", "bucket"])
@pytest.mark.parametrize("kind", ["after", "instead"])
@pytest.mark.parametrize("step", STEPS)
def test_an_exception_at_any_place_of_a_call_leaves_nothing_held(
    tmp_path: Path, name: str, storage: str, kind: Kind, step: int
) -> None:
    """Afterwards another session can do everything, even while somebody keeps the exception. Only a lock may stay taken
    until the exception is gone."""
    call = CALLS[name]
    warm = open_backend(new_url(tmp_path, storage))
    call(warm)  # loads modules that are loaded at first use
    warm.close()
    for number in itertools.count(1 + random.Random(SEED).randrange(step), step):
        url = new_url(tmp_path, storage)
        backend = open_backend(url)
        exception = list(EXCEPTIONS.values())[number % len(EXCEPTIONS)]
        came: list[Place] = []
        with resources() as left, complaints_of() as complaints:
            kept = interrupted(partial(call, backend), number, exception, kind, came)
            if name == "lock":
                kept = None
            again(url, came)
            backend.close()
            kept = None
        assert kept is None
        assert not complaints.texts, (came, complaints.texts)
        assert not left, (came, left)
        if not came:
            break


def new_url(place: Path, storage: str) -> str:
    name = f"interrupted-{next(_numbers)}"
    return str(place / name) if storage == "directory" else f"{storage}://{name}"


def interrupted(
    call: Callable[[], None], number: int, exception: Callable[[], BaseException], kind: Kind, came: list[Place]
) -> BaseException | None:
    def at(place: Place) -> None:
        if place.number == number:
            came.append(place)
            raise exception()

    try:
        at_places(call, at, kind)
    except BaseException as error:  # noqa: BLE001  (it is what comes after it that counts)
        return error
    return None


def again(url: str, came: list[Place]) -> None:
    """Do everything once more. Then files are whole, and each is in the listing once."""
    # A lease that was not released runs out.
    later = {"now": lambda: time.time() + 100.0} if url.startswith("bucket://") else {}
    backend = open_backend(url, **later)
    try:
        for call in (lock, create, append, append_at, delete, lock):
            try:
                call(backend)
            except Exception as error:
                raise AssertionError(f"{call.__name__} after an exception at {came}") from error
        paths = [entry.path for entry in backend.list("")]
        assert len(set(paths)) == len(paths)
        for entry in backend.list("ops/a/"):
            data = backend.read(entry.path)
            assert data.count(LINE) * len(LINE) == len(data), (came, entry.path, data)
        assert segment_path("a", 1) in paths
    finally:
        backend.close()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("storage", ["memory", "directory", "bucket"])
@pytest.mark.parametrize("step", STEPS)
def test_a_signals_handler_may_use_the_same_storage(tmp_path: Path, name: str, storage: str, step: int) -> None:
    """At any place of any call: nothing waits for a lock that its own thread holds, and both calls succeed."""
    call = CALLS[name]
    for number in itertools.count(1 + random.Random(SEED).randrange(step), step):
        url = new_url(tmp_path, storage)
        backend, other = open_backend(url), open_backend(url)
        came: list[Place] = []

        def handle(place: Place) -> None:
            if place.number == number:  # noqa: B023  (it is called in this turn of the loop alone)
                came.append(place)  # noqa: B023
                append(other, "b")  # noqa: B023
                assert segment_path("b", 1) in [entry.path for entry in other.list("ops/")]  # noqa: B023

        at_places(partial(call, backend), handle)
        append(backend, "a")
        backend.close()
        other.close()
        if not came:
            return
