"""Streams in a directory: shards in LMDB, and a manifest with their layout.

::

    <directory>/
      layout.json     format, version, number of shards, the hash that assigns a path to a shard, the storage's name
      lock            locked by the one process that serves the directory; names that process
      shard-000/      data.mdb: see `opslog.server.storage.lmdb_shard`

The process also locks the directory itself, so that no other process can serve it after the file ``lock`` was removed.
It then refuses to write, because other processes can no longer find out which process serves the directory.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path

import msgspec

from opslog.backends import forking
from opslog.backends.local import flock
from opslog.backends.posix import fsync_directory, write_all
from opslog.environment import REAL, Environment
from opslog.errors import CorruptError, FormatVersionError, LockedError, UsageError
from opslog.format.prepared import prepare
from opslog.server.protocol.storage import Shard
from opslog.server.storage.lmdb_shard import LmdbShard

# Values in `layout.json`. The hash of a path is BLAKE2b of its UTF-8, 8 bytes big-endian, modulo the number of shards.
FORMAT, VERSION, HASH = "opslog-streams", 1, "blake2b-64-mod"

SHARDS, SHARDS_MAX = 1, 256
MAP_BYTES = 2**40
_RETRY_SECONDS = 0.1
_DATABASE = ("data.mdb", "lock.mdb")
_MAP_BYTES_NEW = 2**20


class Layout(msgspec.Struct, frozen=True):
    """The content of ``layout.json``."""

    format: str
    version: int
    shards: int
    hash: str
    name: str


prepare(Layout)


class DirectoryStorage:
    """The streams in a directory, which is created if it does not exist.

    :param shards: the number of databases among which streams are divided, which cannot be changed later; None: the
        existing number, or `SHARDS` in a new directory.
    :param map_bytes: the most bytes that each database may grow to.
    :param wait_seconds: how long to wait for another process that still serves the directory.
    :raises LockedError: another process serves it.
    :raises UsageError: it has another layout, or is not a directory of streams.
    :raises FormatVersionError: a newer opslog wrote it.
    :raises CorruptError: it cannot be read.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        shards: int | None = None,
        map_bytes: int = MAP_BYTES,
        wait_seconds: float = 10.0,
        environment: Environment = REAL,
    ) -> None:
        self.path = Path(path)
        if shards is not None and not 1 <= shards <= SHARDS_MAX:
            raise UsageError(f"a directory has 1 to {SHARDS_MAX} shards, not {shards}")
        with ExitStack() as stack:
            _make_directory(self.path)
            _lock(stack, self.path, wait_seconds, environment)
            layout = _layout(self.path, shards, environment)
            self.name = layout.name
            opened: list[Shard] = []
            for number in range(layout.shards):
                shard = _open_shard(self.path, number, map_bytes)
                stack.callback(shard.close)
                opened.append(shard)
            self.shards = tuple(opened)
            self._closing = stack.pop_all()

    def home(self, path: str) -> int:
        if len(self.shards) == 1:
            return 0
        return int.from_bytes(blake2b(path.encode(), digest_size=8).digest()) % len(self.shards)

    def close(self) -> None:
        self._closing.close()


def _lock(stack: ExitStack, path: Path, wait_seconds: float, environment: Environment) -> None:
    """Lock the directory until the stack is left."""
    end = environment.monotonic() + wait_seconds
    while True:
        try:
            with ExitStack() as locks:
                locks.callback(flock.release, flock.take(str(path / "lock"), "server"))
                _lock_itself(locks, path)
                stack.push(locks.pop_all())
                return
        except LockedError:
            if environment.monotonic() >= end:
                raise
        environment.sleep(_RETRY_SECONDS)


def _lock_itself(stack: ExitStack, path: Path) -> None:
    directory = forking.Descriptor()
    stack.callback(flock.release, directory)
    directory.open(str(path), os.O_RDONLY | os.O_DIRECTORY)
    if not flock.try_lock(directory, str(path)):
        raise LockedError(
            f"{path} is served by another process, whose file {path / 'lock'} somebody has removed: stop that process",
            "server",
            "a process that cannot be found out any more",
        )


def _layout(path: Path, shards: int | None, environment: Environment) -> Layout:
    manifest = path / "layout.json"
    try:
        text = manifest.read_bytes()
    except FileNotFoundError:
        layout = Layout(FORMAT, VERSION, shards or SHARDS, HASH, environment.nonce())
        _create(path, layout)
        return layout
    try:
        layout = msgspec.json.decode(text, type=Layout)
    except msgspec.DecodeError as error:
        raise CorruptError(f"{manifest} cannot be read: {error}", str(manifest)) from error
    if layout.format != FORMAT or layout.hash != HASH:
        raise UsageError(f"{manifest} is the layout of something else: {layout.format}, {layout.hash}")
    if layout.version > VERSION:
        raise FormatVersionError(f"{path} has format version {layout.version}: a newer opslog reads it", layout.version)
    if shards is not None and shards != layout.shards:
        raise UsageError(
            f"{path} has {layout.shards} shards, not {shards}: the number cannot be changed, so leave it out"
        )
    return layout


def _create(path: Path, layout: Layout) -> None:
    """Lay out a new directory. The manifest is written last: a directory without it counts as empty. If it is there,
    every shard must have its database, so that a lost database is not taken for a new one."""
    new = path / "layout.json.new"
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in {"lock", new.name})
    if any(not name.startswith("shard-") or not (_is_new(path / name) or new.exists()) for name in others):
        raise UsageError(
            f"{path} has no layout.json, but is not empty ({others[0]}): name an empty directory or a new one"
        )
    _write(new, msgspec.json.format(msgspec.json.encode(layout)) + b"\n")
    fsync_directory(str(path))  # the contents of the shards do not count until this file exists
    for number in range(layout.shards):
        shard = path / _shard_name(number)
        shard.mkdir(exist_ok=True)
        for name in _DATABASE:
            (shard / name).unlink(missing_ok=True)
        LmdbShard(shard, _MAP_BYTES_NEW).close()
        fsync_directory(str(shard))
    new.rename(path / "layout.json")
    fsync_directory(str(path))


def _is_new(shard: Path) -> bool:
    return not any(shard.iterdir())


def _write(path: Path, text: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        write_all(descriptor, text)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(path: Path) -> None:
    if not path.is_dir():
        path.mkdir(parents=True)
        fsync_directory(str(path.parent))


def _open_shard(path: Path, number: int, map_bytes: int) -> LmdbShard:
    shard = path / _shard_name(number)
    data = shard / _DATABASE[0]
    if not data.is_file() or not data.stat().st_size:
        missing = data if shard.is_dir() else shard
        state = "is empty" if data.is_file() else "is missing"
        raise CorruptError(f"{missing} {state}: restore the directory from a backup", str(missing))
    return LmdbShard(shard, map_bytes, path / "lock")


def _shard_name(number: int) -> str:
    return f"shard-{number:03}"
