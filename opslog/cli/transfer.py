"""Commands that move documents into and out of a store, or copy whole stores: import, export, copy."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from itertools import chain, islice
from pathlib import Path
from stat import S_ISREG
from typing import IO, TYPE_CHECKING, NamedTuple, cast

import click
import orjson

from opslog.backends import open_backend
from opslog.cli.options import JSON, READS, WRITES, StoreCommand
from opslog.cli.output import answer, counted, is_terminal, joined, one_line, say, unicode_text, write
from opslog.cli.progress import Advance, Unit, progress, size_text
from opslog.cli.session import Session
from opslog.cli.tables import FORMATS, format_of, write_table
from opslog.cli.values import as_of_option
from opslog.environment import REAL
from opslog.format.commits import Set, encode_commit
from opslog.importers import ImportedCommit

if TYPE_CHECKING:
    from opslog.history import Point

# An export reports its progress after each group of so many documents.
_SHOWN_DOCUMENTS = 100

_OPEN_FILES = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))


class _Source(NamedTuple):
    """The source of an import.

    :ivar unit: the unit in which progress is shown.
    :ivar total: returns the size of the source in this unit; 0: not known. Called only if a person watches.
    :ivar done: returns how much was read, given the number of commits that were read.
    """

    commits: Iterator[ImportedCommit]
    unit: Unit
    total: Callable[[], int] = lambda: 0
    done: Callable[[int], int] = lambda commits: commits


@click.command("import", cls=StoreCommand, options=WRITES)
@click.argument("source", required=False, metavar="FILE|-|DIRECTORY")
@click.option(
    "--git", metavar="REPOSITORY", help="Import the first-parent history of a git repository; author = agent."
)
@click.option("--rev", help="With --git: the branch, tag or commit to begin from. Default: HEAD.")
@click.option("--contents", is_flag=True, help="With --git: what is in the files, too; as text, or else as base64.")
@click.option("--id-field", metavar="NAME", help="The field, or column, that names the documents. Default: id.")
@click.option("--salvage", is_flag=True, help="With DIRECTORY: also what its manifest no longer names.")
@click.option("--archives", is_flag=True, help="With DIRECTORY: its archives too, into archives of the same names.")
@click.pass_obj
def import_command(
    session: Session,
    *,
    source: str | None,
    git: str | None,
    rev: str | None,
    contents: bool,
    id_field: str | None,
    salvage: bool,
    archives: bool,
) -> None:
    """Write what another source holds into the store, after everything that is in it.

    FILE (or stdin, for -) has JSON lines, gzipped or not: documents with an id in them, or what `opslog export` writes.
    A FILE.parquet, FILE.csv or FILE.tsv has a document per row (this needs the extra query).
    DIRECTORY was written by npm @backloghq/opslog 0.2 to 0.8. If there is no store, the import creates it. An import
    that stopped half-way can be run again.
    """
    from opslog.bulk.ingest import ingest, ingest_archives

    if (source is None) == (git is None):
        raise click.UsageError("name one source: a file of JSON lines, - for stdin, a directory, or --git REPOSITORY")
    if git is None and (rev is not None or contents):
        raise click.UsageError("--rev and --contents are for --git REPOSITORY")
    directory = source if source is not None and os.path.isdir(source) else None
    if directory is None and (salvage or archives):
        raise click.UsageError("--salvage and --archives are for a directory written by npm @backloghq/opslog")
    if id_field is not None and (directory is not None or git is not None):
        raise click.UsageError("--id-field is for files")
    orphaned = 0 if directory is None or salvage else _orphaned(session, directory)
    with ExitStack() as opened:
        if git is not None:
            found = _git(git, rev or "HEAD", contents=contents)
        elif directory is not None:
            found = _directory(directory, salvage=salvage)
        else:
            assert source is not None
            found = opened.enter_context(_file(source, id_field or "id"))
        commits = _begun(found.commits)
        backend = opened.enter_context(session.storage(create=True))
        step = opened.enter_context(progress(session)).step("importing", found.unit)
        done = ingest(backend, commits, agent=session.author, progress=_advancing(step, found))
        archived: dict[str, int] = {}
        if archives and directory is not None:
            from opslog.importers.backlog import read_backlog_archives

            archived = ingest_archives(
                backend, read_backlog_archives(directory), agent=session.author, clock=done.clock
            )
    result = {
        "commits": done.commits,
        "ops": done.ops,
        "agents": done.agents,
        "clock": done.clock,
        "archived": archived,
    }
    if orphaned:
        result["orphaned_logs"] = orphaned
    sets = done.ops - done.deletes
    # A history has many versions of each document.
    is_history = git is not None or directory is not None
    what = f"{counted(sets, 'version')} of documents" if is_history else counted(sets, "document")
    parts = [what, counted(done.deletes, "deletion")] if done.deletes else [what]
    text = f"imported {joined(parts)} in {counted(done.commits, 'commit')}"
    if done.agents > 1:
        text += f" by {counted(done.agents, 'agent')}"
    if archived:
        text += f", and {counted(sum(archived.values()), 'archived document')}"
    answer(session, result, text)


def _advancing(step: Advance | None, source: _Source) -> Callable[[int], None] | None:
    """The function that an import calls with the number of commits read; None: nobody watches."""
    if step is None:
        return None
    total = source.total()
    return lambda commits: step(source.done(commits), total)


def _git(repository: str, rev: str, *, contents: bool) -> _Source:
    from opslog.importers.git import count_commits, read_git

    return _Source(
        read_git(repository, rev=rev, contents=contents), "commits", lambda: count_commits(repository, rev=rev)
    )


def _directory(directory: str, *, salvage: bool) -> _Source:
    from opslog.importers.backlog import read_backlog

    return _Source(read_backlog(directory, salvage=salvage), "commits")


@contextmanager
def _file(source: str, id_field: str) -> Iterator[_Source]:
    from opslog.importers.jsonl import read_json_lines
    from opslog.importers.lines import open_file
    from opslog.importers.tables import count_rows, is_table, read_table

    if is_table(source):
        yield _Source(read_table(source, id_field=id_field), "documents", lambda: count_rows(source))
        return
    with nullcontext(sys.stdin.buffer) if source == "-" else open_file(source) as stream:
        commits = read_json_lines(stream, id_field=id_field)
        size = _size(stream)
        yield (
            _Source(commits, "bytes", lambda: size, lambda _: stream.tell()) if size else _Source(commits, "documents")
        )


def _size(stream: IO[bytes]) -> int:
    """The size of a stream in bytes; 0: it is not a file."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return 0
    return status.st_size if S_ISREG(status.st_mode) else 0


