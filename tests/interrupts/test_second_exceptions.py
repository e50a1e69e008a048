"""A second exception comes while the first one is handled: while what it left half-done is put back, or given back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import turns
from tests.interrupts.places import Place, at_places, is_finalizing

_numbers = itertools.count()


def pairs(
    call: Callable[[str], Callable[[], object]],
    first: tuple[str, ...],
    second: tuple[str, ...],
    after: int,
    stride: int,
) -> Iterator[str]:
    """Make a call again and again, with two exceptions each time. Yields a new name after each of these calls.

    :param call: prepares the call with a new name, and returns it.
    :param first: names, of modules for example, at whose places the first exception comes.
    :param second: likewise for the second one, at the next `after` of these places.
    """
    seen = [0, 0]  # how many places of the first and of the second kind, in the last call
    for number in itertools.count(1, stride):
        for later in range(1, after + 1):
            name = f"second-{next(_numbers)}"
            prepared = call(name)
            seen[:] = 0, 0

            def at(place: Place, number: int = number, later: int = later) -> None:
                stage = seen[0] >= number
                if place.where.startswith(second if stage else first) and not is_finalizing():
                    seen[stage] += 1
                    if seen[stage] == (later if stage else number):
                        raise KeyboardInterrupt

            with suppress(KeyboardInterrupt):
                at_places(prepared, at, goes_on=True)
            yield name
            if seen[1] < later:
                break
        if seen[0] < number:
            return


def test_no_commit_of_others_is_lost_from_a_refresh() -> None:
    stores: dict[str, opslog.Store[Any]] = {}
    found: list[opslog.Commit] = []

    def refreshing(name: str) -> Callable[[], None]:
        stores[name] = store = opslog.open(f"memory://{name}", agent="a")
        with opslog.open(f"memory://{name}", agent="b") as other:
            other["x"] = {}
        found.clear()
        return lambda: found.extend(store.refresh())

    count = 0
    for count, name in enumerate(pairs(refreshing, ("opslog.replica.news.",), ("opslog.",), 3, 1)):  # noqa: B007
        store = stores.pop(name)
        assert [commit.agent for commit in [*found, *store.refresh()]] == ["b"]
        store.close()
    assert count > 5


def test_what_has_not_happened_is_not_done_by_a_later_call() -> None:
    stores: dict[str, opslog.Store[Any]] = {}
    places = ("opslog.replica.deciding.",)

    def add(document: dict[str, int] | None) -> dict[str, int]:
        assert document is not None
        return {"n": document["n"] + 1}

    def adding(name: str) -> Callable[[], object]:
        stores[name] = store = opslog.open(f"memory://{name}", agent="a")
        store["x"] = {"n": 0}
        return partial(store.modify, "x", add)

    count = 0
    for count, name in enumerate(pairs(adding, places, places, 6, 1)):  # noqa: B007
        store = stores.pop(name)
        store.refresh()
        before = store["x"]["n"]
        store.modify("x", add)
        assert store["x"]["n"] == before + 1
        store.close()
    assert count > 100


@pytest.mark.parametrize("scheme", ["memory", "directory"])
def test_the_lock_of_the_shared_log_becomes_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """Even if nobody collects garbage."""
    monkeypatch.setattr(turns, "WAIT_SECONDS", 0.05)
    stores: dict[str, list[opslog.Store[Any]]] = {}
    where = "memory://" if scheme == "memory" else f"{tmp_path}/"
    stride = 1 if scheme == "memory" else 13
    backend = "opslog.backends."

    def creating(name: str) -> Callable[[], object]:
        stores[name] = [opslog.open(f"{where}{name}", agent=agent) for agent in "ab"]
        return partial(stores[name][0].create, "x", {})

    count = 0
    for count, name in enumerate(pairs(creating, (backend,), (backend,), 8, stride)):  # noqa: B007
        interrupted, other = stores.pop(name)
        other.create("y", {})
        interrupted.close()
        other.close()
    assert count > 20


def test_an_open_that_failed_gives_the_name_back(tmp_path: Path) -> None:
    """Even if nobody collects garbage."""
    opened: list[opslog.Store[Any]] = []

    def opening(name: str) -> Callable[[], object]:
        opslog.open(tmp_path / name, agent="b").close()
        return lambda: opened.append(opslog.open(tmp_path / name, agent="a"))

    closes = ("opslog.backends.local.", "opslog.backends.forking.")
    count = 0
    for count, name in enumerate(pairs(opening, ("opslog.replica.",), closes, 12, 9)):  # noqa: B007
        while opened:
            opened.pop().close()
        opslog.open(tmp_path / name, agent="a").close()
    assert count > 20
