"""The workload of the feed: changes since a token, with one new document, in a small store and in a large one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import opslog
from benchmarks.material import document
from benchmarks.peers import ON_DISK
from benchmarks.reading import compacted
from benchmarks.runner import Round, Scale, Start, Timer, contender

CHANGES = "changes after 1 new document"
LARGE, SMALL = "opslog, 1,000,000 documents", "opslog, 100,000 documents"


def _changes(documents: Callable[[Scale], int]) -> Start:
    """The writer has made it durable. The call ensures this by an fdatasync, which is part of the figure."""

    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        path = compacted(documents(scale))
        with (
            opslog.open(path, agent="writer", compact_after=None) as writer,
            opslog.open(path, read_only=True) as reader,
        ):
            token = reader.changes(reader.changes().token).token

            def run(timer: Timer) -> int:
                nonlocal token
                for number in range(scale.writes):
                    writer.set(f"new-{timer.number}-{number}", document(number))
                    with timer:
                        changes = reader.changes(token)
                        assert len(list(changes)) == 1
                        assert not changes.reset
                    token = changes.token
                return scale.writes

            yield run

    return start


contender(CHANGES, LARGE, ON_DISK)(_changes(lambda scale: scale.snapshot))
contender(CHANGES, SMALL, ON_DISK)(_changes(lambda scale: scale.snapshot // 10))
