"""Checks the outcomes that processes recorded for their transactions against the shared log. It reads that log without
the store: as lines of JSON, in the order of segments."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from opslog.backends import Backend
from opslog.errors import MissingFileError

Document = dict[str, Any]
FOLDER = "ops/transactions/"

ACCOUNTS = 5
MONEY = 500


class SharedLog:
    """Collects the segments of the shared log while the store is in use. It misses nothing if it is called before each
    compaction."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._segments: dict[str, bytes] = {}

    def collect(self) -> None:
        for entry in self._backend.list(FOLDER):
            # If segments do not grow, one that comes back is a delayed write that nobody reads.
            if entry.path not in self._segments or self._backend.segments_grow:
                with suppress(MissingFileError):
                    self._segments[entry.path] = self._backend.read(entry.path)

    def lines(self) -> list[Document]:
        paths = sorted(self._segments)
        numbers = [int(Path(path).stem) for path in paths]
        assert numbers == list(range(1, len(paths) + 1)), "a segment was collected before it was read here"
        # Bytes after the last newline are a torn tail.
        whole = [line for path in paths for line in self._segments[path].split(b"\n")[:-1]]
        return [json.loads(line) for line in whole]


class Attempt(NamedTuple):
    """What one process tried.

    :ivar end: when the process learned the outcome. If it was killed before, this is infinite, and the outcome
        "unknown".
    """

    token: str
    kind: str
    on: int
    start: float
    end: float
    outcome: str


def attempts(journal: Path) -> list[Attempt]:
    found: dict[str, Attempt] = {}
    for line in journal.read_bytes().splitlines():
        noted = json.loads(line)
        token = noted["token"]
        if "kind" in noted:
            assert token not in found
            found[token] = Attempt(token, noted["kind"], noted["on"], noted["at"], float("inf"), "unknown")
        elif noted["outcome"] != "unknown":
            found[token] = found[token]._replace(end=noted["at"], outcome=noted["outcome"])
    return list(found.values())


class History:
    """The serial history in the shared log, checked line by line.

    :ivar documents: the documents at its end.
    :ivar positions: for each token, the number of its line.
    :ivar authors: for each token, its author.
    :ivar founded: the clock of the line from which on all accounts exist.
    """

    def __init__(self, lines: list[Document]) -> None:
        self.documents: dict[str, Document] = {}
        self.positions: dict[str, int] = {}
        self.authors: dict[str, str] = {}
        self.founded = 0
        clock = 0
        for position, line in enumerate(lines):
            assert line["agent"] == "transactions"
            assert line["clock"] > clock, f"the clock goes back at {line}"
            clock = line["clock"]
            if line["op"] == "seal":
                continue
            sets = line["ops"] if line["op"] == "batch" else [line]
            assert all(op["op"] == "set" for op in sets)
            (token,) = {op["data"]["token"] for op in sets}
            assert token not in self.positions, f"{token} was applied twice"
            self.positions[token], self.authors[token] = position, line["by"]
            for op in sets:
                self._take(op["id"], op["data"])
            self._check_accounts(clock)

    def _take(self, id: str, data: Document) -> None:
        before = self.documents.get(id)
        if "was" in data:
            was = None if before is None else before["token"]
            assert data["was"] == was, f"{data['token']} replaced {data['was']} in {id}, where {was} is"
            if "number" in data:
                assert before is not None
                assert data["number"] == before.get("number", 0) + 1
        if "owner" in data and data["owner"] is not None:
            assert before is None or before["owner"] is None, f"{id} was claimed twice: {before} and {data}"
        self.documents[id] = data

    def _check_accounts(self, clock: int) -> None:
        balances = [document["balance"] for document in self.documents.values() if "balance" in document]
        assert min(balances, default=0) >= 0, f"an account is overdrawn at {clock}"
        if len(balances) == ACCOUNTS:
            assert sum(balances) == MONEY, f"all accounts have {sum(balances)} at {clock}"
            self.founded = self.founded or clock


def check(history: History, tried: list[Attempt]) -> None:
    """Acknowledged writes are there once, and refused ones are not. Their order is that of real time."""
    by_token = {attempt.token: attempt for attempt in tried}
    for attempt in tried:
        there = attempt.token in history.positions
        if attempt.outcome == "done":
            assert there, f"{attempt} was acknowledged, and is lost"
        elif attempt.outcome != "unknown":
            assert not there, f"{attempt} is in the log"
        if there:
            assert history.authors[attempt.token] == attempt.token.partition(":")[0]
    latest = 0.0
    for token, _ in sorted(history.positions.items(), key=lambda item: item[1]):
        if token in by_token:
            assert by_token[token].end >= latest, f"{token} was over before what stands before it in the log began"
            latest = max(latest, by_token[token].start)
    for attempt in tried:
        if attempt.kind == "claim" and attempt.outcome == "refused":
            owner = history.documents[f"task-{attempt.on}"]["owner"]
            assert owner is not None, f"{attempt} was refused, and nobody has the task"
            assert by_token[owner].start <= attempt.end, f"{attempt} was refused for what began after it"
