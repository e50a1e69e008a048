"""Commits and the lines that carry them. Pure: bytes in, structs out, and back.

A commit is the result of one writing call, and one line of a log: a set or delete of one document, a batch of those, an
undo, or a seal. A record is a set or a delete of one document. Snapshots and archives contain only lines of records, so
one decoder serves every file. Documents stay undecoded (`msgspec.Raw`), because most lines are read only to be ordered.

    {"ts":"2026-11-20T12:00:00.123456Z","clock":42,"agent":"planner","op":"set","id":"task-1","data":{"title":"Build"}}
    {"ts":"…","clock":43,"agent":"planner","op":"delete","id":"task-1"}
    {"ts":"…","clock":44,"agent":"planner","op":"batch","ops":[{"op":"set","id":"a","data":{}},{"op":"delete","id":"b"}]}
    {"ts":"…","clock":45,"agent":"planner","op":"undo","target":44}
    {"ts":"…","clock":46,"agent":"planner","op":"seal"}

A line of the shared log names its author, and the transaction:

    {"ts":"…","clock":1047,"agent":"transactions","by":"planner","tx":"5f0c…","op":"set","id":"task-1","data":{}}
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple, Self, TypeVar

import msgspec
import orjson

from opslog.errors import CorruptError, UsageError
from opslog.format.exact import UNREADABLE, InexactError, load_document
from opslog.kernel import set_line


class Stamp(NamedTuple):
    """Names one commit, and each record that it wrote. As text: ``1042@planner``.

    If a document has the same stamp at two moments, nobody wrote it in between. `opslog.merge.stamps` defines the order
    of stamps, and its consequences.
    """

    clock: int
    agent: str

    def __str__(self) -> str:
        return f"{self.clock}@{self.agent}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """A stamp from its text.

        :raises UsageError: it is not one.
        """
        clock, separator, agent = text.partition("@")
        # No clock has more than 19 digits, and Python refuses to convert thousands.
        if not (separator and agent and clock.isascii() and clock.isdigit() and len(clock) < 20):
            raise UsageError(f"a stamp is a clock and a name, as in 1042@planner, not {text!r}")
        return cls(int(clock), agent)


# The greatest clock fits the signed 64-bit integer of every other language that reads logs.
CLOCK_MAX = 2**63 - 1

# The longest line. A reader that finds no line end in this many bytes knows that something is wrong, without holding
# all of a file in memory.
LINE_BYTES_MAX = 256 * 1024 * 1024

Clock = Annotated[int, msgspec.Meta(ge=1, le=CLOCK_MAX)]
Version = Annotated[int, msgspec.Meta(ge=1, le=CLOCK_MAX)]


# How many characters of a value, and how many ops of a batch, are shown at a prompt.
_SHOWN, _OPS_SHOWN = 1000, 5
# Author and time are shown last.
_SIGNATURE = frozenset({"ts", "clock", "agent", "by", "tx"})


class _Shown(msgspec.Struct, gc=False):
    """The form shown at a prompt: documents are decoded, and fields without information are left out."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Names and values; fields with default values are left out. Never raises."""
        shown: list[tuple[str, Any]] = []
        for name in sorted(self.__struct_fields__, key=_SIGNATURE.__contains__):
            value = getattr(self, name)
            if isinstance(value, msgspec.Raw):
                shown.append(_document_or_text(value))
            elif value not in ("", None) and (name, value) != ("v", 1):
                shown.append((name, value))
        return shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={_cut(value)}' for name, value in self.__rich_repr__())})"


def _document_or_text(data: msgspec.Raw) -> tuple[str, object]:
    text = bytes(data)
    try:
        return "document", load_document(text)
    except InexactError:
        return "data", text


def _cut(value: object) -> str:
    if isinstance(value, list) and len(value) > _OPS_SHOWN:
        some = ", ".join(map(repr, value[:_OPS_SHOWN]))
        return f"[{some}, … {len(value) - _OPS_SHOWN} more]"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# gc=False throughout: commits never form cycles, and a collector that traverses millions of them triples the time of a