def _begun(commits: Iterator[ImportedCommit]) -> Iterator[ImportedCommit]:
    """The same commits, with the first one already read. So a source that cannot be read at all leaves no new store
    behind."""
    return chain(list(islice(commits, 1)), commits)


def _orphaned(session: Session, directory: str) -> int:
    """The number of logs that an import without --salvage leaves out. Prints a note about them, unless with --json."""
    from opslog.importers.backlog import orphaned_logs

    orphaned = orphaned_logs(directory)
    if orphaned and not session.json:
        say(
            f"{directory} has {len(orphaned)} logs that its manifest no longer names ({orphaned[0].name}, …). They may "
            "hold writes that were lost; --salvage imports them, too"
        )
    return len(orphaned)


@click.command("export", cls=StoreCommand, options=READS)
@click.argument("file", required=False, default="-", metavar="[FILE]")
@as_of_option
@click.option("--plain", is_flag=True, help="JSON lines of ids and documents alone, without who wrote them and when.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="What to write. Default: by the end of FILE's name; jsonl, if it has none.",
)
@click.pass_obj
def export_command(session: Session, file: str, as_of: Point | None, plain: bool, form: str | None) -> None:
    """Write all documents, in order of id, to FILE or to stdout.

    JSON lines have one document per line, and are gzipped if FILE ends with .gz. Parquet and CSV (they need the extra
    query) have a column for id, and one for each field. `opslog import` reads all of these formats. FILE appears when
    it is complete.
    """
    form = form or format_of(file)
    if plain and form != "jsonl":
        raise click.UsageError("--plain is for JSON lines; Parquet and CSV have ids and documents alone")
    if form != "jsonl" and file.endswith(".gz"):
        raise click.UsageError(
            f"{file}: only JSON lines are gzipped, and an import reads no table that is: leave out .gz"
        )
    with session.reading(as_of) as store, progress(session) as steps:
        total = len(store)
        # No progress line if the documents themselves go to a terminal.
        step = None if file == "-" and is_terminal() else steps.step("exporting", "documents")
        with nullcontext(sys.stdout.buffer) if file == "-" else _written(Path(file)) as out:
            as_text = []
            if form != "jsonl":
                as_text = write_table(form, store, out)
            else:
                advance = (lambda count: step(count, total)) if step else None
                _export(store.records(), _plain if plain else encode_commit, out, advance)
    if as_text and not session.json:
        say(f"JSON text, which an import takes for text, is in: {', '.join(as_text)}")
    if file != "-":
        text = f"exported {counted(total, 'document')} to {file}"
        answer(session, {"documents": total, "file": unicode_text(file)}, text)


