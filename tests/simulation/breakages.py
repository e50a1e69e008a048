"""The product, broken on purpose in one place at a time. A simulator that does not find these breakages proves nothing.

Each breakage patches in a plausible mistake, and names the runs in which it is likely to show: the storage, the faults,
the load. The same runs must pass without it.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from opslog.backends import posix
from opslog.backends.contract import Entry
from opslog.backends.forking import Descriptor
from opslog.backends.local import fs_log
from opslog.backends.local.fs import FsBackend
from opslog.backends.objects import backend as objects
from opslog.compaction import compact as compaction
from opslog.compaction import garbage
from opslog.compaction.compact import Tail
from opslog.compaction.garbage import Garbage, find_garbage
from opslog.environment import Environment, format_ts
from opslog.errors import AlreadyExistsError, MissingFileError, NotFoundError, OpslogError, WriteFailedError
from opslog.format import layout
from opslog.format.commits import Batch, Commit, Record
from opslog.format.layout import run_of, segment_of
from opslog.format.manifest import Cut, Manifest, Settings
from opslog.format.snapshot import Ages, Row
from opslog.log.freshness import Freshness
from opslog.log.reader import Segments
from opslog.log.survey import Survey
from opslog.log.writer import Group, LogWriter
from opslog.merge import merge
from opslog.merge.clock import LamportClock
from opslog.merge.merge import Merge
from opslog.merge.undo import Recent
from opslog.replica.following import Following
from opslog.replica.memory import Memory
from opslog.replica.state import State
from opslog.snapshot.manifests import ManifestStore
from opslog.snapshot.runs import BlockRun
from opslog.store import Store
from opslog.testing.faults import PAUSE_SECONDS_MAX, random_faults
from opslog.testing.system import System
from opslog.verify import garbage as reported_garbage
from opslog.verify.garbage import GarbageFile
from tests.simulation import preemption
from tests.simulation.scenario import Scenario, random_scenario, run

POWER = {"power": 1.0, "power after": 2.0, "crash after": 1.0}
CRASHES = {"crash": 1.0, "crash after": 1.0}
PAUSES = {"pause": 2.0, "pause after": 1.0}
ANSWERS = {"lost": 3.0, "late": 1.0, "fail": 1.0}


def likely(
    storage: str,
    faults: Mapping[str, float],
    count: int = 6,
    steps: int = 2000,
    at: Mapping[str, str] | None = None,
    *,
    amounts: Mapping[str, float] | None = None,
    **changes: Any,
) -> Callable[[int], Scenario]:
    """Runs in which a breakage of this kind is likely to show.

    :param count, steps: how many faults, over how many calls. :param at: per kind of fault the call at which it
        strikes; `amounts`: its amount, if that is not random.
    :param changes: changes of the scenario, or of its settings.
    """
    names = {name for name in Settings.__struct_fields__ if name in changes}
    settings = Settings(
        **{
            "undo_window": 2,
            "grace_seconds": 2.0,
            "tombstone_ttl_seconds": 3 * PAUSE_SECONDS_MAX,
            "undo_ttl_seconds": 5.0,
        }
        | {name: changes.pop(name) for name in names}
    )

    def scenario(seed: int) -> Scenario:
        choices = random.Random(f"breakage {seed}")
        whole: dict[str, Any] = {
            "agents": 3,
            "rivals": 0,
            "readers": 1,
            "compactors": 2,
            "calls": 20,
            "documents": 4,
            "think_seconds": 0.3,
            "nap_seconds": 0.0,
            "skew_seconds": 0.0,
            "large": False,
            "buffered": 0,
            "imports": 0,
            "inspectors": 0,
            "consumers": 0,
            "workers": 0,
            "odd": False,
            "ignores_case": False,
            "threaded": 0,
            "asynchronous": 0,
            "statements": 0,
            "transactions": 0.0,
            "settings": settings,
        } | changes
        drawn = random_faults(choices, faults, count, steps, 0.0) if faults else []
        struck = tuple(
            fault._replace(call=(at or {}).get(fault.kind, ""), amount=(amounts or {}).get(fault.kind, fault.amount))
            for fault in drawn
        )
        return replace(random_scenario(seed, storage), **whole, faults=struck)

    return scenario


@dataclass(frozen=True)
class Breakage:
    """One mistake: what it is, where it is made, in which runs it is looked for, and the first seed. (A mistake that
    seldom shows has a first seed near one that shows it.)

    :ivar more: further patches (target, attribute, replacement), if two places guard one rule.
    """

    name: str
    target: Any
    attribute: str
    broken: Any
    scenario: Callable[[int], Scenario]
    first: int = 0
    more: tuple[tuple[Any, str, Any], ...] = ()

    @contextmanager
    def made(self) -> Iterator[None]:
        modules = {*preemption.MODULES, getattr(self.broken, "__module__", __name__)}
        with ExitStack() as stack:
            # The stand-in loses its turn as the product's code does.
            stack.enter_context(patch.object(preemption, "MODULES", sorted(modules)))
            for target, attribute, broken in ((self.target, self.attribute, self.broken), *self.more):
                stack.enter_context(patch.object(target, attribute, broken))
            yield


def _nothing(*arguments: object, **options: object) -> None:
    """Do not do it."""


# -- on disk


def _create_first_without_sync(self: ManifestStore, settings: Settings, environment: Environment) -> None:
    with suppress(NotFoundError):
        self.newest()
        return
    with suppress(AlreadyExistsError):
        self.create(Manifest(number=1, created=format_ts(environment.time()), settings=settings))


def _link_over(self: FsBackend, descriptor: int, temporary: str, path: str) -> bool:
    system = vars(fs_log)["os"]  # the simulated one
    with suppress(FileNotFoundError):
        system.unlink(f"{self.root}/{path}")
    system.link(f"{self.root}/{temporary}", f"{self.root}/{path}")
    return True


def _delete_all_at_once(backend: Any, number: int) -> Garbage:
    entries = ManifestStore(backend).entries()
    found = find_garbage(backend, entries[-1][1].modified, number, ManifestStore(backend).newest().oldest)
    backend.delete(reversed(found.paths))
    return found


def _not_written(self: Any, reason: str) -> OpslogError:
    self._refusal = None
    self._abandon_segment()
    return WriteFailedError(reason)


def _keep_what_the_dead_held(self: System, held: Descriptor) -> None:
    """The lock is a file that its holder removes, and not a lock that the kernel releases."""
    holder = self.simulation.current
    if holder is not None and holder.dead and held.number in self._open:
        self._open[held.number].owner = None
    else:
        _release(self, held)


_release = System.release


# -- commits


def _acknowledge_first(self: LogWriter, group: Group) -> None:
    data = group.data()
    group.end(None, len(data))
    self._settle(group)
    with suppress(OpslogError):
        self.session.append(data)


def _clock_from_zero(self: LamportClock, value: int = 0) -> None:
    _clock_init(self, 0)


_clock_init = LamportClock.__init__


def _half(self: Batch) -> tuple[Record, ...]:
    records = _all_records(self)
    return records[: max(1, len(records) // 2)]


_all_records: Callable[[Batch], tuple[Record, ...]] = Batch.records.fget  # type: ignore[attr-defined]


def _put_once(self: objects.ObjectBackend, path: str, data: bytes) -> bool:
    """Every "exists already" counts as somebody else's object."""
    while True:
        outcome = self.driver.put_new(self._prefix + path, data)
        if outcome is not objects.Put.UNKNOWN:
            return outcome is objects.Put.CREATED
        self.environment.sleep(1.0)