# load.
class _Signed(_Shown, gc=False, kw_only=True):
    """The fields of the shared log's lines, and of records that came from there. Both are empty elsewhere, and in
    records that opslog 0.1 has compacted."""

    by: str = ""
    tx: str = ""


class _Commit(_Signed, gc=False, tag_field="op"):
    ts: str
    clock: Clock
    agent: str

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.clock, self.agent)

    @property
    def author(self) -> str:
        """The agent that wrote it: that of the log or, for a transaction, its author."""
        return self.by or self.agent

    @property
    def op(self) -> str:
        """The word in the line: set, delete, batch, undo or seal."""
        return str(self.__struct_config__.tag)


class Set(_Commit, gc=False, tag_field="op", tag="set"):
    """A document gets a new value.

    :ivar data: the document as JSON text.
    :ivar v: the schema version under which it was written.
    """

    id: str
    data: msgspec.Raw
    v: Version = 1

    @property
    def records(self) -> tuple[Record, ...]:
        return (self,)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the documents that it changed. Every type of commit has this property."""
        return (self.id,)

    @property
    def document(self) -> dict[str, Any]:
        """The document, decoded anew at every access, so the caller may change it.

        :raises CorruptError: its text is not exactly one JSON object.
        """
        try:
            return load_document(bytes(self.data))
        except InexactError as error:
            raise self.corrupt(str(error)) from error

    def corrupt(self, reason: str) -> CorruptError:
        """The error with the reason why the document cannot be read."""
        return CorruptError(
            f"document {self.id!r}, written by {self.author} at clock {self.clock}, cannot be read: {reason}. "
            "`opslog verify` names the file and the byte offset"
        )


class Delete(_Commit, gc=False, tag_field="op", tag="delete"):
    """A document is deleted.

    :ivar archived: the period of the archive that it went to, if archiving deleted it.
    :ivar folded: for a tombstone in a snapshot, when it first came into one, by the storage's clock. Unused in a log.
    """

    id: str
    archived: str | None = None
    folded: str | None = None

    @property
    def records(self) -> tuple[Record, ...]:
        return (self,)

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.id,)


Record = Set | Delete


class SetOp(_Shown, gc=False, tag_field="op", tag="set"):
    """A set inside a batch; clock, agent and ts are the batch's."""

    id: str
    data: msgspec.Raw
    v: Version = 1


class DeleteOp(_Shown, gc=False, tag_field="op", tag="delete"):
    """A delete inside a batch."""

    id: str
    archived: str | None = None


class Batch(_Commit, gc=False, tag_field="op", tag="batch"):
    """Several ops that happen together or not at all."""

    ops: list[SetOp | DeleteOp]

    @property
    def records(self) -> tuple[Record, ...]:
        """One record per document. If a document has several ops, the last one counts."""
        last: dict[str, Record] = {}
        for op in self.ops:
            if isinstance(op, SetOp):
                last[op.id] = Set(self.ts, self.clock, self.agent, op.id, op.data, op.v)
            else:
                last[op.id] = Delete(self.ts, self.clock, self.agent, op.id, op.archived)
        if self.by or self.tx:
            for record in last.values():
                record.by, record.tx = self.by, self.tx
        return tuple(last.values())

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(op.id for op in self.ops))


