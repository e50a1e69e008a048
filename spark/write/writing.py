"""Writing rows to a store: each takes effect once, even if tasks fail or run twice.

Executors stage rows in files under ``staging/``, which no reader lists; each attempt of a task uses a name of its own.
When every task has a successful attempt, Spark passes the messages of these attempts to the driver. Only the driver
writes to a log: it takes the agent's name, gives the rows of these attempts clocks above everything that is in the
store by then, and appends them. The files of other attempts are deleted unread, and so are all files if the job fails.

A job of up to `BATCH_BYTES` is one commit: readers see all of it or nothing, and one undo takes it back. A larger job
is several commits, which readers may see one after the other. If the driver dies between two of them, the first ones
stay; running the job again writes all rows again.

Rows of guarded documents go to the shared log, in the agent's name, together with all other rows of the same commit. A
job with a column ``_if_stamp`` is one transaction: it writes only if every document still has the stamp that its row
names.

Rejected: an agent for each attempt of a task, with a log of its own. Its rows would be visible before the job has
succeeded, and every job would leave hundreds of names in all later manifests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import opslog
from opslog.backends import Backend, open_backend
from opslog.bulk.guarded import GuardedWriter
from opslog.chunks import packed
from opslog.environment import REAL, format_ts
from opslog.errors import AgentFencedError, NotFoundError, UsageError
from opslog.format.commits import LINE_BYTES_MAX, Batch, Commit, DeleteOp, SetOp, decode_commits, encode_commit
from opslog.format.layout import STAGING, check_agent
from opslog.format.manifest import Settings
from opslog.log.session import WriterSession, take_name
from opslog.merge.clock import LamportClock
from opslog.replica.transaction import Transaction, check_stamp, write
from opslog.snapshot.manifests import ManifestStore
from opslog.spark.errors import brief
from opslog.spark.stores import storage_options, url_of
from opslog.spark.write.ends import read_ends
from opslog.spark.write.rows import Columns, Op

# The most bytes in a commit of a job that appends, unless one row is larger. Every reader holds the last 32 commits in
# memory.
BATCH_BYTES = 8 * 1024 * 1024

# The most bytes in the one commit of a job that replaces everything.
OVERWRITE_BYTES = 64 * 1024 * 1024


class Staged(WriterCommitMessage):
    """The staged rows of one attempt of a task.

    :ivar partition: the number of the task's partition.
    :ivar files: the staged files, in order of the rows.
    """

    def __init__(self, partition: int, files: list[tuple[str, int]]) -> None:
        self.partition = partition
        self.files = files


def writer_of(options: Mapping[str, str], schema: StructType, overwrite: bool) -> OpslogWriter:
    """The writer for the options of ``df.write``."""
    agent = check_agent(options.get("agent", "spark"))
    columns = Columns.of(schema)
    if overwrite and columns.has_stamp:
        raise UsageError("overwrite replaces whatever is there, and the rows have a column _if_stamp: use mode append")
    return OpslogWriter(url_of(options), storage_options(options), agent, columns, overwrite)


class OpslogWriter(DataSourceArrowWriter):
    """One job that writes. Made on the driver, before the job begins.

    :raises AgentBusyError: another process writes under that agent name, such as another run of the same job.
    """

    def __init__(self, url: str, options: dict[str, Any], agent: str, columns: Columns, overwrite: bool) -> None:
        self._url = url
        self._options = options
        self._agent = agent
        self._columns = columns
        self._overwrite = overwrite
        self._folder = f"{STAGING}{REAL.nonce()}/"
        try:
            with closing(self._open(create=False)) as backend:
                take_name(backend, agent, REAL).close()
        except NotFoundError:
            """The job creates the store."""

    @brief
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.taskAttemptId()
        files: list[tuple[str, int]] = []
        with closing(self._open()) as backend:
            rows = (
                row
                for batch in iterator
                for row in zip(self._columns.ops(batch), self._columns.conditions(batch), strict=True)
            )
            for number, some in enumerate(packed(rows, lambda row: _cost(row[0]), BATCH_BYTES)):
                line = encode_commit(Batch(format_ts(0.0), 1, self._agent, [op for op, _ in some]))
                path = f"{self._folder}{partition:05}-{attempt}-{number:05}.jsonl"
                backend.create(path, line)
                if self._columns.has_stamp:
                    backend.create(_conditions_path(path), msgspec.json.encode([condition for _, condition in some]))
                files.append((path, len(line)))
        return Staged(partition, files)

    @brief
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged = sorted((each for each in messages if isinstance(each, Staged)), key=lambda each: each.partition)
        files = [file for each in staged for file in each.files]
        with closing(self._open()) as backend:
            ManifestStore(backend).create_first(Settings(), REAL)
            if self._overwrite:
                self._replace_all(backend, files)
            elif self._columns.has_stamp:
                self._write_if(backend, files)
            elif files:
                with closing(Log(backend, self._agent)) as log:
                    ops = (op for path, _ in files for op in _read(backend, path))
                    for some in packed(ops, _cost, BATCH_BYTES):
                        log.append(list(some))
            self._forget(backend)

    def _write_if(self, backend: Backend, files: list[tuple[str, int]]) -> None:
        """Write all rows, as one transaction.

        :raises ConflictError: a document does not have the stamp that its row names.
        :raises UsageError: there are too many rows for one line of a log, or two rows have the same id.
        """
        size = sum(size for _, size in files)
        if size > LINE_BYTES_MAX:
            raise UsageError(
                f"a job with a column _if_stamp is one transaction, and so one line of a log: at most "
                f"{LINE_BYTES_MAX} bytes, and this job has {size}. Write fewer rows in each job"
            )
        rows: dict[str, tuple[Op, str | None]] = {}
        for path, _ in files:
            conditions = msgspec.json.decode(backend.read(_conditions_path(path)), type=list[str | None])
            for op, condition in zip(_read(backend, path), conditions, strict=True):
                if op.id in rows:
                    raise UsageError(f"two rows have the id {op.id!r}, and each of them says what is there before it")
                rows[op.id] = (op, condition)

        def decide(transaction: Transaction[Any]) -> None:
            for id, (_, condition) in rows.items():
                check_stamp(transaction.record(id), id, condition)
            write(Batch("", 0, self._agent, [op for op, _ in rows.values()]), transaction)

        if rows:
            GuardedWriter(backend, self._agent, REAL).run(decide)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with closing(self._open()) as backend:
            self._forget(backend)

    def _replace_all(self, backend: Backend, files: list[tuple[str, int]]) -> None:
        room = OVERWRITE_BYTES - sum(size for _, size in files)
        ops: list[Op] = [op for path, _ in files for op in _read(backend, path)] if room >= 0 else []
        kept = {op.id for op in ops if isinstance(op, SetOp)}
        with closing(Log(backend, self._agent)) as log:
            with opslog.open(self._url, read_only=True, **self._options) as store:
                for record in store.records():
                    if room < 0:
                        break
                    if record.id not in kept:
                        ops.append(DeleteOp(record.id))
                        room -= len(record.id.encode()) + 30
            if room < 0:
                raise UsageError(
                    f"overwrite replaces all documents with one commit, and this one would be larger than "
                    f"{OVERWRITE_BYTES // 2**20} MiB. Append the rows instead, with a row for each document to "
                    "delete, in which _op is 'delete'"
                )
            if ops:
                log.catch_up()
                log.append(ops)

    def _open(self, create: bool = True) -> Backend:
        return open_backend(self._url, create=create, **self._options)

    def _forget(self, backend: Backend) -> None:
        """Delete the staged files of all attempts."""
        backend.delete([entry.path for entry in backend.list(self._folder)])


class Log:
    """Appends to an agent's log. Holds the agent's name until it is closed.

    :raises AgentBusyError: another process has it.
    """

    def __init__(self, backend: Backend, agent: str) -> None:
        self._backend = backend
        self._agent = agent
        # Made only if the store has transactions.
        self._guarded: GuardedWriter | None = None
        self._appender = take_name(backend, agent, REAL)
        try:
            self.catch_up()
        except BaseException:
            self._appender.close()
            raise

    def catch_up(self) -> None:
        """Read the end of every log. Later appends get clocks above everything that was read."""
        ends = read_ends(self._backend, REAL)
        clock = LamportClock(ends.clock)
        own = ends.end(self._agent)
        self._has_transactions = ends.has_transactions
        self._session = WriterSession(self._backend, self._appender, own, ends.freshness, clock, in_memory=False)

    def append(self, ops: list[Op]) -> None:
        """Append one commit, which is durable on return. If a compaction has sealed this log after a long idle time,
        the commit goes behind the seal. If the commit writes a guarded document, it goes to the shared log.

        :raises WriteFailedError: nothing was written.
        :raises CommitUnknownError: it may have been.
        :raises AgentFencedError: another process has taken the name.
        """
        while not (self._has_transactions and self._append_guarded(Batch("", 0, self._agent, ops))):
            if self._session.freshness.is_stale:
                self.catch_up()
            try:
                self._session.append(self._session.stamp(Batch("", 0, "", ops)))
            except AgentFencedError as error:
                self._session.go_on(self._session.pass_seal(error))
                # Read all ends again. Otherwise the commit could outrank transactions that came since the seal, which
                # this writer has not read.
                self.catch_up()
            else:
                return

    def _append_guarded(self, commit: Commit) -> bool:
        """Write a commit to the shared log, if it belongs there. Returns whether it did."""
        if self._guarded is None:
            self._guarded = GuardedWriter(self._backend, self._agent, REAL)
        self._guarded.refresh()
        _, shared = self._guarded.split([commit])
        if shared:
            self._guarded.write(shared, self._session.clock.value)
            self._session.clock.observe(self._guarded.clock)
        return bool(shared)

    def close(self) -> None:
        self._appender.close()


def _cost(op: Op) -> int:
    """About how many bytes an op takes in a commit."""
    return len(op.id) + 40 + (len(op.data) if isinstance(op, SetOp) else 0)


def _conditions_path(path: str) -> str:
    """The path of the conditions for the rows staged under `path`, in the same order."""
    return f"{path}.stamps"


def _read(backend: Backend, path: str) -> Iterator[Op]:
    """The ops that an attempt staged.

    :raises CorruptError: the file does not have the bytes that were written.
    """
    for commit in decode_commits(backend.read(path), path, 0):
        assert isinstance(commit, Batch)
        yield from commit.ops