def _unknown_is_written(self: objects.ObjectBackend, path: str, data: bytes) -> bool:
    """A missing response counts as success."""
    return self.driver.put_new(self._prefix + path, data) is not objects.Put.EXISTS


def _forget_failure(self: LogWriter, group: Group) -> None:
    """Nobody waits for a buffered commit, so nobody learns of the failure."""
    for pending in group.pendings:
        pending.end()
    self._group = None


# -- undo


def _newest_whatever(recent: Sequence[Recent], author: str | None = None) -> Commit | None:
    return next((entry.commit for entry in reversed(recent) if entry.records), None)


def _oldest_first(recent: Sequence[Recent], author: str | None = None) -> Commit | None:
    return next((entry.commit for entry in recent if entry.is_undoable), None)


# -- compaction and garbage


def _compact_everything(self: Tail, found: Survey) -> None:
    _tail_init(self, found)
    self.merge = Merge(0)


_tail_init = Tail.__init__


def _no_segments(segments: Segments, cut: Mapping[str, Cut]) -> list[str]:
    return []


def _read_once(self: ManifestStore, choose: Callable[[], Manifest], read: Callable[[Manifest], Any]) -> Any:
    return read(choose())


def _temporary_by_part_of_name(path: str) -> layout.Kind:
    return layout.Kind.TEMPORARY if ".tmp-" in path else _kind_of(path)


_kind_of = layout.kind_of


def _movable_by_part_of_name(
    entry: Entry, named: set[str], unread: Sequence[str], newest: int, now: float
) -> GarbageFile | None:
    """The garbage that a repair moves aside, chosen by a part of its name."""
    if ".tmp-" in entry.path and now - entry.modified > garbage.TEMPORARY_SECONDS:
        return GarbageFile(entry.path, "a file that was never finished", True)
    return _explain(entry, named, unread, newest, now)


