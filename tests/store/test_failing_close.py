"""Files whose closing fails after all important work is done."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import opslog
from opslog.backends.forking import Descriptor


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
