"""A small store in memory with one damaged file, everything that reads it, and what the readers must report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import count
from typing import Any
from unittest import mock

import opslog
from opslog.backends import Backend, open_backend
from opslog.environment import parse_ts
from opslog.errors import CorruptError, DataError, FormatVersionError, HistoryGoneError, OpslogError
from opslog.format import snapshot
from opslog.format.exact import InexactError, load_document, loads
from opslog.format.layout import segment_of
from opslog.snapshot import runs
from opslog.verify.verify import Report, verify

URL = "memory://fuzz"

# A time after everything in these stores, whatever the date is here.
LATER = opslog.Environment(time=lambda: parse_ts("2026-12-01T00:00:00Z"))
WINDOW = 3

Files = dict[str, bytes]


def environment(first: int = 1) -> opslog.Environment:
    """A clock that ticks, and names that count up from a number."""
    ticks, nonces = count(1_795_521_600), count(first)
    return opslog.Environment(
        time=lambda: float(next(ticks)),
        monotonic=lambda: 0.0,
        sleep=lambda seconds: None,
        nonce=lambda: f"{next(nonces):08x}",
    )


def _files(backend: Backend) -> Files:
    return {entry.path: backend.read(entry.path) for entry in backend.list("") if not entry.path.startswith("locks/")}


def place(files: Files) -> Backend:
    """Make the store at `URL` consist of exactly these files."""
    backend = open_backend(URL)
    backend.delete([entry.path for entry in backend.list("")])
    for path, data in files.items():
        backend.create(path, data)
    return backend


@cache
def uncompacted() -> Files:
    """Two logs with all kinds of commits, and manifest 1."""
    place({})
    world = environment()
    settings = opslog.Settings(undo_window=WINDOW)
    for agent, other in (("a", "b"), ("b", "a")):
        with opslog.open(URL, agent=agent, settings=settings, compact_after=None, environment=world) as store:
            for number in range(6):
                store[f"doc-{number}"] = {"n": number, "by": agent, "price": 1.5, "tags": ["x", None, True]}
            with store.batch():
                store["ünïcödé 🚀"] = {"text": 'a\n"b"\\ \u2028', "by": other}
                del store["doc-1"]
            store.undo()
            store.set("doc-2", {"by": agent, "n": 2**64 - 1})
            del store["doc-3"]
            with suppress(opslog.ExistsError):
                store.create("claim", {"by": agent})
            with store.transaction() as transaction:
                transaction["doc-4"] = {"n": len(transaction)}
                transaction.pop("doc-5", None)
            store["doc-4"] = {"plain": agent}
            store.undo()
            store.modify("claim", lambda document: {"then": document})
    return _files(open_backend(URL))


@cache
def compacted() -> Files:
    """The same store with an archive, and compacted: it has a run of several blocks and parts, and a tail."""
    place(uncompacted())
    world = environment(1000)
    with (
        mock.patch.multiple(snapshot, BLOCK_BYTES=400, PART_BYTES=900),
        opslog.open(URL, agent="c", compact_after=None, environment=world) as store,
    ):
        for number in range(12):
            store[f"more-{number:02}"] = {"n": number, "text": "x" * 40}
        store.archive(lambda document: document.get("n") in (4, 5), "2026-Q4")
        store["last"] = {"n": -(2**63)}
        store["later"] = {}
        store["latest"] = {}
        store.compact(keep_history="forever")
    return _files(open_backend(URL))


def state(**options: Any) -> dict[str, Any]:
    """All documents, and any contradiction between the answers."""
    with opslog.open(URL, read_only=True, **options) as store:
        found = dict(store.items())
        if len(store) != len(found) or any(store.get(id) != document for id, document in found.items()):
            found["contradiction"] = len(store)
        return found


def _on_storage() -> dict[str, Any]:
    with mock.patch.object(runs, "LOADED_BYTES", 0):
        return state()


def _with_store(read: Callable[[opslog.Store[Any]], object]) -> Callable[[], object]:
    def call() -> object:
        with opslog.open(URL, read_only=True) as store:
            return read(store)

    return call


READERS: dict[str, Callable[[], object]] = {
    "open": state,
    "open, snapshot on storage": _on_storage,
    "as of a clock": lambda: state(as_of=20),
    "as of a time": lambda: state(as_of="2026-11-26T00:00:00Z", environment=LATER),
    "ops": _with_store(lambda store: list(store.ops())),
    "history": _with_store(lambda store: [revision.record for revision in store.history("doc-2")]),
    "archive": _with_store(lambda store: {period: store.load_archive(period) for period in store.archives()}),
    "stats": _with_store(lambda store: store.stats().documents),
}


def answers() -> dict[str, object]:
    """What each reader returns for the store at `URL`, or the `OpslogError` that it raises. Other exceptions come
    through."""
    found: dict[str, object] = {}
    for name, read in READERS.items():
        try:
            found[name] = read()
        except OpslogError as error:
            found[name] = error
    return found


@cache
def sound_answers() -> dict[str, object]:
    place(compacted())
    return answers()


def check_error(error: OpslogError, report: Report) -> None:
    """The error says what is damaged and where, and `verify` reports the same."""
    assert isinstance(error, DataError), f"damage is not a mistake of the caller: {error!r}"
    if isinstance(error, FormatVersionError | HistoryGoneError):
        return
    assert isinstance(error, CorruptError)
    assert "verify" in str(error) or error.path in str(error), error
    if not error.path:
        assert "`opslog verify` names the file and the byte offset" in str(error), error
    assert not report.ok, f"verify finds nothing, and a reader does: {error}"


def verified(backend: Backend) -> Report | OpslogError:
    try:
        return verify(backend)
    except OpslogError as error:
        return error


def check_damaged(path: str, data: bytes) -> None:
    """A file with checksums has changed: `verify` reports it, and each reader raises or answers as before."""
    backend = place(compacted() | {path: data})
    if data == compacted()[path]:
        return
    report = verified(backend)
    assert isinstance(report, Report), report
    assert any(problem.severity == "error" and path.rpartition(".")[0] in problem.path for problem in report.problems)
    for name, answer in answers().items():
        if isinstance(answer, OpslogError):
            check_error(answer, report)
        else:
            assert answer == sound_answers()[name], f"{name} answers from a damaged {path}"


def check_forged(files: Files) -> None:
    """Somebody who can compute the right checksums wrote these files: readers and `verify` accept them, or say why
    not."""
    backend = place(files)
    report = verified(backend)
    if isinstance(report, OpslogError):
        assert isinstance(report, DataError), repr(report)
    for name, answer in answers().items():
        if isinstance(answer, OpslogError):
            assert isinstance(answer, DataError), repr(answer)
        elif isinstance(report, Report) and report.ok and isinstance(answer, dict):
            assert "contradiction" not in answer, name


def check_log(path: str, data: bytes) -> None:
    """A log has changed. Logs have no checksums: a reader raises, or returns what a plain reading of the lines gives. A
    compaction does not change that."""
    files = uncompacted() | {path: data}
    backend = place(files)
    report = verified(backend)
    assert isinstance(report, Report), report
    found = answers()
    for answer in found.values():
        if isinstance(answer, OpslogError):
            check_error(answer, report)
    # No line holds a zero byte. The meaning of zeros after the last line is not for a plain reading.
    if not report.ok or b"\0" in data:
        return
    assert found["open"] == found["open, snapshot on storage"] == plain_state(files)
    with opslog.open(URL, agent="compactor", compact_after=None, environment=environment()) as store:
        store.compact(full=True)
    assert state() == found["open"]
    assert verify(backend).ok


def plain_state(files: Files) -> dict[str, Any]:
    """The state of a store that was never compacted. It follows the words of docs/format.md, and uses only opslog's
    strict JSON decoder."""
    best: dict[str, tuple[tuple[int, str], Any]] = {}
    for agent in sorted({named[0] for path in files if (named := segment_of(path))}):
        paths = sorted(path for path in files if path.startswith(f"ops/{agent}/"))
        commits = [loads(line) for path in paths for line in files[path].split(b"\n")[:-1]]
        for commit in _uncancelled(commits):
            for op in commit.get("ops", [commit]):
                stamp = (commit["clock"], agent)
                if op["op"] in ("set", "delete") and (op["id"] not in best or best[op["id"]][0] <= stamp):
                    best[op["id"]] = stamp, op.get("data")
    return {id: document for id, (_, document) in sorted(best.items()) if document is not None}


def _uncancelled(commits: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    cancelled: set[int] = set()
    start = 0
    for number, commit in enumerate(commits):
        if commit["op"] == "seal":
            start = number + 1
        if commit["op"] == "undo":
            reach = range(max(start, number - WINDOW), number)
            cancelled |= {place for place in reach if commits[place]["clock"] == commit["target"]}
    return (commit for number, commit in enumerate(commits) if number not in cancelled)


def is_document(text: bytes) -> bool:
    try:
        load_document(text)
    except InexactError:
        return False
    return True
