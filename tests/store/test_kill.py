"""Writers are killed with SIGKILL at random moments, and the last lines of logs are cut anywhere.

Acknowledged commits are there after reopening. Others are there whole, or not at all.
"""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.format.layout import segment_path
from tests.support import programs
from tests.support.places import DIRECTORY, LOSSY, REMOTE, SERVERS, Place
from tests.support.processes import start
from tests.support.programs import Changes
from tests.support.waiting import until

Documents = dict[str, Any]

WINDOW = opslog.Settings().undo_window


class Journal:
    """The documents after each of one agent's commits, computed in the plain way from the beginning."""

    def __init__(self) -> None:
        self.commits: list[Changes | None] = []
        """All commits in order; None for an undo."""
        self.cancelled: set[int] = set()

    def take(self, announced: dict[str, Any]) -> None:
        if "changes" in announced:
            self.commits.append(announced["changes"])
            return
        reach = range(len(self.commits) - 1, max(-1, len(self.commits) - 1 - WINDOW), -1)
        target = next((n for n in reach if self.commits[n] is not None and n not in self.cancelled), None)
        if target is not None:
            self.cancelled.add(target)
            self.commits.append(None)

    def documents(self) -> Documents:
        documents: Documents = {}
        for number, changes in enumerate(self.commits):
            if changes is not None and number not in self.cancelled:
                documents |= changes
        return {id: document for id, document in documents.items() if document is not None}


SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]


KINDS = [("set", None), ("batch", None), ("undo", None), ("batch", 20), ("undo", 20)]


@pytest.mark.parametrize(
    ("place", "kind", "compact_after", "kills"),
    [
        *((DIRECTORY, *kind, 4) for kind in KINDS),
        *(pytest.param(DIRECTORY, *kind, 10, marks=pytest.mark.long) for kind in KINDS),
        *(pytest.param(server, "undo", 20, 2, marks=pytest.mark.long) for server in (REMOTE, LOSSY, *SERVERS)),
        *(pytest.param(place, *kind, 50, marks=SLOW) for place in (DIRECTORY, *SERVERS) for kind in KINDS),
        *(pytest.param(place, *kind, 15, marks=SLOW) for place in (REMOTE, LOSSY) for kind in KINDS),
    ],
    indirect=["place"],
)
def test_a_killed_writer_keeps_every_acknowledged_commit_and_no_half_one(
    place: Place, kind: str, compact_after: int | None, kills: int
) -> None:
    """If there is an opslog server in between, it is killed, too: while the writer writes, and after the writer.

    :param compact_after: if it is a number, kills also hit automatic compactions.
    """
    rng = random.Random(f"{kind} {compact_after} {kills}")
    url = place.url("plain")
    journal, number = Journal(), 0
    documents: Documents = {}
    with opslog.open(url, agent="reader", compact_after=None) as reader:
        for _ in range(kills):
            with start(programs.journal, url, kind, number, {"compact_after": compact_after}) as writer:
                said = [writer.hear() for _ in range(rng.randrange(1, 75))]
                place.restart()
                said += [writer.hear() for _ in range(rng.randrange(1, 75))] + writer.kill()
            place.restart()  # so that the name is free at once
            number = max([number, *(line["done"] for line in said if "done" in line)])
            announced = [line for line in said if "done" not in line]
            acknowledged = sum("done" in line for line in said)
            assert len(announced) - acknowledged in (0, 1)
            for line in announced[:acknowledged]:
                journal.take(line)
            without = journal.documents()

            reopened, found = open_after_kill(place, number)
            with reopened:
                if found != without:
                    # Then it is the commit that the kill interrupted, and all of it.
                    journal.take(announced[-1])
                    assert found == journal.documents()
                    number += 1
                journal.take({"changes": {"settled": reopened["settled"]}})
                documents = dict(reopened.items())
                assert documents == journal.documents()
                assert list(reopened.ops())  # every remaining line can be read
                if rng.random() < 0.3:
                    compact(reopened, full=rng.random() < 0.3)
            reader.refresh()
            assert dict(reader.items()) == documents
    with opslog.open(url, read_only=True) as fresh:
        assert dict(fresh.items()) == documents


def open_after_kill(place: Place, number: int) -> tuple[opslog.Store[Any], Documents]:
    """Opens the killed writer's store, and returns its content. Then it writes one more commit: after that nothing can
    come from the killed process, whose last request may still be on its way to a server."""
    while True:
        store = opslog.open(place.url("plain"), agent="writer", compact_after=None, **place.options)
        found = dict(store.items())
        try:
            store["settled"] = {"number": number}
        except opslog.AgentFencedError:
            store.close()  # it has just arrived
        else:
            return store, found


def compact(store: opslog.Store[Any], *, full: bool) -> opslog.Compaction:
    """Compact, as soon as the lease of a killed compaction has run out."""
    done: list[opslog.Compaction] = []

    def is_done() -> bool:
        with suppress(opslog.LockedError):
            done.append(store.compact(full=full))
        return bool(done)

    until(is_done)
    return done[0]


