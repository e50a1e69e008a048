"""Repairs that lose nothing: see `opslog.verify.verify.verify`.

Every file to be removed is first copied to ``removed/<nonce>/`` under its own path. Logs, manifests and the parts that
they name are never touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opslog.backends import Backend
from opslog.compaction.compact import LOCK
from opslog.errors import CorruptError, MissingFileError
from opslog.format.commits import decode_records
from opslog.format.layout import REMOVED, index_path
from opslog.format.manifest import Part
from opslog.format.snapshot import Row, build_archive


def repair_all(backend: Backend, indexes: Sequence[Part], garbage: Sequence[str], nonce: str) -> list[str]:
    """Rebuild the indexes of whole parts, and move garbage aside. Returns the actions, one sentence each.

    The lock only keeps a compaction from deleting the same garbage at the same time. No process can publish any of
    these files any more, so the repair would be safe without it.

    :raises LockedError: a compaction is running.
    """
    with backend.lock(LOCK):
        done = list(_rebuild(backend, indexes, nonce))
        moved = [path for path in garbage if _move_aside(backend, path, nonce)]
    return done + [f"moved {path} to {REMOVED}{nonce}/{path}" for path in moved]


def _rebuild(backend: Backend, parts: Sequence[Part], nonce: str) -> Iterator[str]:
    for part in parts:
        index = index_path(part.path)
        try:
            data = backend.read(part.path)
            records = decode_records(data, part.path, 0)
        except (MissingFileError, CorruptError):
            continue  # collected or damaged since it was checked; the check after the repair reports damage
        lines = [line + b"\n" for line in data.split(b"\n")[:-1]]
        file = build_archive(part.path, map(Row.of, records, lines))
        if file.part.sha256 != part.sha256 or _is_there(backend, index, file.index):
            continue  # the part was damaged since it was checked; or the index is whole, and could not be read then
        moved = _move_aside(backend, index, nonce)
        backend.create(index, file.index)
        yield f"made {index} anew from {part.path}" + (f"; the old one is {REMOVED}{nonce}/{index}" if moved else "")


def _is_there(backend: Backend, path: str, data: bytes) -> bool:
    try:
        return backend.read(path) == data
    except MissingFileError:
        return False


def _move_aside(backend: Backend, path: str, nonce: str) -> bool:
    try:
        data = backend.read(path)
    except MissingFileError:
        return False
    backend.create(f"{REMOVED}{nonce}/{path}", data)
    backend.delete([path])
    return True
