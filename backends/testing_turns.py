"""The part of the backend contract that is about logs with many writers; see `opslog.backends.testing`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from opslog.backends.contract import Backend, Position
from opslog.backends.testing_names import OpenBackend, log_of, paths_of
from opslog.errors import ClosedError, InvalidNameError
from opslog.format.layout import log_prefix, segment_of, segment_path

SHARED = "shared"


def line(text: object) -> bytes:
    return f'{{"by":"{text}"}}\n'.encode()


def end_of(backend: Backend, agent: str = SHARED) -> Position:
    """The cursor of a reader that has read all of a log."""
    entries = backend.list(log_prefix(agent))
    if not entries:
        return Position(1, 0)
    named = segment_of(entries[-1].path)
    assert named is not None
    if not backend.segments_grow:
        return Position(named[1] + 1, 0)
    return Position(named[1], backend.read(entries[-1].path).rfind(b"\n") + 1)


class SharedLogContract:
    """`Backend.append_at`."""

    def test_an_append_at_the_end_is_visible_to_all_where_it_says(self, opener: OpenBackend) -> None:
        one, other = opener(), opener()
        written = b""
        for number, backend in enumerate((one, other, other, one)):
            end = end_of(backend)
            data = line(number) + line("joined")
            place = backend.append_at(SHARED, end, data)
            assert place == end
            written += data
            for reader in (one, other, opener()):
                path = segment_path(SHARED, place.segment)
                assert reader.read(path, place.offset, place.offset + len(data)) == data
                assert log_of(reader, SHARED) == written
        assert len(one.list(log_prefix(SHARED))) == (1 if one.segments_grow else 4)

    def test_an_append_at_an_end_that_was_passed_changes_nothing(self, opener: OpenBackend) -> None:
        one, other = opener(), opener()
        ends = []
        for number in range(4):
            ends.append(end_of(one))
            assert one.append_at(SHARED, ends[-1], line(number)) is not None
        before = one.list("ops/")
        for end in ends:
            for backend in (one, other):
                assert backend.append_at(SHARED, end, line("late")) is None
        assert one.list("ops/") == before
        assert log_of(other, SHARED) == b"".join(map(line, range(4)))

    def test_a_log_goes_on_where_its_cut_says_after_all_of_it_was_collected(self, opener: OpenBackend) -> None:
        one, other = opener(), opener()
        assert one.append_at(SHARED, Position(7, 0), line(1)) == Position(7, 0)
        assert other.append_at(SHARED, Position(7, 0), line(2)) is None
        assert other.append_at(SHARED, Position(9, 0), line(2)) == Position(9, 0), "with the last segment still there"
        assert paths_of(one, "ops/") == [segment_path(SHARED, number) for number in (7, 9)]

    def test_an_append_in_a_segment_that_is_not_there_changes_nothing(self, backend: Backend) -> None:
        assert backend.append_at(SHARED, Position(3, 10), line(1)) is None
        assert backend.list("ops/") == []

    def test_it_goes_on_in_a_segment_that_others_created(self, backend: Backend) -> None:
        if not backend.segments_grow:
            pytest.skip("each append is a segment of its own")
        backend.create(segment_path(SHARED, 3), line("created"))
        backend.create(segment_path("empty", 2), b"")
        end = Position(3, len(line("created")))
        assert backend.append_at(SHARED, end, line("next")) == end
        assert backend.append_at("empty", Position(2, 0), line("first")) == Position(2, 0)
        assert log_of(backend, SHARED) == line("created") + line("next")

    @pytest.mark.parametrize(
        "tail",
        [b'{"by":"to', b"\0\0\0", b'{"by"\0\0\0\0', b"\0\0\0\n", b'\0\0\0"x"}\n', b'\0\0{"by":"x","joined":true}\n'],
        ids=["torn", "zeros", "begun", "newline", "end", "joined"],
    )
    @pytest.mark.parametrize("before", [b"", line("whole")], ids=["first", "behind"])
    def test_behind_a_torn_tail_it_begins_a_new_segment(self, backend: Backend, before: bytes, tail: bytes) -> None:
        if not backend.segments_grow:
            pytest.skip("each append is a segment of its own")
        backend.create(segment_path(SHARED, 1), before + tail)
        assert backend.append_at(SHARED, Position(1, len(before)), line("next")) == Position(2, 0)
        assert backend.append_at(SHARED, Position(1, len(before)), line("late")) is None
        assert backend.append_at(SHARED, Position(2, len(line("next"))), line("then")) is not None
        assert backend.read(segment_path(SHARED, 1)) == before + tail
        assert backend.read(segment_path(SHARED, 2)) == line("next") + line("then")

    @pytest.mark.parametrize(
        "behind",
        [line("x"), line("x") + b'{"by":', line("x") + b"\0\0", b"\0\0\n" + line("x"), line("long" * 40_000)],
        ids=["line", "torn", "zeros", "damage", "long"],
    )
    def test_any_line_behind_the_end_is_another_append(self, backend: Backend, behind: bytes) -> None:
        """Also behind zeros that began an append: those zeros are damage, and reading them says so."""
        if not backend.segments_grow:
            pytest.skip("each append is a segment of its own")
        content = line("before") + behind
        backend.create(segment_path(SHARED, 1), content)
        assert backend.append_at(SHARED, Position(1, len(line("before"))), line("late")) is None
        assert backend.read(segment_path(SHARED, 1)) == content
        assert paths_of(backend, "ops/") == [segment_path(SHARED, 1)]

    def test_a_log_that_became_shorter_is_left_alone(self, backend: Backend) -> None:
        backend.create(segment_path(SHARED, 1), line(1))
        assert backend.append_at(SHARED, Position(1, len(line(1)) + 5), line("late")) is None
        assert log_of(backend, SHARED) == line(1)

    def test_appenders_and_this_take_turns(self, opener: OpenBackend) -> None:
        """An appender writes a seal; a writer that has not read it then appends nothing."""
        one, other = opener(), opener()
        assert one.append_at(SHARED, Position(1, 0), line(1)) == Position(1, 0)
        read = end_of(one)
        sealing = other.appender(SHARED)
        assert sealing.append(line("seal")) == Position(2, 0)
        sealing.close()
        if one.segments_grow:
            assert one.append_at(SHARED, read, line("late")) is None
        else:
            assert one.append_at(SHARED, Position(2, 0), line("late")) is None
        end = end_of(one)
        assert one.append_at(SHARED, end, line(2)) == end
        again = other.appender(SHARED)
        assert again.append(line("seal")) == Position(end.segment + 1, 0)
        again.close()
        assert log_of(one, SHARED) == line(1) + line("seal") + line(2) + line("seal")

    def test_an_append_waits_for_a_live_appender(self, opener: OpenBackend) -> None:
        one, other = opener(), opener()
        if not one.segments_grow:
            pytest.skip("nobody holds names here")
        appender = other.appender(SHARED)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(one.append_at, SHARED, Position(1, 0), line("waited"))
            assert not waiting.done()
            assert other.list("ops/") == []
            appender.close()
            assert waiting.result(60) == Position(1, 0)
        assert one.is_free(SHARED), "and holds nothing when it is done"
        assert log_of(other, SHARED) == line("waited")

    def test_of_racing_appends_each_is_there_once_and_in_the_order_of_their_places(self, opener: OpenBackend) -> None:
        racers, each = 8, 6
        start = threading.Barrier(racers)

        def race(racer: int) -> list[tuple[Position, bytes]]:
            backend = opener()
            won: list[tuple[Position, bytes]] = []
            start.wait(60)
            while len(won) < each:
                data = line(f"{racer}-{len(won)}")
                place = backend.append_at(SHARED, end_of(backend), data)
                if place is not None:
                    won.append((place, data))
            return won

        with ThreadPoolExecutor(racers) as pool:
            done = list(pool.map(race, range(racers)))
        everything = sorted(append for won in done for append in won)
        assert log_of(opener(), SHARED) == b"".join(data for _, data in everything)
        assert len({place for place, _ in everything}) == racers * each

    def test_of_appends_at_one_end_one_is_done(self, opener: OpenBackend) -> None:
        racers, rounds = 8, 8
        backends: Sequence[Backend] = [opener() for _ in range(racers)]
        start = threading.Barrier(racers)

        def race(racer: int) -> list[bool]:
            won = []
            for turn in range(rounds):
                data = line(f"{racer}-{turn}")
                # Each sees the same end, since none of them goes on before all have read it.
                end = end_of(backends[racer])
                start.wait(60)
                won.append(backends[racer].append_at(SHARED, end, data) == end)
                start.wait(60)
            return won

        with ThreadPoolExecutor(racers) as pool:
            outcomes = list(pool.map(race, range(racers)))
        assert [sum(turn) for turn in zip(*outcomes, strict=True)] == [1] * rounds
        winners = [turn.index(True) for turn in zip(*outcomes, strict=True)]
        assert log_of(backends[0], SHARED) == b"".join(line(f"{winner}-{turn}") for turn, winner in enumerate(winners))

    @pytest.mark.parametrize("name", ["", ".", "a/b", "-a", "ä", "a\n", "a" * 129])
    def test_names_that_no_log_can_have_are_refused(self, backend: Backend, name: str) -> None:
        with pytest.raises(InvalidNameError):
            backend.append_at(name, Position(1, 0), line(1))
        assert paths_of(backend) == []

    def test_the_longest_name_of_a_log_with_many_writers(self, backend: Backend) -> None:
        longest = "a" + ".-_" * 42 + "z"
        assert backend.append_at(longest, Position(1, 0), line("ünïcödé \U0001f600")) == Position(1, 0)
        assert log_of(backend, longest) == line("ünïcödé \U0001f600")

    def test_a_closed_backend_appends_nothing(self, opener: OpenBackend) -> None:
        backend = opener()
        backend.close()
        with pytest.raises(ClosedError):
            backend.append_at(SHARED, Position(1, 0), line(1))
        assert opener().list("ops/") == []
