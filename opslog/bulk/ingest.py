"""Writing imported commits: each into the log of its agent, in the order in which they came.

A store has one live writer per agent, and an import writes for many agents. So it takes their names one after the
other, and only while it appends. It collects commits up to about 64 MiB before it stamps and writes any of them. So an
import with a thousand authors does not keep a thousand logs open, and a mistake in a small file writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from opslog.archive import write_archive
from opslog.backends import Backend
from opslog.bulk.guarded import GuardedWriter
from opslog.environment import REAL, Environment, format_ts
from opslog.errors import AgentFencedError, MissingFileError, RetryError, UsageError
from opslog.format.commits import Batch, Commit, Delete, DeleteOp, Set, SetOp, encode_commit
from opslog.format.documents import Document, check_id, check_version, encode
from opslog.format.layout import TRANSACTIONS, check_agent, check_name
from opslog.format.manifest import START, Cut, Manifest, Settings
from opslog.format.torn import joined
from opslog.importers import ImportedCommit, ImportedOp
from opslog.log.freshness import Freshness
from opslog.log.reader import Cursor, list_log
from opslog.log.session import WriterSession, take_name
from opslog.log.survey import Survey, at_cut, read_on, shared_log_first, survey, unread
from opslog.merge.clock import LamportClock
from opslog.snapshot.manifests import ManifestStore

_CHUNK_BYTES = 64 * 1024 * 1024
_PROGRESS_COMMITS = 100


@dataclass(frozen=True, slots=True)
class Ingested:
    """The result of an import.

    :ivar commits: how many commits were written.
    :ivar ops: how many ops they have.
    :ivar agents: how many agents they are from.
    :ivar clock: the clock of the last commit.
    :ivar deletes: how many of the ops are deletes.
    """

    commits: int = 0
    ops: int = 0
    agents: int = 0
    clock: int = 0
    deletes: int = 0


def ingest(
    backend: Backend,
    commits: Iterable[ImportedCommit],
    *,
    agent: str = "main",
    environment: Environment = REAL,
    progress: Callable[[int], None] | None = None,
) -> Ingested:
    """Append imported commits to their agents' logs; creates the store if there is none and there is something to
    write.

    They come after everything that is in the store: if a document exists already, the imported one wins. So an import
    that stopped half-way may simply be run again. Commits that write guarded documents go to the shared log, with their
    agent as author. They get the time of the import, because times never go back in that log.

    :param agent: the agent of commits that name none.
    :param progress: called every hundred commits, with the number of commits read so far.
    :raises InvalidNameError: an agent is called ``transactions``.
    :raises AgentBusyError: a live process writes under one of the agents' names.
    :raises RetryError: one of the agents wrote meanwhile, or was sealed.
    :raises WriteFailedError: this process was paused for most of the tombstone TTL, or the storage refused a write.
        Commits that were written before the error stay.
    :raises CommitUnknownError: this process was paused for long, or the storage did not answer. It is unknown whether
        the last agent's commits are in its log.
    """
    names: set[str] = set()
    writer = _Writer(backend, agent, environment)
    chunk: list[Commit] = []
    chunk_bytes = count = ops = deletes = 0
    for imported in commits:
        commit = _commit(imported, agent, environment)
        chunk.append(commit)
        names.add(commit.agent)
        chunk_bytes += sum(len(record.data) for record in commit.records if isinstance(record, Set))
        count += 1
        ops += len(imported.ops)
        deletes += sum(op.op == "delete" for op in imported.ops)
        if progress and count % _PROGRESS_COMMITS == 0:
            progress(count)
        if chunk_bytes >= _CHUNK_BYTES:
            writer.write(chunk)
            chunk, chunk_bytes = [], 0
    if chunk:
        writer.write(chunk)
    return Ingested(count, ops, len(names), writer.clock.value, deletes)


def _commit(imported: ImportedCommit, agent: str, environment: Environment) -> Commit:
    """The commit, still without its clock."""
    ts = imported.ts or format_ts(environment.time())
    try:
        agent = check_agent(imported.agent or agent)
        ops = [_op(op) for op in imported.ops]
    except UsageError as error:
        raise error.reworded(f"{imported.source}: {error}") from error
    if len(ops) > 1:
        return Batch(ts, 0, agent, ops)
    (op,) = ops
    return Set(ts, 0, agent, op.id, op.data, op.v) if isinstance(op, SetOp) else Delete(ts, 0, agent, op.id)


def _op(op: ImportedOp) -> SetOp | DeleteOp:
    id = check_id(op.id)
    if op.op == "delete":
        return DeleteOp(id)
    return SetOp(id, msgspec.Raw(encode(op.document)), check_version(op.version))


def ingest_archives(
    backend: Backend,
    documents: Iterable[tuple[str, str, Document]],
    *,
    agent: str = "main",
    clock: int = 1,
    environment: Environment = REAL,
) -> dict[str, int]:
    """Write (period, id, document) into the archives of these periods; creates the store if there is none.

    :param agent: with `clock`, the stamp of the archived records.
    :returns: the number of documents in each period. A second import adds them to the archives again, but loading a
        period returns each of them once.
    """
    ts = format_ts(environment.time())
    periods: dict[str, dict[str, Set]] = {}
    for period, id, document in documents:
        data = msgspec.Raw(encode(document))
        records = periods.setdefault(check_name(period, "period"), {})
        plain = check_id(id)
        records[plain] = Set(ts, max(clock, 1), check_agent(agent), plain, data)
    if periods:
        ManifestStore(backend).create_first(Settings(), environment)
    for period, records in sorted(periods.items()):
        write_archive(backend, period, environment.nonce(), (records[id] for id in sorted(records)))
    return {period: len(records) for period, records in sorted(periods.items())}


class _Writer:
    """Gives commits stamps above all that are in the store, and appends them.

    :ivar clock: has observed everything that was read.
    """

    def __init__(self, backend: Backend, agent: str, environment: Environment) -> None:
        self.clock = LamportClock()
        self._backend = backend
        self._agent = agent
        self._environment = environment
        self._manifests = ManifestStore(backend)
        self._cursors: dict[str, Cursor] = {}
        # None as long as the store has no transactions.
        self._guarded: GuardedWriter | None = None

    def write(self, commits: list[Commit]) -> None:
        self._manifests.create_first(Settings(), self._environment)
        read_at = self._environment.monotonic()
        # The manifest's clock covers everything before a cut.
        newest = survey(self._manifests, self._read_to_ends, begin=lambda manifest: at_cut(manifest, self._cursors))
        freshness = Freshness(self._manifests, self._environment, newest, read_at)
        plain, shared = self._split(commits)
        lines: dict[str, list[bytes]] = {}
        for commit in plain:
            commit.clock = self.clock.tick()
            lines.setdefault(commit.agent, []).append(encode_commit(commit))
        for agent, own in lines.items():
            lines_of_one_append = b"".join([own[0], *map(joined, own[1:])])
            self._append(agent, lines_of_one_append, freshness)
        if shared:
            assert self._guarded is not None
            self._guarded.write(shared, self.clock.value)
            self.clock.observe(self._guarded.clock)

    def _split(self, commits: list[Commit]) -> tuple[list[Commit], list[Commit]]:
        """As of `GuardedWriter.split`."""
        if TRANSACTIONS not in self._cursors:
            return commits, []
        if self._guarded is None:
            self._guarded = GuardedWriter(self._backend, self._agent, self._environment)
        self._guarded.refresh()
        return self._guarded.split(commits)

    def _read_to_ends(self, found: Survey) -> Manifest:
        """Read the new commits of all logs, for their clocks."""
        self.clock.observe(found.manifest.clock)
        found = shared_log_first(self._backend, found, "")
        cursors = found.cursors
        for _, cursor in read_on(self._backend, cursors, unread(cursors, found.segments)):
            cursors[cursor.agent] = cursor
            self.clock.observe(cursor.clock)
        return found.manifest

    def _append(self, agent: str, lines: bytes, freshness: Freshness) -> None:
        appender = take_name(self._backend, agent, self._environment)
        try:
            # Read after the name was taken: if the log was collected, only the cut shows which numbers it has used.
            newest = freshness.read_newest() if self._backend.segments_grow else freshness.newest
            own = self._own_end(agent, newest.cut.get(agent, START))
            WriterSession(self._backend, appender, own, freshness, self.clock).append(lines)
        except AgentFencedError as error:
            raise self._not_quiet(agent) from error
        finally:
            appender.close()

    def _own_end(self, agent: str, cut: Cut) -> Cursor:
        """The end of an agent's log, whose name is held. The log must not have grown since it was read, because the
        clocks of new commits may be above those given here.

        :param cut: the cut of this log in the newest manifest.
        :raises RetryError: the log has grown.
        """
        cursor = msgspec.structs.replace((self._cursors.get(agent) or Cursor(agent)).moved_to(cut))
        try:
            is_quiet = cut.commits <= cursor.commits and not any(
                True for _ in cursor.read(self._backend, list_log(self._backend, agent))
            )
        except MissingFileError:
            is_quiet = False
        if not is_quiet:
            raise self._not_quiet(agent)
        return cursor

    def _not_quiet(self, agent: str) -> RetryError:
        return RetryError(
            f"agent {agent!r} of {self._backend.url} wrote (or was sealed) while commits were imported under its name, "
            "and nothing more was imported: run the import again"
        )
