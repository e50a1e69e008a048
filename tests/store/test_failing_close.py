"""Closing fails: of a file, after all important work is done, or of a store whose buffer cannot be written."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import NoReturn

import pytest

import opslog
from opslog.backends.forking import Descriptor
from opslog.log.writer import LogWriter
from opslog.store import replica_of


def test_a_compaction_whose_manifest_is_there_keeps_what_that_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something failed after the manifest had got its name: on some filesystems closing a file can fail."""
    real = Descriptor.close

    def close(file: Descriptor) -> None:
        is_manifest = file.number >= 0 and "/manifests/" in os.readlink(f"/proc/self/fd/{file.number}")
        real(file)
        if is_manifest:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    root = tmp_path / "store"
    with opslog.open(root, agent="a", compact_after=None, settings=opslog.Settings(undo_window=0)) as store:
        store["old"] = {"v": 1}
        with monkeypatch.context() as patch:
            patch.setattr(Descriptor, "close", close)
            with pytest.raises(opslog.CommitUnknownError, match="was created"):
                store.compact()
    with opslog.open(root, read_only=True) as fresh:
        assert dict(fresh.items()) == {"old": {"v": 1}}
        assert fresh.stats().manifest == 2


def test_a_close_whose_flush_fails_ends_automatic_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(log: LogWriter) -> NoReturn:
        raise MemoryError

    store: opslog.Store[dict[str, int]] = opslog.open(tmp_path, agent="a", durability="buffered")
    store["x"] = {"v": 1}
    worker = replica_of(store).compaction._worker
    monkeypatch.setattr(worker, "_work", lambda: None)
    assert worker.wake()
    with monkeypatch.context() as patch:
        patch.setattr(LogWriter, "flush", fail)
        with pytest.raises(MemoryError):
            store.close()
    assert _threads("opslog-compact") == []
    with opslog.open(tmp_path, read_only=True) as fresh:
        assert dict(fresh.items()) == {"x": {"v": 1}}


def test_an_asyncio_close_that_reports_a_lost_buffer_ends_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def close() -> list[str]:
        store = await opslog.aio.open(tmp_path, agent="a", durability="buffered", buffer_seconds=3600)
        await store.create("x", {"v": 1})
        await store.set("y", {"v": 1})
        assert _threads("opslog-aio")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(opslog.WriteFailedError, match="free some space"):
                await store.close()
        return _threads("opslog-aio")

    assert asyncio.run(close()) == []


def _threads(name: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(name)]
