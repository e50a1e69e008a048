"""A compaction that misses a log: it lists one log of an author, is paused, and lists the author's other log when the
author has written to both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import opslog
from opslog.format.layout import TRANSACTIONS
from opslog.log.reader import list_segments


def check_undo_after_missing(url: str, missed: str, compact: Callable[[opslog.Store[dict[str, Any]]], object]) -> None:
    """Check that no undo passes the commit that such a compaction saw without the older one.

    :param missed: the log that the compaction misses: that of agent a, or the shared one.
    :param compact: compacts this store, which another agent has opened.
    """
    options: dict[str, Any] = {"settings": opslog.Settings(undo_window=2), "compact_after": None}
    with opslog.open(url, agent="a", **options) as a, opslog.open(url, agent="b", **options) as b:
        b.create("b", {"n": 0})
        a.refresh()
        if missed == "a":
            a["older"] = {}
            a.create("newer", {})
            for number in range(3):
                b.modify("b", lambda document, number=number: {"n": number})  # type: ignore[misc]
        else:
            a.create("older", {})
            a["newer"] = {}
            a["undone"] = {}
            assert a.undo()
            assert not a.undo(), "the newest one that is left is out of reach"

        with pytest.MonkeyPatch.context() as patch:

            def without(*arguments: Any) -> Any:
                patch.undo()
                return {agent: segments for agent, segments in list_segments(*arguments).items() if agent != missed}

            patch.setattr("opslog.log.survey.list_segments", without)
            compact(b)
    with opslog.open(url, agent="a", **options) as a:
        assert {"older", "newer"} <= set(a)
        assert not a.undo()


BOTH_LOGS = pytest.mark.parametrize("missed", ["a", TRANSACTIONS])
