"""Verifying one log: its lines, its segments, and the cuts that manifests make in it.

Reads the segments that there are, from first to last, in one pass that remembers the undo window and the cuts alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from opslog.commits import Commit, Seal, Undo, decode_commits
from opslog.errors import CorruptError, MissingFileError
from opslog.layout import manifest_path, segment_path
from opslog.log import Cursor, Segment, log_source
from opslog.manifest import START, Cut, Manifest
from opslog.torn import sound_length
from opslog.verify_files import Reader, Report, decode_each

_NAMED_MAX = 100
"""How many missing segments in a row are named."""


class LogCheck:
    """The check of one log.

    :param segments: its segments, in order, from a listing.
    :param manifests: all that are retained, oldest first.
    :ivar report: what was found; `missing`: segments that some of the manifests need and that are not there.
    """

    def __init__(self, reader: Reader, agent: str, segments: list[Segment], manifests: Sequence[Manifest]) -> None:
        self.report = Report()
        self.missing: list[str] = []
        self._reader = reader
        self._agent = agent
        # What is before the oldest cut is no part of the log any more: a late write may have used its number anew.
        first = manifests[0].cut.get(agent, START).segment if manifests else START.segment
        self._segments = [segment.number for segment in segments if segment.number >= first]
        self._source = log_source(reader.backend, {agent: Cursor(agent)}, {agent: segments})
        self._manifests = manifests
        self._clock = 0
        self._commits = 0
        """How many of those that are still there were passed."""
        self._window: deque[int] = deque(maxlen=manifests[-1].settings.undo_window if manifests else 0)
        """The clocks that an undo may name, as far as they are still there."""
        self._cuts: dict[tuple[int, int], list[tuple[Manifest, Cut]]] = {}
        for manifest in manifests:
            if agent in manifest.cut:
                cut = manifest.cut[agent]
                self._cuts.setdefault(cut.place, []).append((manifest, cut))
        # How many commits lie before the first retained one: what all cuts must agree on.
        self._collected: int | None = 0 if self._segments[:1] == [START.segment] else None

    def run(self) -> None:
        """Check everything; to be called once."""
        self._find_missing()
        for number in self._segments:
            try:
                self._check_segment(number)
            except MissingFileError as error:
                self.missing.append(error.path)
        for segment, offset in sorted(self._cuts):
            is_behind = offset == 0 and segment > max(self._segments, default=0)
            if is_behind and segment_path(self._agent, segment) not in self.missing:
                self._pass_cuts(segment, 0)  # where the log goes on, should it ever
        for (segment, offset), cuts in sorted(self._cuts.items()):
            path = segment_path(self._agent, segment)
            if path not in self.missing:
                numbers = ", ".join(str(manifest.number) for manifest, _ in cuts)
                self.report.error(
                    path,
                    offset,
                    f"no commit begins or ends here, and the cut of manifest {numbers} is here: the log was cut short "
                    "or edited. Restore it from a copy",
                )

    def _find_missing(self) -> None:
        """Segments from the oldest retained cut on must be there; those before it may have been collected in any
        order."""
        first = self._manifests[0].cut.get(self._agent, START).segment if self._manifests else min(self._segments)
        needed = (cut.needed_segment for cuts in self._cuts.values() for _, cut in cuts)
        last = max([*self._segments, *needed])
        there = {number for number in self._segments if number >= first}
        for number in sorted(there | {last}):
            # A gap has as many numbers as somebody wrote into a manifest: a few of them will do.
            gap = range(first, number + (number not in there))[:_NAMED_MAX]
            self.missing += [segment_path(self._agent, missing) for missing in gap]
            first = number + 1

    def _check_segment(self, number: int) -> None:
        path = segment_path(self._agent, number)
        self._pass_cuts(number, 0)
        try:
            for offset, lines in self._reader.lines(path, self._source):
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
        self.report.segments += 1

    def _is_cut_short(self, number: int, path: str, offset: int) -> bool:
        """Whether zeros from `offset` on are what a power cut left of the last append; if so, checks what is before
        them."""
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
                self._window.clear()  # what is not known cannot be missed
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
        if commit.clock <= self._clock:
            self.report.error(
                path,
                offset,
                f"clock {commit.clock} after clock {self._clock}: clocks must increase within a log. The file was "
                "edited or copied, or two programs wrote it at once",
            )
        self._clock = commit.clock
        if isinstance(commit, Undo):
            self._check_undo(commit, path, offset)
        self._window.append(commit.clock)
        if isinstance(commit, Seal):
            self._window.clear()
        self.report.commits += 1

    def _check_undo(self, undo: Undo, path: str, offset: int) -> None:
        """Its target is in the undo window, or was when it was written: then a compaction has applied it."""
        is_known = bool(self._window) and self._window[0] < undo.target
        if undo.target >= undo.clock or (is_known and undo.target not in self._window):
            self.report.error(
                path,
                offset,
                f"it undoes clock {undo.target}, and no commit of {self._agent!r} before it has that clock: the log "
                "was edited",
            )

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
                    f"its clock is {manifest.clock}, and it folded a commit of {self._agent!r} at clock {self._clock}",
                )
