"""Whether a reader of logs missed commits, or the commits that it has read are gone. Pure.

Spark's streams check both, because their offsets are positions alone. A token of the feed names a manifest, which is
retained or not. So the feed only checks whether something that it has to read is gone (`missing_segment`).

A reader that comes back has a position in each log, and compactions may have collected commits behind it. A log that
was collected to its end leaves no trace, and a listing shows nothing new. So the check covers every log for which the
reader has a position or the newest manifest has a cut, not only those in the listing.
"""

from __future__ import annotations

from opslog.format.manifest import Cut
from opslog.log.reader import Segment


def resume(position: Cut, first: Cut, commits: int | None, window: int) -> tuple[Cut, bool]:
    """Where a reader of a log continues, and whether commits before that were collected unread (a gap).

    Segments before the one that has the cut of the oldest retained manifest are collected, or count as collected; all
    others are there. Where each append is a segment, nothing is left of a log that was sealed and compacted whole.

    :param position: the end of what was read of the log; `START` if nothing was read.
    :param first: the cut of the oldest retained manifest. A reader at the cut of a retained manifest, or behind it,
        never has a gap.
    :param commits: how many commits lie before the beginning of the cut's segment. None if each append is a segment:
        then every segment has a commit, so the numbers of segments say the same, and nothing has to be read to count.
    :param window: the store's undo window. If it is not 0, a cut at the end of a log is behind a seal. The seal is a
        segment of its own, and a reader that skips it misses nothing.
    """
    if position.segment >= first.segment:
        return position, False
    start = Cut(first.segment, 0, commits or 0)
    if commits is not None:
        return start, commits != position.commits
    is_sealed = window > 0 and first.offset == 0 and not first.there
    return start, first.segment - position.segment > is_sealed


def missing_segment(listed: list[Segment], reached: Cut, cut: Cut) -> int | None:
    """The last segment of a log that must exist but does not; None if nothing is missing.

    :param listed: the log's segments, at least from the last one before `reached` on.
    :param reached: a position that the log is known to have reached.
    :param cut: the log's cut in the manifest. Earlier segments may be collected; the one at the cut must be there.
    """
    needed = cut.segment if cut.segment <= cut.needed_segment else 0
    if reached.last_segment >= cut.segment:
        needed = max(needed, reached.last_segment)
    # A greater last number is not enough: everything that was read may be gone, and new segments may have come since.
    return needed if needed and all(segment.number != needed for segment in listed) else None
