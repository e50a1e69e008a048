"""The two simulated storages, which remember everything that was ever in a log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol
from unittest.mock import patch

import opslog
from opslog import aio
from opslog.backends import Backend, register
from opslog.backends.holders import Holders
from opslog.backends.local.fs import FsBackend
from opslog.backends.objects import backend as objects
from opslog.concurrency import exiting
from opslog.environment import REAL
from opslog.errors import UsageError
from opslog.format.commits import Commit, decode_commits
from opslog.format.documents import Document
from opslog.format.layout import MANIFESTS, OPS, manifest_number, segment_of
from opslog.format.manifest import decode_manifest
from opslog.store import Store
from opslog.testing.bucket import Bucket
from opslog.testing.disk import File
from opslog.testing.simulation import Process, Simulation
from opslog.testing.system import ROOT, System
from opslog.testing.threads import Threading

# Small, so that logs have many segments.
SEGMENT_BYTES = 600

_KEYS = "prefix/"


class SimulatedStorage(Protocol):
    """A storage with one store in it.

    :ivar files: (path, content) of all current files.
    :ivar collected: the segments that were deleted.
    :ivar is_installed: whether the running code is inside `installed()`.
    """

    collected: dict[str, bytes]
    is_installed: bool

    def files(self, prefix: str) -> Iterator[tuple[str, bytes]]: ...

    def backend(self, process: Process | None) -> Backend: ...

    def installed(self) -> AbstractContextManager[None]: ...


def _no_exit() -> AbstractContextManager[object]:
    """Register nothing at exit inside the block: simulated processes end before the program does."""
    return patch.object(exiting, "write_at_exit", lambda *_: None)


def _noted(storage: SimulatedStorage) -> AbstractContextManager[object]:
    return patch.object(storage, "is_installed", True)


class Directory:
    """A directory on a simulated disk, used through `opslog.backends.local.fs`.

    :param ignores_case: as of `Disk`.
    """

    kind = "posix"

    def __init__(self, simulation: Simulation, *, ignores_case: bool = False) -> None:
        self.simulation = simulation
        self.system = System(simulation, ignores_case=ignores_case)
        self.system.on_unlink = self._note
        self.collected: dict[str, bytes] = {}
        self.is_installed = False
        self._root = f"{ROOT}/store"

    def backend(self, process: Process | None) -> Backend:
        environment = process.environment if process else REAL
        return FsBackend(self._root, environment=environment, segment_bytes=SEGMENT_BYTES)

    @contextmanager
    def installed(self) -> Iterator[None]:
        with Threading(self.simulation).installed(), self.system.installed(), _no_exit(), _noted(self):
            yield

    def files(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        for path, file in self.system.disk.files(f"{self._root}/{prefix}".rstrip("/")):
            yield path.removeprefix(f"{self._root}/"), bytes(file.content)

    def _note(self, path: str, file: File) -> None:
        inside = path.removeprefix(f"{self._root}/")
        # A process that was held up may have created a collected segment again, empty, before it found that it had lost
        # its name.
        if inside.startswith(OPS) and len(file.content) >= len(self.collected.get(inside, b"")):
            self.collected[inside] = bytes(file.content)


class ObjectStorage:
    """A prefix in a simulated bucket, used through `opslog.backends.objects.backend`."""

    kind = "s3"

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.bucket = Bucket(simulation)
        self.bucket.on_delete = self._note
        self.bucket.on_create = self._note_void
        self.collected: dict[str, bytes] = {}
        self.is_installed = False
        # Segments that were already behind the cut when they were created: they belong to no log.
        self.void: set[str] = set()
        self._opened = 0
        self._cut: tuple[str, dict[str, int]] = ("", {})

    def backend(self, process: Process | None) -> Backend:
        # A separate address for each process, because the backend distinguishes appenders by address and agent.
        self._opened += 1
        environment = process.environment if process else REAL
        return objects.ObjectBackend(
            self.bucket, f"simulated://bucket-{self._opened}", _KEYS, lease_seconds=20.0, environment=environment
        )

    @contextmanager
    def installed(self) -> Iterator[None]:
        held = patch.object(objects, "_held", Holders())
        with Threading(self.simulation).installed(), held, _no_exit(), _noted(self):
            yield

    def files(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        for key, (content, _) in self.bucket.objects.items():
            if key.startswith(_KEYS + prefix):
                yield key.removeprefix(_KEYS), content

    def _note(self, key: str, content: bytes) -> None:
        path = key.removeprefix(_KEYS)
        if path.startswith(OPS) and path not in self.void:
            self.collected[path] = content
        self.void.discard(path)

    def _note_void(self, key: str) -> None:
        named = segment_of(key.removeprefix(_KEYS))
        if named and named[1] < self._newest_cut().get(named[0], 0):
            self.void.add(key.removeprefix(_KEYS))

    def _newest_cut(self) -> dict[str, int]:
        manifests = [path for path, _ in self.files(MANIFESTS) if manifest_number(path)]
        newest = max(manifests, default="")
        if newest != self._cut[0]:
            number = manifest_number(newest)
            assert number is not None
            manifest = decode_manifest(self.bucket.objects[_KEYS + newest][0], newest, number)
            self._cut = newest, {agent: cut.segment for agent, cut in manifest.cut.items()}
        return self._cut[1]


def make_storage(kind: str, simulation: Simulation, *, ignores_case: bool = False) -> Directory | ObjectStorage:
    """
    :param kind: "posix" or "s3".
    :param ignores_case: whether the disk keeps the case of names and does not distinguish them by it.
    :raises UsageError: it is another kind.
    """
    match kind:
        case "posix":
            return Directory(simulation, ignores_case=ignores_case)
        case "s3":
            return ObjectStorage(simulation)
    raise UsageError(f'there is no simulated storage {kind!r}: it is "posix" or "s3"')


def all_commits(storage: SimulatedStorage) -> dict[str, list[Commit]]:
    """Every commit that was ever in each agent's log, in order, including collected ones."""
    void = storage.void if isinstance(storage, ObjectStorage) else set()
    segments = {path: content for path, content in storage.files(OPS) if path not in void}
    for path, content in storage.collected.items():
        if len(segments.get(path, b"")) < len(content):
            segments[path] = content
    logs: dict[str, list[Commit]] = {}
    for path in sorted(segments):
        named = segment_of(path)
        if named:
            lines = segments[path][: segments[path].rfind(b"\n") + 1]
            logs.setdefault(named[0], []).extend(decode_commits(lines, path, 0))
    return logs


def open_store(storage: SimulatedStorage, process: Process, **options: Any) -> Store[Document]:
    """`opslog.open` on a simulated storage, in a simulated process; options as there.

    :raises UsageError: the code is not inside `with storage.installed():`.
    """
    return opslog.open("simulated://store", **_options(storage, process, options))


def open_async_store(storage: SimulatedStorage, process: Process, **options: Any) -> aio.Opening[Document]:
    """`opslog.aio.open` likewise, inside `opslog.testing.tasks.run_tasks`."""
    return aio.open("simulated://store", **_options(storage, process, options))


def _options(storage: SimulatedStorage, process: Process, options: dict[str, Any]) -> dict[str, Any]:
    if not storage.is_installed:  # its system calls would go to the real system
        raise UsageError(
            "the simulated storage is not installed: start and run the simulation inside `with storage.installed():`"
        )
    return {"environment": process.environment, "storage": storage, "process": process, **options}


def _open_url(url: str, *, storage: SimulatedStorage, process: Process | None, create: bool = True) -> Backend:
    if not create and not any(storage.files("")):
        raise opslog.MissingStoreError(f"no store at {url}", url)
    return storage.backend(process)


register("simulated", _open_url)
