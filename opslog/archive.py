"""Archives: documents moved out of the store, by period, as files of the same form as snapshots.

The data is written first, then its index, whose presence means that both are complete. Then the documents are deleted
from the store. A crash in between leaves them in both, never in neither. A crash before the index leaves a data file
without an index, which is garbage. A document that has changed meanwhile is not deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import msgspec

from opslog.backends import Backend
from opslog.environment import format_ts
from opslog.errors import NotFoundError, UsageError
from opslog.format.commits import Batch, Delete, DeleteOp, Record, Set, Stamp, encode_commit
from opslog.format.layout import ARCHIVE, TRANSACTIONS, archive_of, archive_path, check_name, index_path
from opslog.format.snapshot import Block, Row, build_archive, decode_index
from opslog.merge.stamps import newer
from opslog.query.conditions import Condition
from opslog.query.question import Where
from opslog.replica.questions import chooser
from opslog.replica.replica import Replica
from opslog.replica.state import State
from opslog.replica.transaction import Transaction
from opslog.snapshot.manifests import ManifestStore
from opslog.snapshot.runs import read_blocks

T = TypeVar("T")


def quarter(seconds: float) -> str:
    """The default period: the quarter of a time in seconds since 1970, ``2026-Q4``."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment.year}-Q{(moment.month + 2) // 3}"


def archive_documents(
    replica: Replica[T],
    where: Where | Condition | Callable[[T], object],
    period: str | None,
    older_than: timedelta | None,
    author: str = "",
) -> int:
    """As `Store.archive`.

    :param author: the author of the deletes, if that is not the store's agent.
    """
    _check_age(older_than)
    environment = replica.environment
    is_chosen = chooser(replica.schema, where)
    period = check_name(quarter(environment.time()) if period is None else period, "period")
    replica.check_writable("archive")
    replica.batches.check_no_transaction()
    replica.check_own_log()
    replica.flush()  # a document is in its log before it is in an archive
    replica.refresh()
    # No document is older than 1970, however long `older_than` is.
    since = 0.0 if older_than is None else max(0.0, environment.time() - older_than.total_seconds())
    before = None if older_than is None else format_ts(since)
    state, winners, records = replica.read(lambda state: (state, dict(state.winners), state.records()))
    chosen = Chosen(
        state,
        winners,
        [
            msgspec.structs.replace(record, data=record.data.copy())  # so as not to keep the whole block in memory
            for record in records
            if (before is None or record.ts < before) and is_chosen(record)
        ],
    )
    if not chosen.records:
        return 0
    write_archive(replica.backend, period, environment.nonce(), chosen.records)
    if replica.log is None or author or any(record.agent == TRANSACTIONS for record in chosen.records):
        return replica.deciding_of("archive").run(partial(_delete_unchanged, chosen.records, period, author))
    moved: list[Set] = []

    def delete(state: State) -> Batch | None:
        # A document that another thread or a refresh changed meanwhile stays in the store.
        moved[:] = chosen.unchanged() if chosen.is_of(state) else ()
        return Batch("", 0, "", [DeleteOp(record.id, period) for record in moved]) if moved else None

    while not replica.commit_decided("archive", delete) and not chosen.is_of(replica.state):
        chosen = chosen.in_another(replica.state, replica.record)
    return len(moved)


def _check_age(older_than: object) -> None:
    """:raises UsageError: it is neither an age nor None."""
    if older_than is not None and (not isinstance(older_than, timedelta) or older_than < timedelta()):
        raise UsageError(f"older_than is a timedelta from 0 on, such as timedelta(days=90), not {older_than!r:.60}")


def _delete_unchanged(records: Sequence[Set], period: str, author: str, transaction: Transaction[T]) -> int:
    """How many of these are unchanged; deletes those. As with every batch, one guarded document takes all of
    them to the shared log."""
    moved = 0
    transaction.author = author
    for record in records:
        now = transaction.record(record.id)
        if now is not None and now.stamp == record.stamp:
            transaction.write(Delete("", 0, "", record.id, period))
            moved += 1
    return moved


