"""Settings of the interpreter hold for as long as they are needed, and are restored."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

import opslog
from opslog.concurrency import interpreter
from opslog.concurrency.interpreter import rare_collection, short_switch_interval
from opslog.replica.state import State

USUAL = 0.004


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(
        interpreter, "_INTERVAL", interpreter._SwitchInterval()
    )  # compactions of simulated processes never end
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    yield
    sys.setswitchinterval(before)


def test_the_last_one_to_leave_puts_it_back() -> None:
    with short_switch_interval():
        with short_switch_interval():
            assert sys.getswitchinterval() < USUAL / 2
        assert sys.getswitchinterval() < USUAL / 2
    assert sys.getswitchinterval() == pytest.approx(USUAL, rel=0.02)


def test_an_error_puts_it_back() -> None:
    with pytest.raises(ZeroDivisionError), short_switch_interval():
        raise ZeroDivisionError
    assert sys.getswitchinterval() == pytest.approx(USUAL, rel=0.02)


def test_shorter_ones_stay_as_they_are() -> None:
    sys.setswitchinterval(0.0001)
    with short_switch_interval():
        assert sys.getswitchinterval() == pytest.approx(0.0001, rel=0.02)
    assert sys.getswitchinterval() == pytest.approx(0.0001, rel=0.02)


def test_a_value_set_by_others_meanwhile_stays() -> None:
    with short_switch_interval():
        sys.setswitchinterval(0.003)
    assert sys.getswitchinterval() == pytest.approx(0.003, rel=0.02)


def test_a_compaction_does_that() -> None:
    seen: list[float] = []
    with opslog.open("memory://turns", agent="a", settings=opslog.Settings(undo_window=0)) as store:
        store["a"] = {}
        store.compact(progress=lambda *_: seen.append(sys.getswitchinterval()))
    assert seen
    assert max(seen) < USUAL / 2
    assert sys.getswitchinterval() == pytest.approx(USUAL, rel=0.02)


def test_loading_after_a_compaction_does_that(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    empty = State.empty

    def noted(self: State) -> None:
        seen.append(sys.getswitchinterval())
        empty(self)

    monkeypatch.setattr(State, "empty", noted)
    with opslog.open("memory://turns", agent="a", settings=opslog.Settings(undo_window=0)) as store:
        with store.batch() as batch:
            for number in range(10_001):
                batch[f"n{number}"] = {}
        store.compact()
    assert seen
    assert max(seen) < USUAL / 2
    assert sys.getswitchinterval() == pytest.approx(USUAL, rel=0.02)


def test_a_server_collects_rarely_and_restores_what_the_program_had() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        with rare_collection():
            assert gc.get_threshold()[0] > before[0]
            assert gc.get_freeze_count() > frozen
        assert gc.get_threshold() == before
        assert bool(gc.get_freeze_count()) == bool(frozen)
        gc.freeze()
        with rare_collection():
            pass
        assert gc.get_freeze_count() > frozen, "the program's own objects stay frozen"
    finally:
        if not frozen:
            gc.unfreeze()