_explain: Callable[..., GarbageFile | None] = vars(reported_garbage)["_explain"]


def _no_deletes(self: Ages, rows: Iterable[Row], uncompacted: Container[str]) -> Iterator[Row]:
    return (row for row in rows if row.deleted is None)


def _drop_expired(self: Ages, rows: Iterable[Row], uncompacted: Container[str]) -> Iterator[Row]:
    """It does not check whether something older is still in a log."""
    return _of(self, rows, ())


def _age_by_writers(self: Ages, rows: Iterable[Row], uncompacted: Container[str]) -> Iterator[Row]:
    """It uses the time that a delete's writer claims."""
    kept = (row for row in rows if row.deleted is None or row.id in uncompacted or row.record.ts > self.expired)
    return _of(Ages(self.now, ""), kept, uncompacted)


_of = Ages.of


def _compacted_by_newest(files: list[Entry], oldest: Manifest) -> list[Entry]:
    """Every segment before the last one of its log counts as compacted."""
    last: dict[str, str] = {}
    for entry in files:
        last[entry.path.rpartition("/")[0]] = max(last.get(entry.path.rpartition("/")[0], ""), entry.path)
    needed = set(last.values())
    return [entry for entry in files if segment_of(entry.path) and entry.path not in needed]


def _collect_aimed_at(files: list[Entry], retained: list[Manifest]) -> list[Entry]:
    """It also collects the parts for the next manifest, which a compaction under way is writing."""
    needed = {run.name for manifest in retained for run in manifest.runs}
    return [entry for entry in files if (named := run_of(entry.path)) and named[0] not in needed]


def _give_up(self: Memory, state: State, missing: MissingFileError) -> None:
    raise missing


def _find_in_last(self: BlockRun, id: str) -> Record | None:
    """It remembers one block of each part, but not which block."""
    number = bisect_right(self._firsts, id) - 1
    known = [block for (part, _), block in self._opened.items() if part == number]
    return known[-1].find(id) if known else _get(self, id)


_get = BlockRun.get