def write_before(store: opslog.Store[Any]) -> Documents:
    store["kept"] = {"text": "line one\nline two ✓"}
    store["changed"] = {"turn": 1}
    return dict(store.items())


def write_set(store: opslog.Store[Any]) -> None:
    store["changed"] = {"turn": 2, "text": "ümläut ✓ \u2028 🜁"}


def write_delete(store: opslog.Store[Any]) -> None:
    del store["changed"]


def write_batch(store: opslog.Store[Any]) -> None:
    with store.batch():
        store["changed"] = {"turn": 2}
        store["new"] = {"text": "\N{PILE OF POO}"}
        del store["kept"]


def write_undo(store: opslog.Store[Any]) -> None:
    assert store.undo()


@pytest.mark.long
@pytest.mark.parametrize("last", [write_set, write_delete, write_batch, write_undo])
def test_a_last_line_cut_anywhere_harms_nothing_before_and_nothing_after(tmp_path: Path, last: Any) -> None:
    whole = tmp_path / "whole"
    log = segment_path("writer", 1)
    with opslog.open(whole, agent="writer", compact_after=None) as store:
        before = write_before(store)
        start_of_last = (whole / log).stat().st_size
        last(store)
        after = dict(store.items())
    data = (whole / log).read_bytes()
    assert before != after
    assert data[:start_of_last].endswith(b"\n")
    for cut in range(start_of_last, len(data) + 1):
        torn = tmp_path / "torn"
        shutil.copytree(whole, torn)
        (torn / log).write_bytes(data[:cut])
        check_torn(torn, after if cut == len(data) else before)
        assert (torn / log).read_bytes() == data[:cut], f"cut at byte {cut}: the torn line was touched"
        shutil.rmtree(torn)


def check_torn(torn: Path, expected: Documents) -> None:
    """Everybody who opens it sees `expected` and the next commits of its writer, before and after a compaction."""
    with opslog.open(torn, agent="other", compact_after=None) as other:
        assert dict(other.items()) == expected
        commits = len(list(other.ops()))
        with opslog.open(torn, agent="writer", compact_after=None) as store:
            assert dict(store.items()) == expected
            store["next"] = {"after": "the tear"}
            clock = store.stats().clock
        expected = expected | {"next": {"after": "the tear"}}
        assert [commit.clock for commit in other.refresh()] == [clock]
        assert dict(other.items()) == expected
        assert len(list(other.ops())) == commits + 1
        with opslog.open(torn, agent="writer", compact_after=None) as store:
            assert store.undo()
            assert "next" not in store
            store["next"] = {"after": "the tear"}
        for number in range(WINDOW):
            other[f"other-{number}"] = {}
        other.compact()
        other.refresh()
        assert {id: document for id, document in other.items() if not id.startswith("other-")} == expected
    with opslog.open(torn, read_only=True) as fresh:
        assert {id: document for id, document in fresh.items() if not id.startswith("other-")} == expected


@pytest.mark.parametrize(
    ("place", "kills"),
    [
        (DIRECTORY, 4),
        pytest.param(DIRECTORY, 50, marks=SLOW),
        *(pytest.param(server, 2, marks=pytest.mark.long) for server in (REMOTE, LOSSY, *SERVERS)),
        *(pytest.param(server, 20, marks=SLOW) for server in (REMOTE, LOSSY, *SERVERS)),
    ],
    indirect=["place"],
)
def test_a_killed_compaction_loses_nothing_and_its_garbage_is_collected(
    place: Place, tmp_path: Path, kills: int
) -> None:
    rng = random.Random(kills)
    url = place.url("compacted")
    settings = opslog.Settings(grace_seconds=0, undo_window=2)
    with opslog.open(url, agent="writer", settings=settings, compact_after=None, **place.options) as store:
        wanted: Documents = {}
        for kill in range(kills):
            with start(programs.compact, url, place.options) as compactor:
                assert compactor.hear() == "ready"
                for number in range(rng.randrange(300)):
                    id = f"doc-{number}"
                    wanted[id] = {"kill": kill, "number": number}
                    store[id] = wanted[id]
                compactor.kill()
                place.restart()  # so that the lock is free at once
            store.refresh()
            assert dict(store.items()) == wanted
            with opslog.open(url, read_only=True) as fresh:
                assert dict(fresh.items()) == wanted
        # Nobody holds the lock any more, and half-done work counts as garbage, if it is old enough.
        for file in tmp_path.rglob("*.tmp-*"):
            os.utime(file, (0, 0))

        def is_collected() -> bool:
            for turn in range(3):
                store["last"] = wanted["last"] = {"turn": turn}
            assert compact(store, full=True).number is not None
            parts = [path for path in place.paths("snapshots/", "compacted") if path.endswith(".jsonl")]
            # The newest manifest, and the one that it replaced at this very moment; a server's moment may be a second.
            return len(place.paths("manifests/", "compacted")) <= 2 and len(parts) <= 2

        until(is_collected)
        store.refresh()
        assert dict(store.items()) == wanted
        assert not [path for path in place.paths("", "compacted") if ".tmp-" in path]
    with opslog.open(url, read_only=True) as fresh:
        assert dict(fresh.items()) == wanted
