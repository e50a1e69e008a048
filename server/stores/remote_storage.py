"""The storage of a served store, for remote agents: carries out the calls of `opslog.backends.remote.protocol`.

A call on a lane is carried out once. If the last call of a lane is repeated, it gets the same answer again. If an
earlier call is repeated, it is refused.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import msgspec

from opslog.backends import Backend, Entry, Position, Range
from opslog.backends.remote import protocol
from opslog.backends.remote.protocol import LOCK_SECONDS, Answer
from opslog.chunks import batched
from opslog.environment import REAL, Environment
from opslog.errors import (
    AgentFencedError,
    AlreadyExistsError,
    CommitUnknownError,
    LockedError,
    OpslogError,
    UsageError,
)
from opslog.format.commits import Commit
from opslog.format.layout import TRANSACTIONS, archive_of, log_prefix, segment_path
from opslog.server.protocol.refusals import Refused
from opslog.server.stores.client_sessions import Sessions, written
from opslog.server.stores.contents import (
    LogEnd,
    Written,
    check_archive,
    check_new,
    fault_of_next,
    nothing_written,
)
from opslog.server.stores.rights import EVERYBODY, Client

# How many lanes the server remembers. A client whose lane was forgotten opens another one.
_LANES_MAX = 10_000

# The size limit of one answer, which only a single longer part exceeds; and how many parts are read at once.
_ANSWER_BYTES = 64 * 1024 * 1024
_RANGES = 64


class _Lane:
    """:ivar number: the number of the last call.
    :ivar answer: the answer to it."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self.number = 0
        self.answer: Answer | None = None


class _Held:
    """A lock that is held for a client.

    :ivar used: when it was last taken or renewed, on the monotonic clock.
    """

    def __init__(self, owner: str, holder: str, stack: ExitStack, used: float) -> None:
        self.owner = owner
        self.holder = holder
        self.stack = stack
        self.used = used


