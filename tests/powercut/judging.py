"""Whether a store keeps its promises after a power cut."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import opslog
from opslog.archive import read_archive
from opslog.backends import open_backend, posix
from opslog.format.commits import Batch, Commit, Delete, DeleteOp, Seal, Set, decode_commits
from opslog.format.layout import segment_of
from opslog.log.reader import Cursor
from opslog.merge.merge import reference
from opslog.store import replica_of
from opslog.verify.verify import verify
from tests.powercut.disk import Ack, Event, Image, Write
from tests.powercut.story import SETTINGS, STORE, opened

Logs = dict[str, list[Commit]]

_SEGMENT = re.compile(r"ops/[^/]+/[^/]+\.jsonl$")


class Written:
    """The commits that agents wrote into their logs, and which of them were acknowledged, up to a point of a run.

    :param before: the durable content of the logs when the run began.
    """

    def __init__(self, before: Logs | None = None) -> None:
        self._before = before or {}
        self._segments: dict[tuple[str, int], bytearray] = {}
        self._acknowledged: dict[str, int] = {agent: log[-1].clock for agent, log in self._before.items() if log}

    def apply(self, event: Event) -> None:
        match event:
            case Write(path, _, offset, data):
                found = _SEGMENT.search(path)
                named = segment_of(found[0]) if found else None
                if named is not None:
                    segment = self._segments.setdefault(named, bytearray())
                    segment[offset:] = data
            case Ack(agent, clock):
                self._acknowledged[agent] = max(clock, self._acknowledged.get(agent, 0))
            case _:
                pass

    @property
    def is_promised(self) -> bool:
        """Whether anybody got any acknowledgement, if only that the store exists."""
        return bool(self._acknowledged)

    @property
    def key(self) -> tuple[object, ...]:
        """Two keys differ if different things were promised."""
        return tuple(sorted(self._acknowledged.items()))

    def commits(self) -> Logs:
        """Per agent all whole lines of its log, including those that were compacted and collected."""
        logs = {agent: list(log) for agent, log in self._before.items()}
        for agent, number in sorted(self._segments):
            data = bytes(self._segments[agent, number])
            logs.setdefault(agent, []).extend(decode_commits(data[: data.rfind(b"\n") + 1], agent, 0))
        return logs

    def promised(self, agent: str, log: list[Commit]) -> int:
        """How many commits of a log were acknowledged. (A seal is acknowledged to nobody, and its clock says nothing
        about other commits.)"""
        clock = self._acknowledged.get(agent, 0)
        own = (number for number, commit in enumerate(log, 1) if not isinstance(commit, Seal) and commit.clock <= clock)
        return max(own, default=0)


def write_out(image: Image, place: Path) -> None:
    for path, data in image.items():
        if data is None:
            (place / path).mkdir(parents=True, exist_ok=True)
        else:
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(data)


@contextmanager
def nothing_synced() -> Iterator[None]:
    """Makes fsync cheap where no power cut is simulated."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(posix, "datasync", lambda descriptor: None))
        stack.enter_context(patch("os.fsync", lambda descriptor: None))
        yield


def survivors(world: Path, written: Written) -> Logs:
    """The commits of the logs that are left after a power cut, including compacted ones."""
    try:
        counts = _read(world / STORE)[1]
    except opslog.NotFoundError:
        return {}
    return {agent: log[: counts.get(agent, 0)] for agent, log in written.commits().items()}


def judge(world: Path, written: Written) -> None:
    """Open the store that a power cut has left, and use it. Fails if a promise is broken."""
    root = world / STORE
    with nothing_synced():
        try:
            found, counts = _read(root)
        except opslog.NotFoundError:
            assert not written.is_promised, "the store is gone"
            found, counts = {}, {}
        else:
            _check_clean(root)
            _check_promises(written, found, counts)
            _check_archives(root, written, counts)
        _go_on(root, found, sorted(written.commits()))


def _read(root: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """All documents, and how many commits of each log they include."""
    with opslog.open(root, read_only=True) as store:
        cursors: dict[str, Cursor] = replica_of(store).state.cursors
        return dict(store.items()), {agent: cursor.commits for agent, cursor in cursors.items()}


def _check_clean(root: Path) -> None:
    report = verify(open_backend(root))
    assert report.ok, "\n".join(map(str, report.problems))


def _check_promises(written: Written, found: dict[str, Any], counts: dict[str, int]) -> None:
    """Each log has all acknowledged commits, then maybe some of the others in order, and nothing else."""
    there: list[Commit] = []
    for agent, log in written.commits().items():
        count = counts.get(agent, 0)
        assert written.promised(agent, log) <= count <= len(log), f"{agent}: {count} commits of {len(log)}"
        there += log[:count]
    winners = reference(there)
    expected = {id: winner.document for id, winner in winners.items() if isinstance(winner, Set)}
    assert found == expected


def _check_archives(root: Path, written: Written, counts: dict[str, int]) -> None:
    """A document that an archive took out of the store is in that archive."""
    backend = open_backend(root)
    for agent, log in written.commits().items():
        for commit in log[: counts.get(agent, 0)]:
            ops = commit.ops if isinstance(commit, Batch) else [commit]
            for op in ops:
                if isinstance(op, Delete | DeleteOp) and op.archived is not None:
                    assert op.id in read_archive(backend, op.archived)


def _go_on(root: Path, documents: dict[str, Any], agents: list[str]) -> None:
    """All agents come back and write. After a compaction and two reads everything is as they expect."""
    expected = dict(documents)
    for turn in range(2):
        for agent in [*agents, "new"]:
            with opened(root, agent, SETTINGS) as store:
                assert dict(store.items()) == expected
                store[f"{agent}-after"] = {"turn": turn}
                if replica_of(store).state.manifest.settings.undo_window:
                    store["undone"] = {}
                    assert store.undo()
                expected[f"{agent}-after"] = {"turn": turn}
                if agent == "new":
                    store.compact(full=turn == 1)
                    store.refresh()
                    assert dict(store.items()) == expected
        _check_clean(root)
    assert _read(root)[0] == expected


def shown(image: Image) -> str:
    """An image of a disk as text for people."""
    return "\n".join(f"{path}: {json.dumps((data or b'').decode(errors='replace'))}" for path, data in image.items())
