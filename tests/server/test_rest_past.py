"""Stores over HTTP: views of the past, which are kept for the next request."""

from __future__ import annotations

import pytest

import opslog
from opslog.doors.operations import Operations
from opslog.doors.values import Entry
from tests.support.rest import Rest, problem


def test_the_past_has_commits_that_come_late(rest: Rest, url: str) -> None:
    """An agent that has read nothing writes with a clock that has passed."""
    with opslog.open(url, agent="slow") as slow:
        clock = rest.ask("PUT", "/documents/a", {}).json()["stamp"].partition("@")[0]
        assert rest.ask("GET", f"/count?as_of={clock}").json()["documents"] == 1
        slow["late"] = {}
        assert rest.ask("GET", f"/count?as_of={clock}").json()["documents"] == 2
    rest.ask("PUT", "/documents/b", {})
    assert rest.ask("GET", f"/count?as_of={clock}").json()["documents"] == 2


def test_a_view_of_the_past_is_kept_while_nothing_is_written(rest: Rest) -> None:
    clock = rest.ask("PUT", "/documents/a", {}).json()["stamp"].partition("@")[0]
    (served,) = rest.application.stores
    kept: list[object] = []
    for _ in range(2):
        assert rest.ask("GET", f"/documents/a?as_of={clock}").json() == {}
        kept += [view.store for view in served._views.values()]
    assert kept[0] is kept[1]


def test_a_view_of_the_past_whose_files_were_collected_is_opened_again(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = rest.ask("PUT", "/documents/a", {}).json()["stamp"].partition("@")[0]
    assert rest.ask("GET", f"/documents/a?as_of={clock}").json() == {}
    (served,) = rest.application.stores
    (view,) = served._views.values()
    get = Operations.get

    def collected(self: Operations, id: str) -> Entry:
        if self.store is view.store:
            raise opslog.errors.ReopenError("its files were collected")
        return get(self, id)

    monkeypatch.setattr(Operations, "get", collected)
    assert rest.ask("GET", f"/documents/a?as_of={clock}").json() == {}
    (again,) = served._views.values()
    assert again.store is not view.store
    view = again

    def gone(*given: object, **named: object) -> None:
        raise opslog.errors.HistoryGoneError("that was compacted away")

    monkeypatch.setattr(opslog, "open", gone)
    problem(rest.ask("GET", f"/documents/a?as_of={clock}"), 410, "gone")


def test_many_points_of_the_past_leave_no_store_open(rest: Rest) -> None:
    clocks = []
    for number in range(12):
        clocks.append(rest.ask("PUT", "/documents/a", {"n": number}).json()["stamp"].partition("@")[0])
    for number, clock in enumerate(clocks):
        assert rest.ask("GET", f"/documents/a?as_of={clock}").json() == {"n": number}
    (served,) = rest.application.stores
    assert len(served._views) == 4
