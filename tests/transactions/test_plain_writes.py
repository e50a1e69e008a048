"""Plain writes beside transactions, by the rules of docs/library.md: those of agents that have not read any
transaction, and those in the block of one."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest

import opslog

_names = itertools.count()


@pytest.mark.parametrize(("commits", "winner"), [(0, "planner"), (999, "worker")])
def test_a_plain_write_loses_unless_its_writer_is_a_thousand_commits_ahead(commits: int, winner: str) -> None:
    url = f"memory://plain-{next(_names)}"
    with (
        opslog.open(url, agent="planner") as planner,
        opslog.open(url, agent="worker", compact_after=None, durability="buffered") as worker,
    ):
        planner.create("claim", {"by": "planner"})
        for number in range(commits):
            worker["count"] = {"n": number}
        worker["claim"] = {"by": "worker"}  # without having read it; the call succeeds
        worker.flush()
        with opslog.open(url, agent="late") as late, pytest.raises(opslog.ExistsError) as caught:
            late.create("claim", {"by": "late"})
        assert caught.value.record.author == winner
        for store in (planner, worker):
            store.refresh()
            assert store["claim"] == {"by": winner}


@pytest.mark.parametrize("log", ["own", "shared"])
def test_a_plain_write_in_a_block_is_refused_in_the_first_block_and_in_later_ones(
    log: Literal["own", "shared"],
) -> None:
    """Also where there was no transaction before."""
    with opslog.open(f"memory://plain-{next(_names)}", agent="a", log=log) as store:
        for number in range(2):
            with store.transaction():
                with pytest.raises(opslog.UsageError, match="write through it"):
                    store["x"] = {}
                with ThreadPoolExecutor(1) as other:  # it is in no block
                    other.submit(store.set, f"other-{number}", {}).result()
        assert sorted(store) == ["other-0", "other-1"]