class StorageService:
    """Serves one storage. All calls block. It is safe to use from many threads.

    :param name: messages show it in place of the storage's URL, which clients are not to know.
    :param store: what the lines of clients with an agent are compared with.
    """

    def __init__(
        self, backend: Backend, name: str, environment: Environment = REAL, store: Written | None = None
    ) -> None:
        self._backend = backend
        self._name = name
        self._environment = environment
        self._store = store
        self._sessions = Sessions(backend, environment, store)
        self._lanes: OrderedDict[str, _Lane] = OrderedDict()
        self._mutex = threading.Lock()
        self._locks: dict[str, _Held] = {}
        # An end that the shared log had behind an append of a client with an agent.
        self._shared_end = LogEnd((0, 0), 0, "", "")
        # A mutex of its own, because taking a lock of the storage may be slow.
        self._locking = threading.Lock()

    @property
    def backend(self) -> Backend:
        """The storage that is served."""
        return self._backend

    def answer(
        self, body: bytes, client: Client = EVERYBODY, hold: Callable[[int], None] = lambda count: None
    ) -> tuple[bytes, bool]:
        """The body of the answer to a request, and whether the request was one that changes the storage.

        :param hold: called with how many bytes the answer will have, before they are read.
        :raises UsageError: this server does not understand the request.
        :raises Refused: `hold` has refused them.
        """
        try:
            request = protocol.decode_request(body)
        except msgspec.DecodeError as error:
            raise UsageError(f"the body is no request for a storage: {error}") from error
        if request.version != protocol.VERSION:
            raise UsageError(f"this server speaks version {protocol.VERSION} of this protocol, not {request.version}")
        return protocol.encode(self._answer(request, client, hold)), isinstance(request.call, protocol.Change)

    def _answer(self, request: protocol.Request, client: Client, hold: Callable[[int], None]) -> Answer:
        call, sessions = request.call, client.own(request.sessions)
        self._sessions.renew(sessions)
        if isinstance(call, protocol.Reading):
            return self._try(client, call, partial(self._read, call, hold))
        with self._mutex:
            lane = self._lanes.get(request.lane)
            if lane is None:
                return protocol.UnknownLane()
            self._lanes.move_to_end(request.lane)
        with lane.busy:
            if request.number == lane.number and lane.answer is not None:
                return lane.answer
            if request.number <= lane.number:
                raise UsageError("this request comes too late: its client has already sent a later one")
            lane.answer = self._try(client, call, partial(self._change, call, client, sessions))
            lane.number = request.number
            return lane.answer

    def _try(self, client: Client, call: protocol.AnyCall, answer: Callable[[], Answer]) -> Answer:
        try:
            client.check(call)
            return answer()
        except Refused:
            raise
        except OpslogError as error:
            message = str(error).replace(self._backend.url, self._name)
            return protocol.Failure.of(error.reworded(message))

    def _read(self, call: protocol.Reading, hold: Callable[[int], None]) -> Answer:
        backend = self._backend
        match call:
            case protocol.ListFiles(prefix, after):
                return protocol.Entries(_files(backend.list(prefix, after)))
            case protocol.ListLogs(seen):
                return protocol.Entries(_files(backend.list_logs(seen)))
            case protocol.ListWithLogs(prefix, after, seen):
                listed = backend.list(prefix, after)
                return protocol.FilesAndLogs(_files(listed), _files(backend.list_logs(seen)))
            case protocol.Read(ranges):
                return protocol.Contents(self._read_some([Range(*part) for part in ranges], hold))
            case protocol.Describe():
                return protocol.Storage(backend.segments_grow, lists_with_logs=True, announces=True)
            case protocol.Now():
                return protocol.Value(backend.now())
            case protocol.IsFree(agent):
                return protocol.Value(float(agent not in self._sessions and backend.is_free(agent)))
            case protocol.OpenLane():
                return self._open_lane()

    def _change(self, call: protocol.Change, client: Client, sessions: Mapping[str, str]) -> Answer:
        match call:
            case protocol.Create(path):
                if not client.operates and archive_of(path) is not None:
                    check_archive(call, self._backend, self._store)
                self._create(call)
            case protocol.Delete(paths):
                self._backend.delete(paths)
            case protocol.Persist(paths):
                self._backend.persist(paths)
            case protocol.OpenLog():
                return protocol.At(self._sessions.open(call))
            case protocol.Append():
                place = self._sessions.append(call, client.check_lines(call))
                return protocol.At((place.segment, place.offset))
            case protocol.CloseLog():
                self._sessions.close(call)
            case protocol.AppendAt():
                return self._append_at(call, client.check_lines(call), sessions)
            case protocol.Lock():
                with self._locking:
                    self._lock(call)
            case protocol.Unlock():
                with self._locking:
                    self._unlock(call)
        return protocol.Done()

    def _open_lane(self) -> Answer:
        name = self._environment.nonce()
        with self._mutex:
            self._lanes[name] = _Lane()
            while len(self._lanes) > _LANES_MAX:
                self._lanes.popitem(last=False)
        return protocol.Lane(name)

    def _create(self, call: protocol.Create) -> None:
        try:
            self._backend.create(call.path, call.data)
        except AlreadyExistsError:
            if not call.again or self._backend.read_many([Range(call.path)]) != [call.data]:
                raise

    def _read_some(self, ranges: list[Range], hold: Callable[[int], None]) -> list[bytes | None]:
        """The requested parts, up to `_ANSWER_BYTES`, and at least one part."""
        fitting: list[Range] = []
        sizes: dict[str, dict[str, int]] = {}
        total = 0
        for part in ranges:
            length = self._length(part, sizes, is_alone=len(ranges) == 1)
            if fitting and total + length > _ANSWER_BYTES:
                break
            total += length
            fitting.append(part)
        hold(total)
        return [data for some in batched(fitting, _RANGES) for data in self._backend.read_many(some)]

    def _length(self, part: Range, sizes: dict[str, dict[str, int]], *, is_alone: bool) -> int:
        """How many bytes a part has at most.

        :param sizes: of the files, by their folders, as far as they were listed.
        :param is_alone: whether it is the only part. If it goes to the end of an object, its length is then 0, because
            it is read in any case, and a listing of objects is a request that has a price.
        """
        if part.stop is not None:
            return max(0, part.stop - part.start)
        if is_alone and not self._backend.segments_grow:
            return 0
        folder = part.path[: part.path.rfind("/") + 1]
        if folder not in sizes:
            sizes[folder] = {entry.path: entry.size for entry in self._backend.list(folder)}
        return max(0, sizes[folder].get(part.path, 0) - part.start)

    def _append_at(self, call: protocol.AppendAt, commits: Sequence[Commit], sessions: Mapping[str, str]) -> Answer:
        """:param commits: those of a client with an agent, in the shared log."""
        place, fenced = None, None
        try:
            self._sessions.check_newest(sessions)
            if not commits or self._are_next(commits, call.end):
                place = self._backend.append_at(call.agent, Position(*call.end), call.data)
            if place is not None and commits:
                self._note_end(place, call.data, commits[-1])
        except AgentFencedError as error:
            fenced = error
        if place is None and call.again:
            place = self._tried(call)
        if place is None and fenced is not None:
            raise fenced
        return protocol.At(None if place is None else (place.segment, place.offset))

    def _are_next(self, commits: Sequence[Commit], at: tuple[int, int]) -> bool:
        """Whether these commits can come next in the shared log, if that ends where their client has read to.

        :raises WriteFailedError: they cannot, the log does not reach that position, or the store cannot be read.
        """
        store, end = self._store, self._shared_end
        if store is None:
            return True
        with nothing_written():
            check_new(commits, store)
            now = self._environment.time()
            if end.position != at:
                end = store.log_end(TRANSACTIONS, at)
            if fault_of_next(commits, end, now) is not None:
                end = store.log_end(TRANSACTIONS)  # a compaction may have brought a greater `ts`
            if at > (end.position[0] + 1, 0):
                raise UsageError(f"the shared log ends at {end.position} (segment, byte), before {at}")
            fault = fault_of_next(commits, end, now)
            if fault is not None and end.position <= at:
                raise UsageError(fault)
        return fault is None  # otherwise they would have come next, but the log has grown

    def _note_end(self, place: Position, data: bytes, last: Commit) -> None:
        """Remember where the shared log ends behind an append. The next one may come without a read of the log."""
        grows, offset = self._backend.segments_grow, place.offset + len(data)
        position = (place.segment, offset) if grows else (place.segment + 1, 0)
        self._shared_end = LogEnd(position, last.clock, last.ts, "")

    def _tried(self, call: protocol.AppendAt) -> Position | None:
        """The position at which an earlier attempt has appended everything; None if nothing of it is there.

        :raises WriteFailedError: only a part of it is there.
        :raises CommitUnknownError: the segment was collected, so the outcome cannot be found out.
        """
        tried = written(self._backend, call.agent, call.end, call.data)
        if tried is not None:
            return tried.whole(call.data)
        listed = [entry.path for entry in self._backend.list(log_prefix(call.agent))]
        if segment_path(call.agent, call.end[0]) not in listed:
            raise CommitUnknownError(
                "a transaction may or may not have happened: a response was lost, and the shared log was collected "
                "since. Check the documents"
            )
        return None

    # -- locks

    def release_unused(self) -> None:
        """Release the names and locks of clients that have sent no request for long. Call it now and then."""
        self._sessions.close_idle()
        before = self._environment.monotonic() - LOCK_SECONDS
        if any(held.used < before for held in list(self._locks.values())):
            with self._locking:
                for name in [name for name, held in self._locks.items() if held.used < before]:
                    self._locks.pop(name).stack.close()

    def _lock(self, call: protocol.Lock) -> None:
        now = self._environment.monotonic()
        held = self._locks.get(call.name)
        if held is not None:
            if held.owner == call.owner:
                held.used = now
                return
            if now - held.used < LOCK_SECONDS:
                raise LockedError(
                    f"the lock {call.name!r} is held by {held.holder}: try again when it is done. If that "
                    f"process is gone, try again in {LOCK_SECONDS:g} seconds",
                    call.name,
                    held.holder,
                )
            self._locks.pop(call.name).stack.close()
        stack = ExitStack()
        stack.enter_context(self._backend.lock(call.name))
        self._locks[call.name] = _Held(call.owner, call.holder, stack, now)

    def _unlock(self, call: protocol.Unlock) -> None:
        held = self._locks.get(call.name)
        if held is not None and held.owner == call.owner:
            self._locks.pop(call.name).stack.close()

    def close(self) -> None:
        """Release all names and locks. The owner of the backend closes it."""
        self._sessions.close_all()
        while self._locks:
            self._locks.popitem()[1].stack.close()


def _files(listed: Sequence[Entry]) -> list[tuple[str, int, float]]:
    return [(entry.path, entry.size, entry.modified) for entry in listed]
