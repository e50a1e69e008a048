"""Figures of a store."""

from __future__ import annotations

from typing import Any

import msgspec

from opslog import kernel
from opslog.format.layout import ARCHIVE
from opslog.log.reader import list_segments
from opslog.replica.replica import Replica
from opslog.replica.state import State


class Stats(msgspec.Struct, frozen=True):
    """Figures of a store, as one process sees it.

    :ivar documents: the number of documents.
    :ivar agents: the number of logs.
    :ivar clock: the greatest clock seen.
    :ivar manifest: the number of the manifest that this view started from.
    :ivar commits: how many commits were ever written, as far as seen.
    :ivar tail_commits: how many of them are not compacted.
    :ivar snapshot_runs: how many runs the snapshot has.
    :ivar snapshot_records: how many records they have, tombstones included.
    :ivar snapshot_bytes: the size of their lines, tombstones included.
    :ivar log_segments: how many segments are retained on storage.
    :ivar log_bytes: the size of these segments.
    :ivar archive_bytes: the size of all archives on storage.
    :ivar compaction_error: why the last automatic compaction failed; None if it did not fail.
    :ivar requests: how many requests this store has sent to a server; 0 if there is none.
    :ivar kernel: the implementation of the loops over bytes in this process: `C`; or `Python`, if the former was not
        built or is switched off.
    :ivar cached_documents: how many documents are kept decoded (`cache_bytes` of `opslog.open`).
    :ivar cached_bytes: about how much memory they take.
    """

    documents: int
    agents: int
    clock: int
    manifest: int
    commits: int
    tail_commits: int
    snapshot_runs: int
    snapshot_records: int
    snapshot_bytes: int
    log_segments: int
    log_bytes: int
    archive_bytes: int
    compaction_error: str | None
    requests: int
    kernel: str
    cached_documents: int
    cached_bytes: int

    @classmethod
    def of(cls, replica: Replica[Any]) -> Stats:
        """Costs three listings."""
        segments = list_segments(replica.backend)
        archives = replica.backend.list(ARCHIVE)

        def figures(state: State) -> Stats:
            runs = [run.run for run in state.runs]
            return cls(
                documents=state.documents,
                agents=len(segments),
                clock=replica.clock.value,
                manifest=state.manifest.number,
                commits=state.commits,
                tail_commits=replica.compaction.tail_of(state.commits),
                snapshot_runs=len(runs),
                snapshot_records=sum(run.records for run in runs),
                snapshot_bytes=sum(run.bytes for run in runs),
                log_segments=sum(map(len, segments.values())),
                log_bytes=sum(segment.bytes for listed in segments.values() for segment in listed),
                archive_bytes=sum(entry.size for entry in archives),
                compaction_error=replica.compaction.error,
                requests=replica.backend.requests,
                kernel=kernel.NAME,
                cached_documents=len(replica.decoded.by_id),
                cached_bytes=replica.decoded.bytes,
            )

        return replica.read(figures)
