"""Verifying one log: its lines, its segments, and the cuts that manifests make in it.

Reads the existing segments, from first to last, in one pass that remembers only the undo window and the cuts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from opslog.errors import CorruptError, MissingFileError
from opslog.format.commits import Batch, Commit, Delete, DeleteOp, Undo, decode_commits
from opslog.format.layout import TRANSACTIONS, manifest_path, segment_path
from opslog.format.manifest import START, Cut, Manifest
from opslog.format.torn import sound_length
from opslog.log.reader import Cursor, Segment, log_source, read_lines
from opslog.merge.rules import SharedLogRules, UndoWindow, author_faults, clock_fault
from opslog.verify.files import Reader, Report, decode_each

# How many consecutive missing segments are named.
_NAMED_MAX = 100


class LogCheck:
    """The check of one log.

    :param segments: its segments, in order, from a listing.
    :param manifests: all that are retained, oldest first.
    :ivar report: the problems found.
    :ivar missing: missing segments that some of the manifests need.
    :ivar periods: the periods of the archives to which the log's commits moved documents.
    """

    def __init__(self, reader: Reader, agent: str, segments: list[Segment], manifests: Sequence[Manifest]) -> None:
        self.report = Report()
        self.missing: list[str] = []
        self.periods: set[str] = set()
        self._reader = reader
        self._agent = agent
        # Segments before the oldest cut are no longer part of the log: a delayed write may have used their numbers
        # again.
        first = manifests[0].cut.get(agent, START).segment if manifests else START.segment
        self._segments = [segment.number for segment in segments if segment.number >= first]
        self._source = log_source(reader.backend, {agent: Cursor(agent)}, {agent: segments})
        self._manifests = manifests
        self._clock = 0
        self._shared = SharedLogRules() if agent == TRANSACTIONS else None
        # How many of the existing commits were checked.
        self._commits = 0
        self._cuts: dict[tuple[int, int], list[tuple[Manifest, Cut]]] = {}
        for manifest in manifests:
            for positions in (manifest.cut, manifest.log_ends):
                if agent in positions:
                    self._cuts.setdefault(positions[agent].position, []).append((manifest, positions[agent]))
        # How many commits lie before the first retained one; all cuts must agree on this.
        is_whole = self._segments[:1] == [START.segment]
        self._collected: int | None = 0 if is_whole else None
        # Without a manifest it is unknown how far back an undo may reach.
        self._window = UndoWindow(manifests[-1].settings.undo_window, is_whole=is_whole) if manifests else None

    def run(self) -> None:
        """Check everything; to be called once."""
        self._find_missing()
        before = 0
        for number in self._segments:
            if number != before + 1:
                self._forget()
            before = number
            try:
                self._check_segment(number)
            except MissingFileError as error:
                self.missing.append(error.path)
                self._forget()
        for segment, offset in sorted(self._cuts):
            is_behind = offset == 0 and segment > max(self._segments, default=0)
            if is_behind and segment_path(self._agent, segment) not in self.missing:
                self._pass_cuts(segment, 0)  # the position from which the log would go on
        for (segment, offset), cuts in sorted(self._cuts.items()):
            path = segment_path(self._agent, segment)
            if path not in self.missing:
                numbers = ", ".join(str(manifest.number) for manifest, _ in cuts)
                self.report.error(
                    path,
                    offset,
                    f"no commit begins or ends here, and manifest {numbers} says that one does: the log was cut short "
                    "or edited. Restore it from a copy",
                )

    def _find_missing(self) -> None:
        """Find missing segments. Those from the oldest retained cut on must be there; those before it may have been
        collected in any order."""
        first = self._manifests[0].cut.get(self._agent, START).segment if self._manifests else min(self._segments)
        needed = (cut.needed_segment for cuts in self._cuts.values() for _, cut in cuts)
        last = max([*self._segments, *needed])
        there = {number for number in self._segments if number >= first}
        for number in sorted(there | {last}):
            # A damaged manifest can make a gap as long as it likes: the first numbers are enough.
            gap = range(first, number + (number not in there))[:_NAMED_MAX]
            self.missing += [segment_path(self._agent, missing) for missing in gap]
            first = number + 1

    def _check_segment(self, number: int) -> None:
        path = segment_path(self._agent, number)
        self._pass_cuts(number, 0)
        try:
            for offset, lines in read_lines(partial(self._reader.read, source=self._source), path):
                if b"\0" in lines and self._is_cut_short(number, path, offset):
                    break
                if lines.endswith(b"\n"):
                    self._check_lines(number, lines, offset, path)
                else:
                    self.report.note(
                        path,
                        offset,
                        f"{len(lines)} bytes without a newline at their end: a commit that is being written, or one "
                        "that a crash interrupted before it was acknowledged. Normal after a crash; nothing reads them",
                    )
        except CorruptError as error:
            self.report.error(path, error.offset, str(error))
            self._forget()
        self.report.segments += 1

    def _is_cut_short(self, number: int, path: str, offset: int) -> bool:
        """Whether a power cut during the last append explains the zeros from `offset` on; if so, checks the bytes
        before them."""
        rest = self._reader.read(path, offset, source=self._source)
        length = sound_length(rest)
        if length == rest.rfind(b"\n") + 1:
            return False
        self._check_lines(number, rest[:length], offset, path)
        self.report.note(
            path,
            offset + length,
            f"{len(rest) - length} bytes with zeros among them: what a power cut left of commits that were never "
            "acknowledged. Nothing reads them",
        )
        return True

    def _check_lines(self, number: int, lines: bytes, offset: int, path: str) -> None:
        for start, end, commit in decode_each(decode_commits, lines, path, offset, self.report):
            if commit is None:
                self._forget()
            else:
                self._check_commit(commit, path, start)
            self._commits += 1
            self._pass_cuts(number, end)

    def _check_commit(self, commit: Commit, path: str, offset: int) -> None:
        if commit.agent != self._agent:
            self.report.error(
                path,
                offset,
                f"a commit of agent {commit.agent!r} in the log of {self._agent!r}: the file was edited or copied",
            )
        fault = clock_fault(self._clock, commit)
        if fault:
            self.report.error(path, offset, f"{fault}. The file was edited or copied, or two programs wrote it at once")
        self._clock = commit.clock
        for fault in [*author_faults(commit), *(self._shared.faults(commit) if self._shared else ())]:
            self.report.error(path, offset, f"{fault}. The file was edited, or another program wrote it")
        if self._window is not None:
            fault = self._window.fault(commit) if isinstance(commit, Undo) else None
            if fault:
                self.report.error(path, offset, f"{fault}: the log was edited")
            self._window.follow(commit)
        for op in commit.ops if isinstance(commit, Batch) else (commit,):
            if isinstance(op, Delete | DeleteOp) and op.archived is not None:
                self.periods.add(op.archived)
        self.report.commits += 1

    def _forget(self) -> None:
        """Note that unseen commits follow: later undos may name one of them, so they cannot be called wrong."""
        if self._window is not None:
            self._window.forget()

    def _pass_cuts(self, segment: int, offset: int) -> None:
        for manifest, cut in self._cuts.pop((segment, offset), ()):
            if self._collected is None:
                self._collected = cut.commits - self._commits
            if cut.commits - self._commits != self._collected:
                self.report.error(
                    manifest_path(manifest.number),
                    None,
                    f"says that {cut.commits} commits of {self._agent!r} lie before byte {offset} of segment "
                    f"{segment}; there are {self._collected + self._commits}: the log or the manifest was edited",
                )
            if self._clock > manifest.clock:
                self.report.error(
                    manifest_path(manifest.number),
                    None,
                    f"its clock is {manifest.clock}, and it has a commit of {self._agent!r} at clock {self._clock}",
                )
