"""The history of a git repository: one commit per git commit, documents that replay to its tree.

The first-parent history of a revision is read oldest first; a merge is one commit with its changes against the first
parent. Each changed path is a document under the path as id::

    {"blob": "<object id>", "mode": "100644", "status": "A", "commit": "<object id>"}

`status` is git's letter: A added, M modified, T changed type (file, symbolic link, submodule). The `blob` of a
submodule (mode 160000) is the commit it points to. A renamed file is a delete and a set. After replaying all, the
documents are exactly ``git ls-tree -r <rev>``. Commits that change no path are left out.

With `contents`, a document also has the contents of the file: as ``text``, or, if it is no UTF-8, as ``base64``. For a
symbolic link this is its target. A submodule has none, since it is in another repository.

A path that is not UTF-8 gets an id that begins with ``/``, which no path of git does, followed by the path with its
non-ASCII bytes and ``%`` percent-encoded; :func:`path_of` is the inverse.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import IO, Self
from urllib.parse import quote_from_bytes, unquote_to_bytes

from opslog.errors import CorruptError, UsageError
from opslog.importers import ImportedCommit, ImportedOp
from opslog.importers.agents import AgentNames
from opslog.importers.times import from_seconds

# Every setting of the user that could change the output is overridden; %an and %ae leave the mailmap alone.
_LOG = [
    *(
        "-c",
        "log.showRoot=true",
        "-c",
        "core.fsmonitor=false",
        "log",
        "--first-parent",
        "--reverse",
        "-m",
        "--raw",
        "-z",
        "--no-abbrev",
    ),
    *("--no-renames", "--no-relative", "-O/dev/null", "--ignore-submodules=none", "--no-color", "--no-show-signature"),
    *("--no-ext-diff", "--no-textconv"),
    *("--encoding=UTF-8", "--format=tformat:%H%n%at%n%ae%n%an"),
]

# These would make git read another repository than the one it is pointed at, for example inside a git hook.
_REDIRECTING = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_NAMESPACE"}

# The repository's own settings, which may come from anybody, can name programs: missing objects are not fetched.
_HARMLESS = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}

# The mode of a commit of another repository (a submodule).
_SUBMODULE = "160000"

_UNENCODED = "".join(chr(byte) for byte in range(128) if byte != ord("%"))
_CHUNK_BYTES = 1 << 16

_RAW = re.compile(rb"\n?:[0-7]{6} ([0-7]{6}) [0-9a-f]+ ([0-9a-f]+) ([A-Z])[0-9]*")
_HEADER = re.compile(r"([0-9a-f]{40,64})\n([^\n]*)\n([^\n]*)\n(.*)", re.DOTALL)


def read_git(
    repository: str | os.PathLike[str], *, rev: str = "HEAD", contents: bool = False
) -> Iterator[ImportedCommit]:
    """The first-parent history of `rev`, oldest first, streamed from one git process.

    The agent of a commit is its author: the author's name made a valid agent name, one per e-mail address (the first
    name seen with an address counts; authors without an address go by their name). `ts` is the author date.

    :param repository: a work tree, a folder in one, or a bare repository.
    :param contents: also put the contents of files into the documents; they are read from a second git process.
    :raises UsageError: git is not installed, this is no repository, there is no such revision, or the clone is shallow.
    :raises CorruptError: git cannot read all of the history.
    """
    path = os.fspath(repository)
    commits = read_log(_log_tokens(path, _resolve(path, rev)), path)
    if not contents:
        yield from commits
        return
    with _Blobs(path) as blobs:
        for commit in commits:
            yield replace(commit, ops=tuple(map(blobs.filled, commit.ops)))


def count_commits(repository: str | os.PathLike[str], *, rev: str = "HEAD") -> int:
    """How many commits the first-parent history of `rev` has, to show the progress of an import. Errors as of
    `read_git`."""
    path = os.fspath(repository)
    command = _git(path, "rev-list", "--first-parent", "--count", _resolve(path, rev))
    done = subprocess.run(command, env=_environment(), capture_output=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


def read_log(tokens: Iterator[bytes], path: str) -> Iterator[ImportedCommit]:
    """The commits in the output of git log with the format `_LOG`, split at its NULs."""
    agents = AgentNames()
    header, ops = "", list[ImportedOp]()
    for token in tokens:
        if token.lstrip(b"\n").startswith(b":"):
            ops.append(_op(token, next(tokens, None), header, path))
            continue
        if ops:
            yield _commit(path, header, ops, agents)
        header, ops = token.decode("utf-8", "surrogateescape"), []
    if ops:
        yield _commit(path, header, ops, agents)


def path_of(id: str) -> bytes:
    """The path in git of the document `id`."""
    return unquote_to_bytes(id[1:]) if id.startswith("/") else id.encode("utf-8")


def _id_of(path: bytes) -> str:
    try:
        return path.decode("utf-8")
    except UnicodeDecodeError:
        return "/" + quote_from_bytes(path, safe=_UNENCODED)


def _op(raw: bytes, name: bytes | None, header: str, path: str) -> ImportedOp:
    """From ``:<old mode> <new mode> <old object> <new object> <status>`` and the name of the file."""
    match = _RAW.fullmatch(raw)
    if match is None or not name:
        raise CorruptError(f"{path}: git log printed {raw[:80]!r} where a change of a file was expected", path)
    mode, blob, status = (group.decode("ascii") for group in match.groups())
    if status == "D":
        return ImportedOp("delete", _id_of(name), None)
    return ImportedOp(
        "set", _id_of(name), {"blob": blob, "mode": mode, "status": status, "commit": header.partition("\n")[0]}
    )


def _commit(path: str, header: str, ops: list[ImportedOp], agents: AgentNames) -> ImportedCommit:
    match = _HEADER.fullmatch(header)
    if match is None:
        raise CorruptError(f"{path}: git log printed {header[:80]!r} where a commit was expected", path)
    commit, seconds, email, author = match.groups()
    agent = agents.name(email or f"\n{author}", author, email.partition("@")[0])
    try:
        ts = from_seconds(int(seconds))
    except ValueError as error:
        raise CorruptError(f"{path}: commit {commit} has no usable author date: {error}", path) from error
    return ImportedCommit(agent, ts, tuple(ops), f"{path}:{commit}")


class _Blobs:
    """The contents of files by git's object ids, read one after the other from one git process."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> Self:
        command = _git(self._path, "cat-file", "--batch")
        self._process = subprocess.Popen(
            command, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def filled(self, op: ImportedOp) -> ImportedOp:
        """The same op, with the contents of the file."""
        if op.document is None or op.document["mode"] == _SUBMODULE:
            return op
        data = self._read(op.document["blob"])
        try:
            content = {"text": data.decode("utf-8")}
        except UnicodeDecodeError:
            content = {"base64": b64encode(data).decode("ascii")}
        return replace(op, document=op.document | content)

    def _read(self, blob: str) -> bytes:
        ask, answers = self._process.stdin, self._process.stdout
        assert ask is not None
        assert answers is not None
        with suppress(BrokenPipeError):  # then there is no response either
            ask.write(f"{blob}\n".encode())
            ask.flush()
        head = answers.readline().split()  # <object> blob <size>
        data = answers.read(int(head[2]) + 1) if len(head) == 3 else b""
        if not data.endswith(b"\n") or head[1] != b"blob" or len(data) != int(head[2]) + 1:
            raise CorruptError(
                f"{self._path}: git cannot read the file of object {blob}; run 'git fsck' there", self._path
            )
        return data[:-1]


def _resolve(path: str, rev: str) -> str:
    """The object id of the commit `rev`, in a repository that has its whole history."""
    command = ["rev-parse", "--is-shallow-repository", "--verify", "--end-of-options", f"{rev}^{{commit}}"]
    try:
        done = subprocess.run(_git(path, *command), env=_environment(), capture_output=True, check=False)
    except FileNotFoundError as error:
        raise UsageError("the command git was not found; install git and see that it is on the PATH") from error
    if done.returncode:
        problem = done.stderr.decode(errors="replace").strip()
        raise UsageError(f"cannot read revision {rev!r} of {path}: {problem}; name a git repository and a commit in it")
    shallow, commit = done.stdout.decode("ascii").split()
    if shallow == "true":
        raise UsageError(f"{path} is a shallow clone and lacks older history; run 'git fetch --unshallow' there first")
    return commit


def _log_tokens(path: str, commit: str) -> Iterator[bytes]:
    """The output of git log, split at its NULs: per commit a header, then per change a raw line and a path.

    The process is ended with the iterator, also when nobody reads to the end. Its messages go to a file, since a full
    pipe that is not read would stop it.
    """
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            _git(path, *_LOG, commit), env=_environment(), stdout=subprocess.PIPE, stderr=messages
        )
        assert process.stdout is not None
        try:
            yield from _split(process.stdout)
            if process.wait():
                messages.seek(0)
                problem = messages.read().decode(errors="replace").strip()
                raise CorruptError(f"{path}: git stopped in the middle: {problem}; run 'git fsck' there", path)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _split(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while chunk := stream.read(_CHUNK_BYTES):
        *tokens, rest = (rest + chunk).split(b"\0")
        yield from tokens


def _git(path: str, *arguments: str) -> list[str]:
    return ["git", "-C", path, *arguments]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _REDIRECTING}
    return kept | _HARMLESS
