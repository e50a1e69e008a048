"""Behaviour of the memory backend alone."""

from __future__ import annotations

import os

import pytest

from opslog.backends import Position
from opslog.backends.memory import MemoryBackend
from opslog.errors import AgentBusyError, ClosedError


def test_its_clock_can_be_injected() -> None:
    time = 100.0
    backend = MemoryBackend("with a clock", now=lambda: time)
    backend.create("a", b"")
    appender = backend.appender("b")
    time = 200.0
    appender.append(b"1\n")
    time = 300.0
    appender.append(b"2\n")
    other = MemoryBackend("with a clock")
    assert [entry.modified for entry in other.list("")] == [100.0, 300.0]
    assert other.now() == 300.0


def test_a_full_segment_is_followed_by_the_next() -> None:
    backend = MemoryBackend(segment_bytes=4)
    appender = backend.appender("a")
    positions = [appender.append(line) for line in (b"1\n", b"23456\n", b"7\n")]
    assert positions == [Position(1, 0), Position(1, 2), Position(2, 0)]


def test_a_segment_that_was_deleted_is_not_written_again() -> None:
    backend = MemoryBackend()
    appender = backend.appender("a")
    appender.append(b"1\n")
    backend.delete([entry.path for entry in backend.list("ops/")])
    assert appender.append(b"2\n") == Position(2, 0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused() -> None:
    backend = MemoryBackend()
    appender = backend.appender("a")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for call in (lambda: backend.list(""), lambda: appender.append(b"x\n"), lambda: appender.advance(1)):
                with pytest.raises(ClosedError, match="parent of this process"):
                    call()
            appender.close()
            backend.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(AgentBusyError):
        backend.appender("a")
    assert appender.append(b"1\n") == Position(1, 0)
