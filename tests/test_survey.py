"""A survey of a store: the newest manifest, cursors, the listing. It is accepted if the manifest is still the
newest."""

from __future__ import annotations

import itertools

import pytest

import opslog
from opslog.backends import open_backend
from opslog.compaction.compact import compact
from opslog.environment import REAL
from opslog.errors import MissingFileError
from opslog.format.commits import Commit
from opslog.format.manifest import Cut, Manifest
from opslog.log.reader import Cursor
from opslog.log.survey import Survey, at_cut, check_reaches, list_logs, read_on, survey, unread
from opslog.snapshot.manifests import ManifestStore
from tests.support import bucket  # noqa: F401  (stores at bucket://)

_numbers = itertools.count()
SETTINGS = opslog.Settings(undo_window=0, grace_seconds=0)


@pytest.fixture(params=["memory", "bucket"])
def url(request: pytest.FixtureRequest) -> str:
    """Two kinds: segments grow, or each append is a segment."""
    return f"{request.param}://survey-{next(_numbers)}"


def write(url: str, agent: str, count: int) -> None:
    with opslog.open(url, agent=agent, settings=SETTINGS, compact_after=None) as store:
        for number in range(count):
            store[f"{agent}-{number}"] = {"n": number}


def commits_of(url: str, found: Survey) -> list[Commit]:
    read = read_on(open_backend(url), found.cursors, unread(found.cursors, found.segments))
    return [commit for commits, _ in read for commit in commits]


def test_a_survey_begins_at_the_cut(url: str) -> None:
    write(url, "a", 3)
    backend = open_backend(url)
    compact(backend, REAL)
    write(url, "a", 2)
    write(url, "b", 1)
    found = survey(ManifestStore(backend), lambda found: found)
    assert found.manifest.number == 2
    assert found.cursors == {"a": Cursor.at("a", found.manifest.cut["a"])}
    assert found.listed == {"a", "b"}
    assert [(commit.agent, commit.clock) for commit in commits_of(url, found)] == [("a", 4), ("a", 5), ("b", 6)]
    assert found.snapshot_bytes > 0
    entries = {entry.path: entry.size for entry in backend.list("ops/")}
    assert 0 < found.log_bytes <= sum(entries.values())
    assert found.log_cost >= found.log_bytes


def test_a_survey_is_taken_again_if_a_manifest_came_meanwhile(url: str) -> None:
    write(url, "a", 3)
    backend = open_backend(url)
    seen: list[int] = []

    def read(found: Survey) -> list[int]:
        seen.append(found.manifest.number)
        if len(seen) == 1:
            compact(backend, REAL)
        return [commit.clock for commit in commits_of(url, found)]

    assert survey(ManifestStore(backend), read) == []
    assert seen == [1, 2]


def test_a_log_that_is_known_is_in_the_listing_though_nothing_of_it_is_there() -> None:
    url = f"bucket://survey-{next(_numbers)}"
    write(url, "a", 3)
    backend = open_backend(url)
    compact(backend, REAL)
    newest = ManifestStore(backend).newest()
    backend.delete([entry.path for entry in backend.list("ops/")])
    found = list_logs(backend, newest, at_cut(newest))
    assert found.segments == {"a": []}
    assert found.listed == frozenset()
    assert list_logs(backend, newest, at_cut(newest), known=["z"]).segments == {"z": []}


MANIFEST = Manifest(number=2, created="", cut={"a": Cut(3, 10, 5)})


@pytest.mark.parametrize(
    ("cursor", "moved"),
    [
        (None, Cursor.at("a", Cut(3, 10, 5))),
        (Cursor("a", 1, 70, 4, 9), Cursor.at("a", Cut(3, 10, 5))),  # the commits in between are compacted
        (Cursor("a", 2, 50, 5, 9), Cursor("a", 3, 10, 5, 9, 3)),  # there are none in between
        (Cursor("a", 3, 90, 6, 9), Cursor("a", 3, 90, 6, 9)),  # farther on
    ],
)
def test_a_cursor_is_moved_to_the_cut_and_never_back(cursor: Cursor | None, moved: Cursor) -> None:
    other = Cursor("b", 7, 7, 7)
    cursors = {"b": other} if cursor is None else {"a": cursor, "b": other}
    assert at_cut(MANIFEST, cursors) is cursors
    assert cursors == {"a": moved, "b": other}


def test_a_log_has_to_reach_up_to_the_cut() -> None:
    check_reaches(Cursor("a", 3, 10), MANIFEST)
    check_reaches(Cursor("unknown"), MANIFEST)
    with pytest.raises(MissingFileError, match="byte 10, which manifest 2 knows"):
        check_reaches(Cursor("a", 3, 9), MANIFEST)
