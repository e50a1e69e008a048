"""A buffer that could not be written is reported: by a call that somebody sees, or at the end of the program."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import opslog
from opslog.backends import posix
from opslog.format.torn import joined
from opslog.log import writer
from opslog.replica.at_exit import write_buffer
from opslog.store import replica_of
from tests.support.faults import stored


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("show", [repr, opslog.Store._repr_html_], ids=["repr", "html"])
def test_a_store_that_is_shown_does_not_report_a_lost_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, show: Callable[[object], str | None]
) -> None:
    store = opslog.open(tmp_path, agent="a", durability="buffered", buffer_seconds=3600)
    log = replica_of(store).log
    assert log is not None
    store["new"] = {}
    with monkeypatch.context() as patch:
        patch.setattr(posix, "write_all", full)
        log.flush()
    show(store)
    with pytest.raises(opslog.WriteFailedError):
        store.close()


def test_a_set_that_writes_the_buffer_itself_raises_what_that_fails_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the program, or where no thread can be started."""
    store = opslog.open(tmp_path, agent="a", durability="buffered", buffer_seconds=3600)
    log = replica_of(store).log
    assert log is not None
    log.write_at_once()
    with monkeypatch.context() as patch:
        patch.setattr(posix, "write_all", full)
        with pytest.raises(opslog.WriteFailedError):
            store["new"] = {}
    with pytest.raises(opslog.WriteFailedError):
        store.close()


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_while_the_end_of_the_program_writes_the_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    store = opslog.open(tmp_path, agent="a", durability="buffered", buffer_seconds=3600)
    store["new"] = {}
    store["newer"] = {}
    interrupts = [KeyboardInterrupt()] * times

    def interrupted(line: bytes) -> bytes:
        if interrupts:
            raise interrupts.pop()
        return joined(line)

    monkeypatch.setattr(writer, "joined", interrupted)
    with pytest.warns(ResourceWarning if times == 1 else RuntimeWarning), pytest.raises(KeyboardInterrupt):
        write_buffer(replica_of(store))
    assert stored(tmp_path) == ({"new": {}, "newer": {}} if times == 1 else {})
    store.close()


def test_a_buffer_that_close_could_not_write_is_reported_by_the_next_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opslog.open(tmp_path, agent="a", durability="buffered", buffer_seconds=3600)
    store["old"] = {}
    store.flush()
    store["new"] = {}
    store["newer"] = {}

    def no_memory(line: bytes) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(writer, "joined", no_memory)
        with pytest.raises(MemoryError):
            store.close()
    lost = r"buffer of agent 'a' is not in the log \(commits: 2\)"
    with pytest.warns(RuntimeWarning, match=lost):
        write_buffer(replica_of(store))
    with pytest.raises(opslog.WriteFailedError, match=lost):
        store.close()
    store.close()
    write_buffer(replica_of(store))
    assert stored(tmp_path) == {"old": {}}
