"""The feed, broken on purpose in one place at a time."""

from __future__ import annotations

from typing import Any

from opslog.format.commits import Commit, Record
from opslog.log.reader import Segments
from opslog.replica import feed
from opslog.replica.feed import Ends, Feed
from opslog.replica.state import State
from opslog.snapshot.manifests import ManifestStore
from tests.simulation.breakages import Breakage, likely

_Read = tuple[list[tuple[Commit, tuple[str, ...]]], dict[str, Record | None], bool]

_read = Feed._read


def _skip_late(self: Feed[Any], state: State, logs: Segments, ends: Ends, limit: int | None) -> _Read:
    """It takes the clock for a cursor."""
    clock = state.clock
    commits, touched, is_all = _read(self, state, logs, ends, limit)
    found = [(commit, ids) for commit, ids in commits if commit.clock > clock]
    kept = {id for _, ids in found for id in ids}
    return found, {id: record for id, record in touched.items() if id in kept}, is_all


def _say_all_was_read(self: Feed[Any], *arguments: Any) -> _Read:
    """It names the newest manifest although commits are left."""
    return *_read(self, *arguments)[:2], True


def _by_the_cut(self: Feed[Any], state: State, *arguments: Any) -> _Read:
    """It names the newest manifest as soon as its cut is reached."""
    commits, touched, _ = _read(self, state, *arguments)
    cut = ManifestStore(self._backend).newest().cut
    is_reached = all(agent in state.cursors and state.cursors[agent].commits >= at.commits for agent, at in cut.items())
    return commits, touched, is_reached


def _only_changed(touched: dict[str, Record | None], state: State) -> Any:
    """It leaves out documents that are as they were at the token."""
    for id in sorted(touched):
        before, now = touched[id], state.record(id)
        if (before is None or before.op == "delete") != (now is None or now.op == "delete") or (
            before is not None and now is not None and before.stamp != now.stamp
        ):
            yield id, now, before is not None and before.op == "set"


def _retained(self: Feed[Any], number: int) -> bool:
    return True


def _not_persisted(self: Feed[Any], *arguments: Any) -> None:
    """It hands out commits that are not on disk."""


_busy: dict[str, Any] = {"consumers": 2, "readers": 0, "compactors": 1, "calls": 30, "documents": 4}

FEED = [
    Breakage(
        "skip delayed commits",
        Feed,
        "_read",
        _skip_late,
        likely("posix", {}, **_busy),
    ),
    Breakage(
        "name the newest manifest in a token before all commits are read",
        Feed,
        "_read",
        _say_all_was_read,
        likely("posix", {}, **_busy | {"compactors": 3}, undo_window=0, grace_seconds=30.0),
    ),
    Breakage(
        "name the newest manifest in a token once its cut is reached",
        Feed,
        "_read",
        _by_the_cut,
        likely(
            "posix",
            {},
            **_busy | {"agents": 1, "consumers": 6, "compactors": 4, "calls": 60, "documents": 2},
            undo_window=1,
            grace_seconds=1e6,
            weights={"set": 4, "undo": 4},
        ),
    ),
    Breakage(
        "leave documents out of the changes that are as before",
        feed,
        "_changed",
        _only_changed,
        likely(
            "posix",
            {},
            **_busy | {"agents": 2, "consumers": 5, "calls": 60},
            weights={"set": 4, "undo": 4, "refresh": 2},
        ),
    ),
    Breakage(
        "continue from a token whose manifest was collected",
        Feed,
        "_is_retained",
        _retained,
        likely(
            "posix",
            {},
            **_busy | {"compactors": 4},
            undo_window=0,
            grace_seconds=0.1,
            think_seconds=1.0,
        ),
        first=1,
    ),
    Breakage(
        "return changes that are not on disk",
        Feed,
        "_persist",
        _not_persisted,
        likely("posix", {"pause after": 2.0, "power": 1.0}, 20, 1500, {"pause after": "write"}, **_busy),
    ),
]
