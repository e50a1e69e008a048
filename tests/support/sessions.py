"""Sessions of one agent on a failing storage: what was acknowledged, compared with what is there."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import opslog


def act(url: str, sessions: int, **options: Any) -> tuple[dict[str, Any], set[str]]:
    """Write, compact and collect. Returns what was acknowledged, and the ids with an unknown outcome."""
    known: dict[str, Any] = {}
    unknown: set[str] = set()
    settings = opslog.Settings(undo_window=1, grace_seconds=0)
    for session in range(sessions):
        with (
            suppress(opslog.OpslogError),
            opslog.open(url, agent="a", compact_after=None, settings=settings, **options) as store,
        ):
            for number in range(2):
                id = f"{session}-{number}"
                with suppress(opslog.RetryError, opslog.ReopenError):
                    try:
                        store[id] = {"number": number}
                        known[id] = {"number": number}
                    except opslog.CommitUnknownError:
                        unknown.add(id)
            store.compact()
    return known, unknown
