"""Replay into files: all documents of a state as lines of JSON, as Parquet, or as a store that has only them.

One process reads the logs once. It writes the output into a directory beside the final place, under a name that begins
with a dot, and renames that directory when the output is whole.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from opslog.backends import Backend, open_backend
from opslog.chunks import batched
from opslog.environment import Environment, format_ts
from opslog.errors import UsageError
from opslog.format.commits import Set
from opslog.format.layout import TRANSACTIONS, index_path, run_name
from opslog.format.manifest import Cut, Manifest, Run, Settings
from opslog.format.snapshot import BLOCK_BYTES, Row, SortedLines, build_parts
from opslog.replica.state import State
from opslog.snapshot.identity import make_identity
from opslog.snapshot.manifests import ManifestStore

Format = Literal["jsonl", "parquet", "store"]

# Called with the number of documents written so far.
Progress = Callable[[int], None]

# The least number of documents between two reports of progress.
_TOGETHER = 1000

# The size of a Parquet row group before compression: a writer, and then each reader, holds one in memory.
_ROW_GROUP_BYTES = 64 * 1024 * 1024

# The position of the time in a line.
_TS = slice(len(b'{"ts":"'), len(b'{"ts":"2026-11-20T12:00:00.000000Z'))

# The number of the only manifest of a store that is written here: number 1 would have to be empty.
_NUMBER = 2


def write_state(
    state: State, directory: Path, form: Format, environment: Environment, progress: Progress | None = None
) -> int:
    """Write all documents of a state, in order of id, into a directory that is empty or does not exist.

    jsonl: ``part-00000.jsonl``, a log line per document, with its stamp, as `opslog export` writes it.
    parquet: ``part-00000.parquet`` with the columns id, data (JSON text), clock, agent, ts, v, and, for transactions,
    by and tx.
    store: a store whose snapshot has these documents, and whose clock continues from that of the state.

    :param progress: see `Progress`.
    :returns: the number of documents.
    :raises UsageError: the directory is not empty.
    :raises RetryError: files that the state needs were collected meanwhile. After this or any other error, all output
        is removed.
    """
    with new_directory(directory, environment.nonce()) as place:
        report = progress or (lambda _: None)
        if form == "jsonl":
            return _write_lines(state.rows(), place / "part-00000.jsonl", report)
        if form == "parquet":
            return _write_parquet(state.records(), place / "part-00000.parquet", report)
        return _write_store(state, place, environment, report)


@contextmanager
def new_directory(path: Path, nonce: str) -> Iterator[Path]:
    """A directory to fill. At the end, when everything is on disk, it is renamed to `path`. After an error it is
    removed. After a crash it stays under the name ``.<name>.<nonce>``.

    :raises UsageError: `path` exists, and is not an empty directory.
    """
    check_vacant(path)
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{nonce}")
    temporary.mkdir()
    try:
        yield temporary
        for folder, _, files in os.walk(temporary):
            for file in files:
                _sync(os.path.join(folder, file))
            _sync(folder)
        temporary.rename(path)  # replaces an empty directory, and nothing else
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(path.parent)


def check_vacant(path: Path) -> None:
    """:raises UsageError: `path` exists, and is not an empty directory."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} is not empty: name a directory that is, or one that does not exist yet")


def _sync(path: str | Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _write_lines(rows: Iterable[Row | SortedLines], path: Path, progress: Progress) -> int:
    written = reported = 0
    with path.open("xb") as out:
        for text, count in _texts(rows):
            out.write(text)
            written += count
            if written - reported >= _TOGETHER:
                reported = written
                progress(written)
    progress(written)
    return written


def _texts(rows: Iterable[Row | SortedLines]) -> Iterator[tuple[bytes, int]]:
    """The lines of the rows, one or more at a time, and their number."""
    for row in rows:
        if isinstance(row, Row):
            yield row.line, 1
        else:
            while (some := row.take(BLOCK_BYTES)) is not None:
                yield some.text, some.records


def _write_parquet(records: Iterator[Set], path: Path, progress: Progress) -> int:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow: pip install 'opslog[spark]', or pip install pyarrow") from error
    numbers = ("clock", "v")
    names = ("id", "data", "clock", "agent", "ts", "v", "by", "tx")
    schema = pa.schema([(name, pa.int64() if name in numbers else pa.string()) for name in names])
    written = 0
    group: list[pa.RecordBatch] = []
    with parquet.ParquetWriter(path, schema, compression="zstd") as out:
        for some in batched(records, _TOGETHER):
            columns = zip(*map(_row, some), strict=True)
            arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
            group.append(pa.record_batch(arrays, schema=schema))
            written += len(some)
            progress(written)
            if sum(batch.nbytes for batch in group) >= _ROW_GROUP_BYTES:
                out.write_table(pa.Table.from_batches(group))
                group = []
        if group:
            out.write_table(pa.Table.from_batches(group))
    return written


def _row(record: Set) -> tuple[str, bytes, int, str, str, int, str | None, str | None]:
    return (
        record.id,
        bytes(record.data),
        record.clock,
        record.agent,
        record.ts,
        record.v,
        record.by or None,
        record.tx or None,
    )


def _write_store(state: State, directory: Path, environment: Environment, progress: Progress) -> int:
    guarded = 0

    def rows() -> Iterator[Row | SortedLines]:
        nonlocal guarded
        for row in state.rows():
            guarded += isinstance(row, Row) and row.shared
            yield row

    run, newest = new_run(environment), ""
    with closing(open_backend(directory)) as target:
        for file in build_parts(run.name, rows()):
            target.create(file.part.path, file.data)
            target.create(index_path(file.part.path), file.index)
            run.parts.append(file.part)
            newest = max(newest, _greatest_ts(file.data))
            progress(run.records)
        settings = state.manifest.settings
        create_store(target, run, environment, settings=settings, clock=state.clock, ts=newest, guarded=guarded)
    return run.records


def _greatest_ts(lines: bytes) -> str:
    """The greatest `ts` of lines made by `encode_commit`, which begin with it."""
    return max(lines.split(b"\n"))[_TS].decode()


def new_run(environment: Environment) -> Run:
    """The run for `create_store`, still without parts."""
    return Run(run_name(_NUMBER, environment.nonce()), [])


def create_store(
    target: Backend, run: Run, environment: Environment, *, settings: Settings, clock: int, ts: str, guarded: int
) -> None:
    """Make a store from a run whose parts exist and contain only sets.

    :param clock: agents continue after this clock; it is at least that of every record.
    :param ts: the greatest `ts` of the records.
    :param guarded: how many records are from the shared log.
    """
    # The cut of the shared log shows writers that there may be guarded documents. Its commits count as compacted and
    # collected, in segment 1: the log goes on in segment 2.
    cut = {TRANSACTIONS: Cut(2, 0, guarded)} if guarded else {}
    make_identity(target, environment.nonce())
    # The only manifest is also the oldest one, since this store has no past that could be read.
    ManifestStore(target).create(
        Manifest(
            number=_NUMBER,
            created=format_ts(environment.time()),
            clock=clock,
            ts=ts,
            folded=format_ts(target.now()),
            documents=run.records,
            cut=cut,
            runs=[run] if run.parts else [],
            settings=settings,
        )
    )