@click.command("copy", cls=StoreCommand, options=JSON)
@click.argument("source")
@click.argument("target")
@click.pass_obj
def copy_command(session: Session, source: str, target: str) -> int:
    """Copy the store at SOURCE to TARGET, each a directory or URL, and verify the copy.

    The source may be in use; the copy may then lack what is written meanwhile. A copy that was interrupted continues
    when the command is run again. Exit code 3: something in the copy is damaged.
    """
    from opslog.bulk.copying import check_apart, copy

    check_apart(source, target)
    with (
        closing(open_backend(source, create=False)) as source_backend,
        closing(open_backend(target)) as target_backend,
        progress(session) as steps,
    ):
        copying, verifying = steps.step("copying", "bytes"), steps.step("verifying", "bytes")
        done = copy(source_backend, target_backend, copying, verifying)
    errors = [problem for problem in done.report.problems if problem.severity == "error"]
    if not session.json:
        for problem in errors:
            write(one_line(f"error: {problem}"))
    result = {"files": done.files, "bytes": done.bytes, "written": done.written, "ok": done.report.ok}
    text = (
        f"{'verified' if done.report.ok else 'DAMAGED'}: {counted(done.files, 'file')} with "
        f"{size_text(done.bytes)} in {unicode_text(target)}, {done.written:,} of them written now"
    )
    answer(session, result, text)
    return 0 if done.report.ok else 3


def _plain(record: Set) -> bytes:
    version = b"" if record.v == 1 else b',"v":%d' % record.v
    return b'{"op":"set","id":%b,"data":%b%b}\n' % (orjson.dumps(record.id), record.data, version)


def _export(
    records: Iterator[Set], encode: Callable[[Set], bytes], out: IO[bytes], advance: Callable[[int], None] | None
) -> None:
    for count, record in enumerate(records, start=1):
        out.write(encode(record))
        if advance and count % _SHOWN_DOCUMENTS == 0:
            advance(count)


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    """A new file, which gets its name when it is complete and on disk. After a failure nothing is left of it.

    If the path is a link, the link stays, and the file that it leads to is replaced. A pipe or a device is written to
    directly. So is the name of an open file, such as /dev/stdout, since others go on writing to the file that is open.
    """
    if path.absolute().parent in _OPEN_FILES or (path.exists() and not path.is_file()):
        with open(path, "wb") as raw, _packed(raw, path) as out:
            yield out
        return
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{REAL.nonce()}")
    try:
        with _created(temporary, path) as new:
            with _packed(new, path) as out:
                yield out
            new.flush()
            os.fsync(new.fileno())
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _created(temporary: Path, path: Path) -> IO[bytes]:
    """A new file.

    :raises OSError: the error names `path`, because the caller does not know `temporary`.
    """
    try:
        return open(temporary, "xb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def _packed(raw: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """The file itself; or, if its name ends with .gz, a stream that gzips into it."""
    if path.suffix != ".gz":
        yield raw
        return
    with gzip.open(raw, "wb") as packed:
        yield cast(IO[bytes], packed)
