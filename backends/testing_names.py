"""The part of the backend contract that is about names; see `opslog.backends.testing`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from opslog.backends.contract import Backend, Position, Range
from opslog.errors import InvalidNameError
from opslog.format.layout import LOCKS, OPS, segment_path

OpenBackend = Callable[[], Backend]

BAD_PATHS = ["", "/", "/a", "a/", "a//b", ".", "..", "./a", "a/.", "../a", "a/../b", "a/..", "a\0b", "a\ud800b"]
ODD_PATHS = [
    "a",
    "a.b/c",
    "...",
    ".hidden/.file",
    "with space/ and more ",
    "new\nline",
    "back\\slash",
    "star*?[x]{y}",
    "per%20cent+plus",
    "quote'\"`$",
    "hash#fragment?query=1&x",
    "ünïcödé/日本語/\U0001f600",
    "e\u0301 and \u00e9",
    "UPPER/lower",
]


class NamesContract:
    """Paths, agents, periods and locks, with every name that they may have."""

    # Names that no store uses. Leave out names that your storage cannot have at all.
    odd_paths: Sequence[str] = ODD_PATHS

    @pytest.mark.parametrize("path", BAD_PATHS)
    def test_paths_that_could_leave_the_storage_are_refused(self, backend: Backend, path: str) -> None:
        with pytest.raises(InvalidNameError):
            backend.create(path, b"")
        with pytest.raises(InvalidNameError):
            backend.read(path)
        with pytest.raises(InvalidNameError):
            backend.read_many([Range(path)])
        with pytest.raises(InvalidNameError):
            backend.map(path)
        with pytest.raises(InvalidNameError):
            backend.delete([path])
        assert paths_of(backend) == []

    @pytest.mark.parametrize("prefix", ["ops", "/", "/ops/", "../", "ops//", "ops/../", "./", "o\0/"])
    def test_prefixes_are_empty_or_directories(self, backend: Backend, prefix: str) -> None:
        with pytest.raises(InvalidNameError):
            backend.list(prefix)

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", ".a", "ä", "a b", "a\n", "a" * 129])
    def test_names_of_agents_and_locks(self, backend: Backend, name: str) -> None:
        with pytest.raises(InvalidNameError):
            backend.appender(name)
        with pytest.raises(InvalidNameError), backend.lock(name):
            pytest.fail("the name was accepted")
        longest = "a" * 128
        backend.appender(longest).close()
        with backend.lock(longest):
            pass

    @pytest.mark.parametrize(
        "agent", ["build.tmp-1", "a.tmp-0123456789abcdef", "a..", "ops", "locks", "a.lock", "0.jsonl"]
    )
    def test_a_name_of_an_agent_that_looks_like_a_file(self, opener: OpenBackend, agent: str) -> None:
        for segment in (1, 2):
            appender = opener().appender(agent)
            assert appender.append(b"x\n").segment == segment
            appender.close()
        reader = opener()
        expected = [segment_path(agent, 1), segment_path(agent, 2)]
        assert [entry.path for entry in reader.list_logs({})] == paths_of(reader) == expected
        with reader.lock(agent):
            reader.appender(agent).close()
        assert log_of(reader, agent) == b"x\nx\n"

    def test_names_that_differ_in_case_alone_are_two_or_one_is_refused(self, opener: OpenBackend) -> None:
        logs = {}
        for agent in ("Build", "build", "BUILD"):
            with suppress(InvalidNameError):
                appender = opener().appender(agent)
                assert appender.append(agent.encode() + b"\n") == Position(1, 0)
                appender.close()
                logs[agent] = agent.encode() + b"\n"
        periods = []
        for period in ("Old", "old"):
            with suppress(InvalidNameError):
                opener().create(f"archive/{period}/1.jsonl", period.encode())
                periods.append(f"archive/{period}/1.jsonl")
        reader = opener()
        assert paths_of(reader) == sorted([*periods, *(segment_path(agent, 1) for agent in logs)])
        assert {agent: log_of(reader, agent) for agent in logs} == logs
        for period in ("Old", "old"):
            assert set(paths_of(reader, f"archive/{period}/")) <= {f"archive/{period}/1.jsonl"}

    def test_odd_names_are_kept(self, backend: Backend) -> None:
        paths = self.odd_paths
        for path in paths:
            backend.create(path, path.encode())
        assert paths_of(backend) == sorted(paths)
        assert backend.read_many([Range(path) for path in paths]) == [path.encode() for path in paths]
        backend.delete(paths)
        assert paths_of(backend) == []


def paths_of(backend: Backend, prefix: str = "") -> list[str]:
    """The listed paths, without files that the storage may keep for its locks."""
    return [entry.path for entry in backend.list(prefix) if not entry.path.startswith(LOCKS)]


def log_of(backend: Backend, agent: str) -> bytes:
    """All bytes of a log, segment by segment."""
    parts = backend.read_many([Range(path) for path in paths_of(backend, f"{OPS}{agent}/")])
    assert None not in parts
    return b"".join(part for part in parts if part is not None)
