"""An exception comes into a store's own thread, at any place. The thread continues or another one replaces it, and
afterwards memory, log and a fresh reader agree."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from opslog.concurrency.background import Worker
from tests.interrupts.async_calls import ASYNC_CALLS
from tests.interrupts.async_running import ThreadCase, count_thread_places, run_thread
from tests.interrupts.places import Place, stopping_threads
from tests.interrupts.running import Runner
from tests.interrupts.stage import SETTINGS_OF_ALL
from tests.interrupts.watching import EXCEPTIONS, complaints_of
from tests.support.waiting import until

SEED = 17

NOT_TO_BE_CAUGHT: dict[str, Callable[[], BaseException]] = {"SystemExit": SystemExit}


@pytest.fixture(autouse=True)
def _unlogged(caplog: pytest.LogCaptureFixture) -> None:
    """Logged errors stay in memory until the test ends, with their tracebacks and everything that these refer to."""
    caplog.set_level(logging.CRITICAL + 1, logger="opslog")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.end()


@pytest.mark.parametrize("make", (EXCEPTIONS | NOT_TO_BE_CAUGHT).values(), ids=EXCEPTIONS | NOT_TO_BE_CAUGHT)
def test_a_background_thread_is_there_when_it_is_woken_next(make: Callable[[], BaseException]) -> None:
    """Whatever came into it at any place of its run, also before it had begun or when it was about to end."""
    numbers = iter(range(1, 1000))
    while came := wake_after(make, next(numbers)):
        """There is one more place."""
    assert not came
    assert next(numbers) > 30, "every place was tried"


def wake_after(make: Callable[[], BaseException], number: int) -> list[Place]:
    """The place where an exception came into a worker's thread, or empty if there is no such place. The worker then
    works the next two times that it is woken."""
    came: list[Place] = []
    runs: list[None] = []
    worker = Worker(
        "opslog-test", partial(runs.append, None), what="this test", delay_seconds=0.001, retry_seconds=0.001
    )

    def at(name: str, place: Place) -> None:
        if name == "opslog-test" and place.number == number and not came:
            came.append(place)
            raise make()

    def wake(hurry: bool) -> None:
        """Wake it until it has worked once more: a run that is under way may be the one that is stopped."""
        before = len(runs)
        until(lambda: worker.wake(hurry) and len(runs) > before)

    with complaints_of(), stopping_threads(at):
        wake(hurry=False)
        wake(hurry=True)
        until(lambda: not worker.is_awake)
        wake(hurry=False)
        worker.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "opslog-test"]
    return came


@pytest.mark.parametrize("count", [1, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("name", [call.name for call in ASYNC_CALLS])
def test_an_exception_in_a_thread_behind_a_call(runner: Runner, name: str, count: int) -> None:
    """Such threads write buffers, compact, write for tasks, and renew a lease; and there are asyncio's own. (A store
    without asyncio has the first two and the fourth of them.)"""
    chances = random.Random(f"{SEED} {name}")
    for setting in chances.sample(SETTINGS_OF_ALL, 1 if count == 1 else len(SETTINGS_OF_ALL)):
        places = count_thread_places(runner, name, setting)
        for thread, number in sorted(places.items()):
            for place in chances.sample(range(1, number + 1), min(count, number)):
                # These are exceptions that nobody should catch. A wait for a thread that one of them ended does not end
                # either.
                event = chances.choice([event for event in EXCEPTIONS if event != "KeyboardInterrupt"])
                case = ThreadCase(name, str(setting), thread, place, event)
                result = run_thread(runner, case)
                assert not result.problems, (
                    f"at {result.where}: {'; '.join(result.problems)}\n"
                    f"replay it, about, with: python -m tests.interrupts --replay-thread '{case}'"
                )
