"""Commands that move documents in and out, and whole stores: import, export, copy."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import chain, islice
from pathlib import Path
from typing import IO, cast

import click
import orjson

from opslog.backends import open_backend
from opslog.cli.output import answer, counted, one_line, progress, say, unicode_text, write
from opslog.cli.session import Session, StoreCommand
from opslog.cli.tables import FORMATS, format_of, write_table
from opslog.cli.values import point
from opslog.environment import REAL
from opslog.format.commits import Set, encode_commit
from opslog.importers import ImportedCommit

_OPEN_FILES = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))


@click.command("import", cls=StoreCommand)
@click.argument("source", required=False, metavar="FILE|-|DIRECTORY")
@click.option(
    "--git", metavar="REPOSITORY", help="Import the first-parent history of a git repository; author = agent."
)
@click.option("--rev", help="With --git: the branch, tag or commit to begin from. Default: HEAD.")
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
    id_field: str | None,
    salvage: bool,
    archives: bool,
) -> None:
    """Write what another source holds into the store, after everything that is in it.

    FILE (or stdin, for -) has JSON lines, gzipped or not: documents with an id in them, or what `opslog export` writes.
    A FILE.parquet or FILE.csv has a document per row (this needs the extra query).
    DIRECTORY was written by npm @backloghq/opslog 0.2 to 0.8. Creates the store where there is none. An import that
    stopped half-way can be run again.
    """
    from opslog.bulk.ingest import ingest, ingest_archives

    if (source is None) == (git is None):
        raise click.UsageError("name one source: a file of JSON lines, - for stdin, a directory, or --git REPOSITORY")
    if rev is not None and git is None:
        raise click.UsageError("--rev is for --git REPOSITORY")
    directory = source if source is not None and os.path.isdir(source) else None
    if directory is None and (salvage or archives):
        raise click.UsageError("--salvage and --archives are for a directory written by npm @backloghq/opslog")
    if id_field is not None and (directory is not None or git is not None):
        raise click.UsageError("--id-field is for files")
    orphaned = 0 if directory is None or salvage else _orphaned(session, directory)
    commits = _begun(_commits(source, directory, git, rev, salvage=salvage, id_field=id_field or "id"))
    with session.storage(create=True) as backend, progress(session, "importing commits") as bar:
        advance = (lambda count: bar(count, 0)) if bar else None
        done = ingest(backend, commits, agent=session.agent, progress=advance)
        archived: dict[str, int] = {}
        if archives and directory is not None:
            from opslog.importers.backlog import read_backlog_archives

            archived = ingest_archives(backend, read_backlog_archives(directory), agent=session.agent, clock=done.clock)
    result = {
        "commits": done.commits,
        "ops": done.ops,
        "agents": done.agents,
        "clock": done.clock,
        "archived": archived,
    }
    if orphaned:
        result["orphaned_logs"] = orphaned
    text = f"imported {done.commits} commits with {done.ops} ops of {done.agents} agents"
    if archived:
        text += f", and {sum(archived.values())} archived documents"
    answer(session, result, text)


def _commits(
    source: str | None, directory: str | None, git: str | None, rev: str | None, *, salvage: bool, id_field: str
) -> Iterator[ImportedCommit]:
    if git is not None:
        from opslog.importers.git import read_git

        return read_git(git, rev=rev or "HEAD")
    if directory is not None:
        from opslog.importers.backlog import read_backlog

        return read_backlog(directory, salvage=salvage)
    from opslog.importers.jsonl import read_json_lines
    from opslog.importers.tables import is_table, read_table

    assert source is not None
    if is_table(source):
        return read_table(source, id_field=id_field)
    return read_json_lines(sys.stdin.buffer if source == "-" else source, id_field=id_field)


def _begun(commits: Iterator[ImportedCommit]) -> Iterator[ImportedCommit]:
    """The same, with the first one read: a source that cannot be read at all leaves no directory behind."""
    return chain(list(islice(commits, 1)), commits)


def _orphaned(session: Session, directory: str) -> int:
    """How many logs an import without --salvage leaves out; says so to a person."""
    from opslog.importers.backlog import orphaned_logs

    orphaned = orphaned_logs(directory)
    if orphaned and not session.json:
        say(
            f"{directory} has {len(orphaned)} logs that its manifest no longer names ({orphaned[0].name}, …). They may "
            "hold writes that were lost; --salvage imports them, too"
        )
    return len(orphaned)


@click.command("export", cls=StoreCommand)
@click.argument("file", required=False, default="-", metavar="[FILE]")
@click.option("--as-of", metavar="CLOCK|TIME", help="The state as it was: at a clock, or as in 2026-11-20T12:00:00Z.")
@click.option("--plain", is_flag=True, help="JSON lines of ids and documents alone, without who wrote them and when.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="What to write. Default: by the end of FILE's name; jsonl, if that says nothing.",
)
@click.pass_obj
def export_command(session: Session, file: str, as_of: str | None, plain: bool, form: str | None) -> None:
    """Write all documents, in order of id, to FILE (gzipped, if its name ends with .gz) or to stdout.

    As JSON lines there is one document per line; as Parquet or CSV (this needs the extra query) a column for id, and
    one for each field. `opslog import` reads all of them again. FILE appears when it is whole.
    """
    form = form or format_of(file)
    if plain and form != "jsonl":
        raise click.UsageError("--plain is for JSON lines; Parquet and CSV have ids and documents alone")
    with session.reading(None if as_of is None else point(as_of)) as store:
        total = len(store)
        if form != "jsonl":
            with nullcontext(sys.stdout.buffer) if file == "-" else _written(Path(file)) as out:
                as_text = write_table(form, store, out)
            if as_text and not session.json:
                say(f"JSON text, which an import takes for text, is in: {', '.join(as_text)}")
        elif file == "-":
            _export(store.records(), _plain if plain else encode_commit, sys.stdout.buffer, None)
        else:
            with progress(session, "exporting documents") as bar, _written(Path(file)) as out:
                advance = (lambda count: bar(count, total)) if bar else None
                _export(store.records(), _plain if plain else encode_commit, out, advance)
    if file != "-":
        answer(session, {"documents": total, "file": unicode_text(file)}, f"exported {total} documents to {file}")


@click.command("copy", cls=StoreCommand)
@click.argument("source")
@click.argument("target")
@click.pass_obj
def copy_command(session: Session, source: str, target: str) -> int:
    """Copy the store at SOURCE to TARGET, each a directory or URL, and verify the copy.

    The source may be in use; what is written to it meanwhile may be missing in the copy. A copy that was interrupted
    goes on where it was when it is started again. Exit code 3: something in the copy is damaged.
    """
    from opslog.bulk.copying import check_apart, copy

    check_apart(source, target)
    with (
        closing(open_backend(source, create=False)) as source_backend,
        closing(open_backend(target)) as target_backend,
        progress(session, "copying bytes") as bar,
    ):
        done = copy(source_backend, target_backend, bar)
    errors = [problem for problem in done.report.problems if problem.severity == "error"]
    if not session.json:
        for problem in errors:
            write(one_line(f"error: {problem}"))
    result = {"files": done.files, "bytes": done.bytes, "written": done.written, "ok": done.report.ok}
    text = (
        f"{'verified' if done.report.ok else 'DAMAGED'}: {counted(done.files, 'file')} with "
        f"{counted(done.bytes, 'byte')} in {unicode_text(target)}, {done.written} of them written now"
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
        if advance and count % 1000 == 0:
            advance(count)


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is whole and on disk; after a failure nothing is left of it.

    A link stays, and what it leads to is replaced. What is no file, such as a pipe or a device, is written to as it is;
    so are the names of open files, such as /dev/stdout, since others go on writing to the file that is open.
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

    :raises OSError: names `path`, which is what the caller knows.
    """
    try:
        return open(temporary, "xb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def _packed(raw: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """The file itself, or, by its name, what is written to it through gzip."""
    if path.suffix != ".gz":
        yield raw
        return
    with gzip.open(raw, "wb") as packed:
        yield cast(IO[bytes], packed)