# dict=True, since `ids` is not a field of its line; such a struct needs the collector.
class Undo(_Commit, gc=True, dict=True, tag_field="op", tag="undo"):
    """Cancels an earlier commit of the same agent.

    :ivar target: the clock of that commit.
    """

    target: Clock

    @property
    def records(self) -> tuple[Record, ...]:
        return ()

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the documents that it gave back. Empty if it cancelled nothing, or if they are unknown: no store
        has read this commit, or the commit that it cancelled is no longer kept."""
        ids: tuple[str, ...] = self.__dict__.get("_ids", ())
        return ids

    def note_ids(self, ids: tuple[str, ...]) -> None:
        """Set `ids`. The reader of the log calls it, since it knows them."""
        self.__dict__["_ids"] = ids


class Seal(_Commit, gc=False, tag_field="op", tag="seal"):
    """Ends the undo window of an idle agent: nothing before it can be undone any more."""

    @property
    def records(self) -> tuple[Record, ...]:
        return ()

    @property
    def ids(self) -> tuple[str, ...]:
        return ()


Commit = Set | Delete | Batch | Undo | Seal
AnyCommit = TypeVar("AnyCommit", bound=Commit)


def detached(commit: AnyCommit, agent: str) -> AnyCommit:
    """The same commit, changed so that it does not keep the bytes that it was decoded from, which can be many times as
    long, in memory.

    :param agent: the commit's agent, as one string for all commits of a log.
    """
    commit.agent = agent
    if isinstance(commit, Set):
        commit.data = commit.data.copy()
    elif isinstance(commit, Batch):
        for op in commit.ops:
            if isinstance(op, SetOp):
                op.data = op.data.copy()
    return commit


_commits = msgspec.json.Decoder(Commit)
_records = msgspec.json.Decoder(Record)


def decode_commits(lines: bytes, path: str, offset: int) -> list[Commit]:
    """The commits of whole lines. `path` and `offset` name the beginning of `lines`, for the message.

    :raises CorruptError: at the first line that is no commit.
    """
    return _decode(_commits, lines, path, offset)


def decode_commit(line: bytes) -> Commit | None:
    """The commit of one line; None if the line by itself is no commit."""
    try:
        commit: Commit = _commits.decode(line)
    except UNREADABLE:
        return None
    return commit if _have_ts([commit]) else None


def decode_records(lines: bytes, path: str, offset: int) -> list[Record]:
    """The records of whole lines of a snapshot or an archive; errors as in `decode_commits`."""
    return _decode(_records, lines, path, offset)


def decode_record(line: bytes) -> Record:
    """The record of one line that was decoded before, together with all other lines of its file.

    :raises CorruptError: the line by itself is no record.
    """
    try:
        record: Record = _records.decode(line)
    except UNREADABLE as error:
        raise CorruptError(
            f"a line of a snapshot or archive cannot be read ({error}): {line[:80]!r}. `opslog verify` names the file "
            "and the byte offset"
        ) from error
    return record


def _decode(decoder: msgspec.json.Decoder[AnyCommit], lines: bytes, path: str, offset: int) -> list[AnyCommit]:
    try:
        commits = decoder.decode_lines(lines)
    except UNREADABLE:
        commits = []
    # decode_lines skips blank lines and takes line ends for spaces. Then the number of commits is wrong, and decoding
    # line by line finds the place. (If as many lines have two commits as commits have two lines, the number is right;
    # verify finds those.)
    if len(commits) == lines.count(b"\n") and lines.endswith(b"\n") and _have_ts(commits):
        return commits
    return _decode_slowly(decoder, lines, path, offset)


def _have_ts(commits: Sequence[_Commit]) -> bool:
    """Whether the `ts` of each is a time in the one form that sorts as text. They are checked all at once, since a load
    does this for every line. `opslog verify` checks that the day exists."""
    joined = "".join([commit.ts for commit in commits]).encode()
    return joined.translate(_ZEROS) == _TS_FORM * len(commits)


_TS_FORM = b"0000-00-00T00:00:00.000000Z"
_ZEROS = bytes.maketrans(b"123456789", b"000000000")


def _decode_slowly(decoder: msgspec.json.Decoder[AnyCommit], lines: bytes, path: str, offset: int) -> list[AnyCommit]:
    commits = []
    for line in lines.splitlines(keepends=True) if b"\r" not in lines else _split(lines):
        try:
            commit = decoder.decode(line)
            if not _have_ts([commit]):
                raise InexactError(f"ts is {commit.ts!r:.60}, not a time in the form 2026-11-20T12:00:00.123456Z")
        except (*UNREADABLE, InexactError) as error:
            raise CorruptError(
                f"{path}: byte {offset}: this line cannot be read ({error}): {line[:80]!r}. "
                "Nothing was skipped or changed; `opslog verify` lists every such place",
                path,
                offset,
            ) from error
        commits.append(commit)
        offset += len(line)
    return commits


def _split(lines: bytes) -> Iterable[bytes]:
    return (line + b"\n" for line in lines.removesuffix(b"\n").split(b"\n"))


# These functions encode by hand, since msgspec would put a tag first, and the order of fields is part of the format.
# `ts` and `agent` need no escaping: `format_ts` makes the former, and the latter is a valid name.


def described_line(commit: Commit) -> bytes:
    """The line of a commit, with its newline; for an undo, also with the documents that it gave back, as `ids`."""
    line = encode_commit(commit)
    if not isinstance(commit, Undo):
        return line
    return b'%b,"ids":%b}\n' % (line.removesuffix(b"}\n"), orjson.dumps(commit.ids))


def encode_commit(commit: Commit, key: str = "") -> bytes:
    """The line of a commit, with its newline.

    :param key: in the shared log, the key of the request that it was written for.
    :raises UsageError: it is longer than a line may be.
    :raises CorruptError: its clock is above the greatest that a line can hold, because a commit that was read before
        had the greatest one.
    """
    if commit.clock > CLOCK_MAX:
        raise CorruptError(
            f"no commit can follow clock {CLOCK_MAX}, which some log or manifest of this store has reached: no program "
            "counts so far. `opslog ops` shows which commit it is; remove it from a copy of the store"
        )
    if type(commit) is Set and not (key or commit.by or commit.tx):
        line = _encode_plain(commit)
    else:
        line = _encode(commit, key)
    if len(line) > LINE_BYTES_MAX:
        raise UsageError(
            f"one commit would take {len(line)} bytes, and a line of a log has {LINE_BYTES_MAX} at most: make several "
            "batches of it, or keep large content elsewhere and its address in the document"
        )
    return line


def _encode_plain(commit: Set) -> bytes:
    """As `_encode`, for the usual set, which is nearly every commit."""
    if set_line is not None:
        line = set_line(commit.ts, commit.clock, commit.agent, commit.id, commit.data, commit.v)
        if line is not None:
            return line
    head = f'{{"ts":"{commit.ts}","clock":{commit.clock},"agent":"{commit.agent}","op":"set","id":'.encode()
    end = b"}\n" if commit.v == 1 else b',"v":%d}\n' % commit.v
    return b"".join((head, orjson.dumps(commit.id), b',"data":', commit.data, end))


def _encode(commit: Commit, key: str) -> bytes:
    head = f'{{"ts":"{commit.ts}","clock":{commit.clock},"agent":"{commit.agent}"'.encode()
    if commit.by:
        head += b',"by":' + orjson.dumps(commit.by)
    if commit.tx:
        head += b',"tx":' + orjson.dumps(commit.tx)
    if key:
        head += b',"key":' + orjson.dumps(key)
    rest: tuple[bytes, ...]
    if isinstance(commit, Set):
        rest = _set_fields(commit)
    elif isinstance(commit, Delete):
        rest = (_delete_fields(commit), b"" if commit.folded is None else b',"folded":' + orjson.dumps(commit.folded))
    elif isinstance(commit, Batch):
        rest = (b'"op":"batch","ops":[', b",".join(map(_encode_op, commit.ops)), b"]")
    elif isinstance(commit, Undo):
        rest = (b'"op":"undo","target":%d' % commit.target,)
    else:
        rest = (b'"op":"seal"',)
    return b"".join((head, b",", *rest, b"}\n"))


def _encode_op(op: SetOp | DeleteOp) -> bytes:
    fields = _set_fields(op) if isinstance(op, SetOp) else (_delete_fields(op),)
    return b"".join((b"{", *fields, b"}"))


def _set_fields(op: Set | SetOp) -> tuple[bytes, ...]:
    """The parts of the line, in order, so that a document is copied only once, into the line."""
    fields = (b'"op":"set","id":', orjson.dumps(op.id), b',"data":', op.data)
    return fields if op.v == 1 else (*fields, b',"v":%d' % op.v)


def _delete_fields(op: Delete | DeleteOp) -> bytes:
    fields = b'"op":"delete","id":' + orjson.dumps(op.id)
    return fields if op.archived is None else fields + b',"archived":' + orjson.dumps(op.archived)