ALL = [
    Breakage("skip the fsync of directories", posix, "fsync_directory", _nothing, likely("posix", POWER)),
    Breakage("skip the fdatasync of an append", System, "fdatasync", _nothing, likely("posix", POWER)),
    Breakage(
        "compact commits that are not on disk",
        compaction,
        "tail_ends",
        _no_segments,
        likely(
            "posix",
            {"pause after": 1, "power": 1},
            14,
            1500,
            {"pause after": "write /store/ops/"},
            undo_window=0,
            compactors=3,
            readers=0,
        ),
    ),
    Breakage(
        "rely on a first manifest that is not on disk",
        ManifestStore,
        "create_first",
        _create_first_without_sync,
        likely(
            "posix",
            {"crash after": 1, "power": 1},
            4,
            150,
            {"crash after": "link /store/manifests/"},
            agents=1,
            readers=0,
            compactors=0,
            undo_window=50,
        ),
    ),
    Breakage("replace a manifest that exists", FsBackend, "_link", _link_over, likely("posix", {}, compactors=3)),
    Breakage(
        "report that nothing was written after fdatasync failed",
        fs_log.FsAppender,
        "_unknown",
        _not_written,
        likely("posix", {"lost": 1.0}, 20),
    ),
    Breakage("keep the locks of dead processes", System, "release", _keep_what_the_dead_held, likely("posix", CRASHES)),
    Breakage(
        "acknowledge before the append",
        LogWriter,
        "_try_append",
        _acknowledge_first,
        likely("posix", {"fail": 1, "full": 1}, 20),
    ),
    Breakage("restart the clock", LamportClock, "__init__", _clock_from_zero, likely("posix", {})),
    Breakage("apply half of a batch", Batch, "records", property(_half), likely("posix", {})),
    Breakage(
        "treat every conflict as a lost race", objects.ObjectBackend, "put_new", _put_once, likely("s3", ANSWERS, 15)
    ),
    Breakage(
        "treat a missing answer as success",
        objects.ObjectBackend,
        "put_new",
        _unknown_is_written,
        likely("s3", ANSWERS, 15),
    ),
    Breakage(
        "treat the manifest that was read last as the newest",
        Freshness,
        "is_still_recent",
        lambda self, read: True,
        likely("s3", PAUSES, 10, rivals=2, undo_window=0, nap_seconds=20.0),
    ),
    Breakage("undo a commit that is undone already", merge, "newest_undoable", _newest_whatever, likely("posix", {})),
    Breakage("undo the oldest commit of the window", merge, "newest_undoable", _oldest_first, likely("posix", {})),
    Breakage("compact to the end of the log", Tail, "__init__", _compact_everything, likely("posix", {})),
    Breakage(
        "do not list manifests again after loading",
        ManifestStore,
        "read_consistently",
        _read_once,
        likely(
            "s3",
            {"pause": 1},
            4,
            1500,
            {"pause": "list prefix/ops/"},
            grace_seconds=0.5,
            compactors=3,
            undo_window=0,
        ),
    ),
    Breakage(
        "forget tombstones",
        Ages,
        "of",
        _no_deletes,
        likely(
            "posix",
            {"pause": 1},
            2,
            800,
            {"pause": "write /store/ops/"},
            undo_window=0,
            agents=4,
            documents=2,
            weights={"set": 6, "delete": 6, "refresh": 0.5},
        ),
    ),
    Breakage(
        "drop a tombstone while an older set is not compacted",
        Ages,
        "of",
        _drop_expired,
        likely(
            "posix",
            {},
            agents=4,
            readers=3,
            documents=6,
            calls=80,
            compactors=4,
            nap_seconds=100.0,
            tombstone_ttl_seconds=20.0,
            undo_ttl_seconds=1e9,
            undo_window=8,
            weights={"set": 6, "delete": 6, "undo": 3},
        ),
    ),
    Breakage(
        "age tombstones by their writers' clocks",
        Ages,
        "of",
        _age_by_writers,
        likely(
            "posix",
            {},
            undo_window=0,
            agents=4,
            documents=2,
            nap_seconds=500.0,
            skew_seconds=1e6,
            weights={"set": 6, "delete": 6, "refresh": 0.5},
        ),
        first=60,
    ),
    Breakage(
        "date manifests by their commits alone",
        Manifest,
        "complete_from",
        property(lambda self: self.ts),
        likely("posix", {}, imports=2, calls=30, compactors=3, undo_window=0, grace_seconds=2.0),
    ),
    Breakage(
        "let compacted records win whatever their clock",
        compaction,
        "first_found",
        _nothing,
        likely("posix", {}, undo_window=0),
    ),
    Breakage(
        "collect all segments but the last", garbage, "_compacted_segments", _compacted_by_newest, likely("posix", {})
    ),
    Breakage(
        "collect logs of agents whose names look like temporary files",
        garbage,
        "kind_of",
        _temporary_by_part_of_name,
        likely("posix", {}, odd=True, agents=4, nap_seconds=5000.0),
    ),
    Breakage(
        "move files aside whose names look like temporary files",
        reported_garbage,
        "_explain",
        _movable_by_part_of_name,
        likely("posix", {}, odd=True, agents=4, inspectors=1, nap_seconds=5000.0),
    ),
    Breakage(
        "collect the parts of a running compaction",
        garbage,
        "_unneeded_runs",
        _collect_aimed_at,
        likely("posix", {}, compactors=3, think_seconds=0.01),
    ),
    Breakage(
        "treat a manifest that came back as retained",
        ManifestStore,
        "retained",
        ManifestStore.entries,
        likely(
            "s3",
            {"pause": 1},
            2,
            1000,
            {"pause": "put-new prefix/manifests/"},
            grace_seconds=5.0,
            compactors=4,
            undo_window=0,
            calls=40,
        ),
        first=50,
    ),
    Breakage(
        "do not load again when a snapshot on storage was collected",
        Following,
        "replace",
        _give_up,
        likely(
            "s3",
            {},
            large=True,
            documents=20,
            calls=40,
            think_seconds=1.0,
            undo_window=0,
            grace_seconds=0.5,
            weights={"set": 6, "delete": 4, "batch": 2},
        ),
    ),
    Breakage(
        "search only the block that was read last",
        BlockRun,
        "get",
        _find_in_last,
        likely("posix", {}, large=True, documents=20, undo_window=0),
    ),
    Breakage(
        "forget that a buffered write failed",
        LogWriter,
        "_settle",
        _forget_failure,
        likely("posix", {"fail": 1, "full": 1}, 20, 1500, buffered=3),
    ),
    Breakage(
        "return from flush before the buffer is written",
        Store,
        "flush",
        _nothing,
        likely("posix", CRASHES, 10, 1500, buffered=3),
        first=98,
    ),
]


def caught(breakage: Breakage, seed: int) -> str | None:
    """The invariant that a run with the breakage violates; None if nothing shows."""
    with breakage.made():
        violation = run(breakage.scenario(seed)).violation
    return None if violation is None else violation.invariant
