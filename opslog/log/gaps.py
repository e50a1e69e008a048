"""Whether a reader of logs missed anything, or what it has read is gone. Pure.

Spark's streams, whose offsets are positions alone, ask both. A token of the feed names a manifest, which is retained or
not, so the feed asks only whether something is gone that it is to read (`missing_segment`).

A reader that comes back has a position in each log, and compactions may have collected commits behind it. Of a log that
is collected to its end nothing is left that shows it, and a listing has nothing new. So every log is judged of which
the reader has a position, or the newest manifest a cut, and not only those that are listed.
"""

from __future__ import annotations

from opslog.format.manifest import Cut
from opslog.log.reader import Segment


def resume(position: Cut, first: Cut, commits: int | None, window: int) -> tuple[Cut, bool]:
    """Where a reader of a log goes on, and whether commits before that were collected unread (a gap).

    Segments before the one in which the cut of the oldest retained manifest lies are collected, or count as collected;
    all others are there. A log that was sealed and compacted whole has none left where each append is a segment.

    :param position: up to where the log was read; `START` where nothing was.
    :param first: that cut. A reader at the cut of a retained manifest, or behind it, never has a gap.
    :param commits: how many commits lie before the beginning of its segment. None where each append is a segment: there
        every segment has a commit, so their numbers say as much, and nobody has to read segments to count.
    :param window: the store's undo window. If it is not 0, a cut at the end of a log is behind a seal, which is a
        segment of its own, and of which no reader misses anything.
    """
    if position.segment >= first.segment:
        return position, False
    start = Cut(first.segment, 0, commits or 0)
    if commits is not None:
        return start, commits != position.commits
    is_sealed = window > 0 and first.offset == 0 and not first.there
    return start, first.segment - position.segment > is_sealed


def missing_segment(listed: list[Segment], reached: Cut, cut: Cut) -> int | None:
    """The last segment of a log that must be there, if it is not.

    :param listed: the log's segments, at least from the last one before `reached` on.
    :param reached: a position that the log is known to have reached.
    :param cut: what lies in segments before this may be collected; what the manifest says of it must be there.
    """
    needed = cut.segment if cut.segment <= cut.needed_segment else 0
    if reached.last_segment >= cut.segment:
        needed = max(needed, reached.last_segment)
    # Not whether the last one is greater: where all that was read is gone, others may have been written since.
    return needed if needed and all(segment.number != needed for segment in listed) else None
