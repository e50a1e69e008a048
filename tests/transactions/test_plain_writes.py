"""The rules of docs/library.md for plain writes beside transactions, by agents that have not read any transaction."""

from __future__ import annotations

import itertools

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
