"""Stores of earlier versions stay readable, and this version can write to them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import open_backend
from opslog.format.checksum import encode_checked
from opslog.format.layout import manifest_path
from opslog.format.manifest import Manifest
from opslog.snapshot.manifests import ManifestStore
from opslog.verify.verify import verify
from tests.fixtures.write_store import write

FIXTURES = Path(__file__).parent / "fixtures"
KEPT = sorted(path.parent.name for path in FIXTURES.glob("*/expected.json"))


@pytest.fixture(params=[*KEPT, "present"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a kept store, or a store of this version."""
    place = tmp_path / "old"
    if request.param == "present":
        write(place)
    else:
        shutil.copytree(FIXTURES / request.param, place)
    return place


def expected_of(place: Path) -> Any:
    return json.loads((place / "expected.json").read_text(encoding="utf-8"))


def now(expected: Any) -> dict[str, Any]:
    """The documents at the end."""
    documents: dict[str, Any] = expected["as_of"][max(expected["as_of"], key=int)]
    return documents


def test_there_are_old_stores() -> None:
    assert "format-1" in KEPT


def test_an_old_store_is_what_it_was(place: Path) -> None:
    expected = expected_of(place)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with opslog.open(place / "store", read_only=True, version=None) as store:
        assert dict(store.items()) == now(expected)
        assert {period: store.load_archive(period) for period in store.archives()} == expected["archives"]
    assert len(expected["as_of"]) > 3
    for clock, documents in expected["as_of"].items():
        with opslog.open(place / "store", as_of=int(clock), version=None) as past:
            assert dict(past.items()) == documents, clock
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_an_old_store_verifies_with_its_torn_tails(place: Path) -> None:
    report = verify(open_backend(place / "store"))
    assert {problem.severity for problem in report.problems} == {"note"}, list(map(str, report.problems))
    assert [problem.path.split("/")[1] for problem in report.problems] == ["planner", "worker"]
    assert report.runs > 2
    assert report.archives == 2
    assert report.manifests > 3


def test_work_goes_on_in_an_old_store(place: Path) -> None:
    root, expected = place / "store", now(expected_of(place))
    with opslog.open(root, agent="planner", compact_after=None, version=None) as store:
        before = store.stats().clock
        assert store.undo(), "what its last session wrote"
        del expected["to be undone"]
        assert dict(store.items()) == expected
        store["new"] = expected["new"] = {"by": "this version"}
        assert store.stats().clock == before + 2
    for full in (False, True):
        for agent in ("worker", "visitor", "newcomer"):
            with opslog.open(root, agent=agent, compact_after=None, version=None) as store:
                assert dict(store.items()) == expected
                for number in range(5):
                    store[agent] = expected[agent] = {"number": number}
                store.compact(full=full, keep_history=0)
                assert dict(store.items()) == expected
        assert verify(open_backend(root)).ok
        with opslog.open(root, read_only=True, version=None) as fresh:
            assert dict(fresh.items()) == expected


class Later(Manifest, frozen=True, kw_only=True):
    """A manifest of a future version."""

    more: int = 1


CALLS: dict[str, Callable[[Path], object]] = {
    "read": lambda root: opslog.open(root, read_only=True, version=None),
    "write": lambda root: opslog.open(root, agent="planner"),
    "past": lambda root: opslog.open(root, as_of=2**60),
    "verify": lambda root: verify(open_backend(root)),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_store_of_a_newer_version_is_refused_with_the_version_it_takes(tmp_path: Path, call: str) -> None:
    with opslog.open(tmp_path, agent="planner") as store:
        store["x"] = {}
    backend = open_backend(tmp_path)
    newest = ManifestStore(backend).newest()
    later = Later(format=7, number=newest.number + 1, created=newest.created, clock=5, settings=newest.settings, more=2)
    backend.create(manifest_path(later.number), encode_checked(later))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(opslog.FormatVersionError, match=r"format.* 7.*upgrade opslog") as caught:
        CALLS[call](tmp_path)
    assert caught.value.needed == 7
    assert [path for path in sorted(tmp_path.rglob("*")) if "locks" not in path.parts] == [
        path for path in before if "locks" not in path.parts
    ]