def write_archive(backend: Backend, period: str, nonce: str, records: Iterable[Set]) -> None:
    """Write records, in order of id, as one file of a period."""
    path = archive_path(period, nonce)
    file = build_archive(path, (Row.of(record, encode_commit(record)) for record in records))
    backend.create(path, file.data)
    backend.create(index_path(path), file.index)


class Chosen:
    """Documents of a state that were chosen for an archive.

    :param winners: the winners in the tail when they were chosen. In the same state, a document has changed if, and
        only if, another record wins now.
    """

    def __init__(self, state: State, winners: Mapping[str, Record], records: list[Set]) -> None:
        self.records = records
        self._state = state
        self._stamps = {record.id: _stamp(winners.get(record.id)) for record in records}

    def is_of(self, state: State) -> bool:
        return state is self._state

    def unchanged(self) -> list[Set]:
        """The documents that have not changed. Reads memory only."""
        now = self._state.winners
        return [record for record in self.records if _stamp(now.get(record.id)) == self._stamps[record.id]]

    def in_another(self, state: State, get: Callable[[str], Set | None]) -> Chosen:
        """The unchanged ones of these documents in a state that was loaded since. `get` reads from that state."""
        winners = {record.id: state.winners.get(record.id) for record in self.records}
        same = [record for record in self.records if _stamp(get(record.id)) == record.stamp]
        return Chosen(state, {id: record for id, record in winners.items() if record is not None}, same)


def _stamp(record: Record | None) -> Stamp | None:
    return None if record is None else record.stamp


def list_periods(backend: Backend) -> list[str]:
    """The periods that have archives, in order.

    :raises NotFoundError: there is no store here.
    """
    return sorted({period for period, _ in _files(backend, ARCHIVE)})


def read_archive(backend: Backend, period: str) -> dict[str, Set]:
    """The records of a period by id; if a document was archived twice, the one with the greater stamp. Everything is
    verified.

    :raises NotFoundError: nothing was archived under this period.
    :raises CorruptError: a file is damaged.
    """
    return newest_archived(
        backend, [(path, read_archive_index(backend, path)) for path in archive_files(backend, period)]
    )


def archive_files(backend: Backend, period: str) -> list[str]:
    """The paths of a period's finished files.

    :raises NotFoundError: nothing was archived under this period.
    """
    files = [path for _, path in _files(backend, f"{ARCHIVE}{period}/")]
    if not files:
        known = ", ".join(list_periods(backend)) or "none"
        raise NotFoundError(f"nothing was archived under {period!r}; the periods are: {known}")
    return files


def read_archive_index(backend: Backend, path: str) -> list[Block]:
    """The blocks of an archive file.

    :raises CorruptError: its index is damaged.
    """
    return decode_index(backend.read(index_path(path)), path).blocks


def newest_archived(backend: Backend, files: Iterable[tuple[str, list[Block]]]) -> dict[str, Set]:
    """The records in neighbouring blocks of some files, by id, those with the greatest stamps."""
    records: dict[str, Set] = {}
    for path, blocks in files:
        for block in read_blocks(backend, path, blocks):
            for row in block:
                record = row.record
                if isinstance(record, Set):
                    records[record.id] = newer(record, records.get(record.id))
    return records


def _files(backend: Backend, prefix: str) -> list[tuple[str, str]]:
    """(period, path of the data) of every finished archive file.

    :raises NotFoundError: there is no store here.
    """
    files = []
    for entry in backend.list(prefix):
        named = archive_of(entry.path)
        if named and named[2] == "index":
            files.append((named[0], archive_path(named[0], named[1])))
    if not files:
        ManifestStore(backend).newest()  # in a directory that was moved away, nothing is listed either
    return files
