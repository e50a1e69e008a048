"""A task is cancelled at each place where a call of asyncio's store waits: right away, a little later, and when the
awaited result is there but the task has not seen it yet."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import pytest

from tests.interrupts.async_calls import ASYNC_CALLS
from tests.interrupts.async_running import MOMENTS, AsyncCase, count_waits, run_async
from tests.interrupts.running import Runner
from tests.interrupts.stage import SETTINGS_OF_ALL

SEED = 17


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.end()


@pytest.mark.parametrize("count", [2, pytest.param(len(SETTINGS_OF_ALL), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [call.name for call in ASYNC_CALLS])
def test_a_task_is_cancelled_wherever_it_waits(runner: Runner, name: str, count: int) -> None:
    for setting in random.Random(f"{SEED} {name}").sample(SETTINGS_OF_ALL, count):
        waits = count_waits(runner, name, setting)
        for number, moment in product(range(1, waits + 1), MOMENTS):
            case = AsyncCase(name, str(setting), number, moment)
            result = run_async(runner, case)
            assert not result.problems, (case, result.problems)
