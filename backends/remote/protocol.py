"""The protocol between a remote backend and the server: one call and one answer for each request, in MessagePack.

``POST …/v1/store/NAME/storage`` carries a `Request`, and is answered by an `Answer`. The calls are those of
`opslog.backends.contract`, with two differences that a network requires:

- **A call that changes something has a number on a lane.** A lane is a sequence of calls, one after the other, which
  the server creates. A repeated call gets the same answer again. A delayed call, which arrives after the next call of
  its lane, is refused. So no request is carried out twice, even if a network repeats and delays requests. A restarted
  server knows no lanes. A client that finds this out takes a new lane, and says with `again` that an earlier attempt
  may have been carried out. The server then compares what is there with what was to be written.
- **A name is a session.** `OpenLog` begins it. While it lasts, the server holds the name, as any process that writes a
  log there does. Each request of the client renews the session, and `SESSION_SECONDS` after the last request the name
  is free. If a request comes after that, or after a restart of the server, the session continues, unless another
  session has followed it or the log was written since.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from opslog import errors
from opslog.errors import OpslogError

# The version of the calls; a server refuses other versions.
VERSION = 1

CONTENT_TYPE = "application/vnd.opslog.storage+msgpack"

# How many ranges one call asks for, at most.
RANGES_MAX = 10_000

# The number of a segment; and a number that may be 0, as a position in a segment, or the last segment of an empty log.
Segment = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]

# How long a session keeps others from its name after its last request.
SESSION_SECONDS = 60.0

# How long a lock is held after it was last taken or renewed.
LOCK_SECONDS = 60.0


class ListFiles(msgspec.Struct, tag="list", frozen=True):
    """`Backend.list`."""

    prefix: str
    after: str = ""


class ListLogs(msgspec.Struct, tag="list_logs", frozen=True):
    """`Backend.list_logs`."""

    seen: dict[str, int]


class ListWithLogs(msgspec.Struct, tag="list_with_logs", frozen=True):
    """`ListsWithLogs.list_with_logs`."""

    prefix: str
    after: str
    seen: dict[str, int]


class Read(msgspec.Struct, tag="read", frozen=True):
    """`Backend.read_many`, of a limited number of ranges."""

    ranges: Annotated[list[tuple[str, int, int | None]], msgspec.Meta(max_length=RANGES_MAX)]


class IsFree(msgspec.Struct, tag="is_free", frozen=True):
    """`Backend.is_free`."""

    agent: str


class Now(msgspec.Struct, tag="now", frozen=True):
    """`Backend.now`."""


class Describe(msgspec.Struct, tag="describe", frozen=True):
    """Ask for the properties of the storage."""


class OpenLane(msgspec.Struct, tag="open_lane", frozen=True):
    """Ask for a lane for calls that change something."""


class Create(msgspec.Struct, tag="create", frozen=True):
    """`Backend.create`."""

    path: str
    data: bytes
    again: bool = False


class Delete(msgspec.Struct, tag="delete", frozen=True):
    """`Backend.delete`."""

    paths: list[str]


class Persist(msgspec.Struct, tag="persist", frozen=True):
    """`Backend.persist`."""

    paths: list[str]


class OpenLog(msgspec.Struct, tag="open_log", frozen=True):
    """Begin a session: become the one writer of a log.

    :ivar session: a name that no other session has.
    :ivar holder: the process that opens the log, for messages to others.
    """

    agent: str
    session: str
    holder: str


class Append(msgspec.Struct, tag="append", frozen=True):
    """`Appender.append`, and `Appender.advance` before it.

    :ivar floor: the segment that `advance` was called with; 0: it was not called.
    :ivar end: the last segment of the log, and its size, as the session left it.
    """

    agent: str
    session: str
    end: tuple[Natural, Natural]
    floor: Natural
    data: bytes
    again: bool = False


class CloseLog(msgspec.Struct, tag="close_log", frozen=True):
    """End a session."""

    agent: str
    session: str


class AppendAt(msgspec.Struct, tag="append_at", frozen=True):
    """`Backend.append_at`."""

    agent: str
    end: tuple[Segment, Natural]
    data: bytes
    again: bool = False


class Lock(msgspec.Struct, tag="lock", frozen=True):
    """Take a lock, or renew it.

    :ivar owner: a name that no other holder has.
    """

    name: str
    owner: str
    holder: str


class Unlock(msgspec.Struct, tag="unlock", frozen=True):
    """Give a lock back."""

    name: str
    owner: str


Reading = ListFiles | ListLogs | ListWithLogs | Read | IsFree | Now | Describe | OpenLane
Change = Create | Delete | Persist | OpenLog | Append | CloseLog | AppendAt | Lock | Unlock
AnyCall = Reading | Change


class Request(msgspec.Struct, frozen=True):
    """:ivar lane: the name of the lane; empty for calls that change nothing.
    :ivar number: the number of this call on its lane, from 1.
    :ivar sessions: the sessions of the client, by agent.
    """

    version: int
    call: AnyCall
    lane: str = ""
    number: int = 0
    sessions: dict[str, str] = {}


class Entries(msgspec.Struct, tag="entries", frozen=True):
    """Path, size and time of change of files."""

    files: list[tuple[str, int, float]]


class FilesAndLogs(msgspec.Struct, tag="files_and_logs", frozen=True):
    """Two listings, the logs after the files; each as `Entries` has them."""

    files: list[tuple[str, int, float]]
    logs: list[tuple[str, int, float]]


class Contents(msgspec.Struct, tag="contents", frozen=True):
    """The bytes of files; None for a file that does not exist. If all of them are too long for one answer, it has as
    many as fit, and at least one."""

    parts: list[bytes | None]


class Storage(msgspec.Struct, tag="storage", frozen=True):
    """:ivar segments_grow: as of `Backend`.
    :ivar lists_with_logs: whether the server knows `ListWithLogs`. Older servers do not say.
    :ivar announces: whether the server answers a GET of the same address with events: one at once, and one after each
        write. Older servers do not say.
    """

    segments_grow: bool
    lists_with_logs: bool = False
    announces: bool = False


class Value(msgspec.Struct, tag="value", frozen=True):
    """A time, or yes or no."""

    number: float


class Lane(msgspec.Struct, tag="lane", frozen=True):
    """:ivar name: the name that its calls carry."""

    name: str


class Done(msgspec.Struct, tag="done", frozen=True):
    """The call was carried out."""


class At(msgspec.Struct, tag="at", frozen=True):
    """A position in a log: where an append begins, or where the log of a new session ends. None: the log has more after
    the given end, and nothing was written."""

    position: tuple[int, int] | None


class UnknownLane(msgspec.Struct, tag="unknown_lane", frozen=True):
    """The server does not know this lane, and has done nothing."""


class Failure(msgspec.Struct, tag="failure", frozen=True):
    """An error of `opslog.errors`: the name of its class, and its contents."""

    kind: str
    message: str
    attributes: dict[str, Any]

    @classmethod
    def of(cls, error: OpslogError) -> Failure:
        plain = {name: _utf8(value) for name, value in vars(error).items() if isinstance(value, str | int | float)}
        return cls(type(error).__name__, _utf8(str(error)), plain)

    def error(self) -> OpslogError:
        """The error, as the backend of the server raised it."""
        kind = getattr(errors, self.kind, OpslogError)
        if not (isinstance(kind, type) and issubclass(kind, OpslogError)):
            kind = OpslogError
        error = kind(self.message)
        vars(error).update(self.attributes)
        return error


Answer = Entries | FilesAndLogs | Contents | Storage | Value | Lane | Done | At | UnknownLane | Failure


def _utf8(value: Any) -> Any:
    """Encode a path in a message, which need not be valid UTF-8."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    """The body of a request or of an answer."""
    return _encoder.encode(message)


def decode_request(body: bytes) -> Request:
    """:raises msgspec.DecodeError: it is none."""
    return _requests.decode(body)


def decode_answer(body: bytes) -> Answer:
    """:raises msgspec.DecodeError: it is none."""
    return _answers.decode(body)
