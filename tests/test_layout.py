"""The meaning of a file's path, whatever its agent or period is called."""

from __future__ import annotations

import itertools
import re

import pytest

from opslog.errors import InvalidNameError
from opslog.format.layout import (
    AGENT_CHARACTERS_MAX,
    Kind,
    archive_path,
    check_agent,
    check_name,
    index_path,
    kind_of,
    manifest_path,
    part_path,
    run_name,
    segment_path,
    temporary_path,
)

HOSTILE_NAMES = [
    "build.tmp-1",
    "a.tmp-0123456789abcdef",
    "a.tmp-",
    "tmp-1",
    "x..",
    "0..tmp-1",
    "locks",
    "staging",
    "removed",
    "manifests",
    "snapshots",
    "ops",
    "archive",
    "00000000000000000001.jsonl",
    "00000000000000000001.jsonl.tmp-1",
    "00000000000000000001.json",
    "00000000000000000001-0123456789abcdef",
    "part-00000.index",
    "a.index",
    "a.lock",
    "x" * 122 + ".tmp-1",
]
"""Each is an allowed name for an agent and for a period."""


def own_files(name: str) -> dict[str, Kind]:
    archive = archive_path(name, "0123456789abcdef")
    return {
        segment_path(name, 1): Kind.SEGMENT,
        segment_path(name, 10**19): Kind.SEGMENT,
        archive: Kind.ARCHIVE,
        index_path(archive): Kind.ARCHIVE,
        f"locks/agents/{name}.lock": Kind.LOCK,
        f"locks/{name}.lease": Kind.LOCK,
    }


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_no_name_of_an_agent_or_a_period_makes_its_files_something_else(name: str) -> None:
    assert check_name(name, "agent") == name
    for path, kind in own_files(name).items():
        assert kind_of(path) is kind, path


def test_names_from_the_whole_alphabet() -> None:
    for first, middle, last in itertools.product("a0Z", [".", "-", "_", ".tmp-", "..", ".tmp-0.tmp-"], "a0.-_Z"):
        for path, kind in own_files(check_name(f"{first}{middle}{last}", "agent")).items():
            assert kind_of(path) is kind, path


def test_a_name_that_begins_like_a_temporary_file_is_refused() -> None:
    for name in (".tmp-1", "..", "."):
        with pytest.raises(InvalidNameError):
            check_name(name, "agent")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (manifest_path(7), Kind.MANIFEST),
        (part_path(run_name(7, "abc"), 0), Kind.PART),
        (index_path(part_path(run_name(7, "abc"), 0)), Kind.PART),
        ("store.json", Kind.STORE),
        ("store.json.tmp-1", Kind.TEMPORARY),
        ("ops/store.json", Kind.FOREIGN),
        ("locks/clock", Kind.LOCK),
        ("removed/abc/ops/a/00000000000000000007.jsonl.tmp-2", Kind.REMOVED),
        ("staging/abc/00000-1-00000.jsonl", Kind.STAGED),
        ("notes.txt", Kind.FOREIGN),
        ("ops/a.tmp-1/notes.txt", Kind.FOREIGN),
        ("ops/a.tmp-1/x/00000000000000000001.jsonl", Kind.FOREIGN),
        ("manifests/.tmp-1", Kind.FOREIGN),
        ("manifests/00000000000000000007.json.tmp-", Kind.FOREIGN),
        ("manifests/00000000000000000007.json.tmp-1.bak", Kind.FOREIGN),
        ("manifests/00000000000000000007.json.tmp-ü", Kind.FOREIGN),
        ("manifests/00000000000000000007.json.tmp-1\n", Kind.FOREIGN),
    ],
)
def test_the_kind_of_a_path(path: str, kind: Kind) -> None:
    assert kind_of(path) is kind


@pytest.mark.parametrize("nonce", ["0", "0123456789abcdef", "n1", "A"])
def test_a_file_being_created_is_temporary_until_it_has_its_name(nonce: str) -> None:
    paths = [path for path, kind in own_files("a.tmp-1").items() if kind is not Kind.LOCK]
    for path in (*paths, manifest_path(7), part_path(run_name(7, "abc"), 0), "staging/abc/x", "odd\nname"):
        temporary = temporary_path(path, nonce)
        assert re.fullmatch(r"\.tmp-[A-Za-z0-9]+", temporary.removeprefix(path))
        assert kind_of(temporary) is Kind.TEMPORARY, temporary


def test_no_agent_has_a_longer_name_than_is_said() -> None:
    longest = "x" * AGENT_CHARACTERS_MAX
    assert check_agent(longest) == longest
    with pytest.raises(InvalidNameError):
        check_agent(longest + "x")
