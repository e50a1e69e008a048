"""What a reader of a log has missed, and where it must find the rest."""

from __future__ import annotations

import pytest

from opslog.format.manifest import START, Cut
from opslog.log.gaps import missing_segment, resume
from opslog.log.reader import Segment


@pytest.mark.parametrize(
    ("place", "first", "commits", "window", "goes_on"),
    [
        pytest.param(START, START, None, 3, (START, False), id="nothing compacted"),
        pytest.param(Cut(4, 0, 0), Cut(3, 0, 9, there=True), None, 3, (Cut(4, 0, 0), False), id="ahead of the cut"),
        pytest.param(Cut(4, 70, 8), Cut(4, 90, 9), 5, 3, (Cut(4, 70, 8), False), id="in the segment of the cut"),
        pytest.param(Cut(3, 0, 0), Cut(4, 0, 9), None, 3, (Cut(4, 0, 0), False), id="only a seal"),
        pytest.param(Cut(2, 0, 0), Cut(4, 0, 9), None, 3, (Cut(4, 0, 0), True), id="a commit and a seal"),
        pytest.param(Cut(3, 0, 0), Cut(4, 0, 9), None, 0, (Cut(4, 0, 0), True), id="no seals in this store"),
        pytest.param(Cut(3, 0, 0), Cut(4, 0, 9, there=True), None, 3, (Cut(4, 0, 0), True), id="no end of a log"),
        pytest.param(Cut(3, 0, 0), Cut(4, 50, 9), None, 3, (Cut(4, 0, 0), True), id="in a segment"),
        pytest.param(Cut(3, 70, 8), Cut(5, 10, 9), 8, 3, (Cut(5, 0, 8), False), id="all counted were read"),
        pytest.param(Cut(3, 70, 8), Cut(5, 10, 10), 9, 3, (Cut(5, 0, 9), True), id="one more was counted"),
    ],
)
def test_where_a_reader_goes_on(
    place: Cut, first: Cut, commits: int | None, window: int, goes_on: tuple[Cut, bool]
) -> None:
    assert resume(place, first, commits, window) == goes_on


@pytest.mark.parametrize(
    ("listed", "reached", "cut", "missing"),
    [
        pytest.param("", START, START, None, id="a new log"),
        pytest.param("1 2", Cut(3, 0, 9), START, None, id="all that was read is there"),
        pytest.param("1", Cut(3, 0, 9), START, 2, id="the last one that was read is not"),
        pytest.param("", Cut(2, 0, 9), START, 1, id="nothing is"),
        pytest.param("7 8", Cut(6, 0, 9), START, 5, id="later ones are, which were written since"),
        pytest.param("2", Cut(2, 70, 9), START, None, id="read up to the middle"),
        pytest.param("1", Cut(2, 70, 9), START, 2, id="the middle is gone"),
        pytest.param("", Cut(3, 0, 9), Cut(3, 0, 9), None, id="compacted whole"),
        pytest.param("", Cut(3, 0, 9), Cut(5, 0, 12), None, id="more was compacted whole"),
        pytest.param("", Cut(4, 0, 12), Cut(3, 0, 9), 3, id="read behind what was compacted"),
        pytest.param("", START, Cut(3, 0, 9, there=True), 3, id="the cut needs it"),
        pytest.param("3", START, Cut(3, 50, 9), None, id="the cut has it"),
        pytest.param("2", START, Cut(3, 50, 9), 3, id="the cut lies in it"),
    ],
)
def test_which_segment_must_be_there(listed: str, reached: Cut, cut: Cut, missing: int | None) -> None:
    segments = [Segment(int(number), 100, 0.0) for number in listed.split()]
    assert missing_segment(segments, reached, cut) == missing
