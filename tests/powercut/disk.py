"""What a disk may hold after a power cut, according to POSIX.

A `Disk` follows the system calls of a run. At any point it can list what a power cut at that moment may leave:

- bytes of a file that were fsynced are there; of those written since, any may be: the file may have any length between
  the two, and any of its new bytes may be zeros, because a length can reach the disk before the bytes;
- an entry of a directory is as it was when the directory was last fsynced, or as any change since has made it, each
  name by itself; whatever lies below a directory whose own entry is not there is gone with it.

Not modelled: a disk that lies about fsync, bytes of other files in place of zeros, damage to what was durable.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import msgspec

Image = dict[str, bytes | None]
"""The content of a disk: the bytes of each file by its path, and None for each directory."""


class Make(msgspec.Struct, frozen=True, tag=True):
    """A file or directory was created."""

    path: str
    inode: int
    directory: bool


class Write(msgspec.Struct, frozen=True, tag=True):
    """Bytes were written; `path` is one of the file's names."""

    path: str
    inode: int
    offset: int
    data: bytes


class Truncate(msgspec.Struct, frozen=True, tag=True):
    path: str
    inode: int
    size: int


class Link(msgspec.Struct, frozen=True, tag=True):
    source: str
    path: str


class Remove(msgspec.Struct, frozen=True, tag=True):
    """A file was unlinked, or a directory removed."""

    path: str


class Sync(msgspec.Struct, frozen=True, tag=True):
    """An fsync or fdatasync returned."""

    path: str
    inode: int


class Ack(msgspec.Struct, frozen=True, tag=True):
    """An agent got an acknowledgement that its commits up to a clock are durable."""

    agent: str
    clock: int


Event = Make | Write | Truncate | Link | Remove | Sync | Ack


class File:
    def __init__(self) -> None:
        self.durable = b""
        self.now = bytearray()
        self.appended = True
        """Whether everything that is not durable was added at the end."""

    def write(self, offset: int, data: bytes) -> None:
        self.appended = self.appended and offset >= len(self.durable)
        self.now[len(self.now) : offset] = bytes(max(0, offset - len(self.now)))
        self.now[offset : offset + len(data)] = data

    def truncate(self, size: int) -> None:
        self.appended = self.appended and size >= len(self.durable)
        self.now[size:] = bytes(max(0, size - len(self.now)))

    def sync(self) -> None:
        self.durable, self.appended = bytes(self.now), True

    @property
    def is_durable(self) -> bool:
        return self.durable == self.now


class Directory:
    def __init__(self) -> None:
        self.durable: dict[str, Node] = {}
        self.now: dict[str, Node] = {}
        self.changes: dict[str, list[Node | None]] = {}
        """For each name, its meanings since the last fsync, in order; None: nothing."""

    def change(self, name: str, node: Node | None) -> None:
        if node is None:
            del self.now[name]
        else:
            self.now[name] = node
        self.changes.setdefault(name, []).append(node)

    def sync(self) -> None:
        self.durable = dict(self.now)
        self.changes = {}


Node = File | Directory


class Chooser(Protocol):
    """Decides which of the changes that are not durable survive."""

    def entry(self, options: list[Node | None]) -> Node | None:
        """Choose one of the possible meanings of a name; the oldest comes first."""

    def content(self, file: File) -> bytes:
        """Choose the content of a file that is not durable."""


class Disk:
    """See the module's docstring. Paths are absolute and below the directory `world`. Whatever is there at first is
    durable."""

    def __init__(self, world: Path) -> None:
        self._world = str(world.resolve())
        self.root = Directory()
        self._nodes: dict[int, Node] = {}
        self._take_in(world, self.root)

    def _take_in(self, place: Path, directory: Directory) -> None:
        self._nodes[place.stat().st_ino] = directory
        for path in place.iterdir():
            node: Node = Directory() if path.is_dir() else File()
            directory.now[path.name] = node
            if isinstance(node, Directory):
                self._take_in(path, node)
            else:
                self._nodes[path.stat().st_ino] = node
                node.write(0, path.read_bytes())
                node.sync()
        directory.sync()

    def apply(self, event: Event) -> None:
        match event:
            case Make(path, inode, directory):
                self._nodes[inode] = Directory() if directory else File()
                self._change(path, self._nodes[inode])
            case Write(_, inode, offset, data):
                self._file(inode).write(offset, data)
            case Truncate(_, inode, size):
                self._file(inode).truncate(size)
            case Link(source, path):
                self._change(path, self._find(source))
            case Remove(path):
                self._change(path, None)
            case Sync(_, inode):
                self._nodes[inode].sync()
            case Ack():
                pass

    def after_cut(self, chooser: Chooser) -> Image:
        """The files after a power cut now."""
        image: Image = {}
        contents: dict[int, bytes] = {}  # a file with two names has one content
        stack: list[tuple[str, Directory]] = [("", self.root)]
        while stack:
            path, directory = stack.pop()
            for name in sorted(directory.durable.keys() | directory.changes):
                node = directory.durable.get(name)
                if name in directory.changes:
                    node = chooser.entry([node, *directory.changes[name]])
                full = f"{path}{name}"
                if isinstance(node, Directory):
                    image[full] = None
                    stack.append((f"{full}/", node))
                elif node is not None:
                    if id(node) not in contents:
                        contents[id(node)] = node.durable if node.is_durable else chooser.content(node)
                    image[full] = contents[id(node)]
        return image

    def _change(self, path: str, node: Node | None) -> None:
        parent, _, name = path.rpartition("/")
        directory = self._find(parent)
        assert isinstance(directory, Directory)
        directory.change(name, node)

    def _find(self, path: str) -> Node:
        node: Node = self.root
        for name in path.removeprefix(self._world).split("/"):
            if name:
                assert isinstance(node, Directory)
                node = node.now[name]
        return node

    def _file(self, inode: int) -> File:
        node = self._nodes[inode]
        assert isinstance(node, File)
        return node


class Nothing:
    """Only what is durable survives."""

    def entry(self, options: list[Node | None]) -> Node | None:
        return options[0]

    def content(self, file: File) -> bytes:
        return file.durable


class Names(Nothing):
    """All names survive, and only the durable bytes."""

    def entry(self, options: list[Node | None]) -> Node | None:
        return options[-1]


class Everything(Names):
    """As after all processes have crashed."""

    def content(self, file: File) -> bytes:
        return bytes(file.now)


class Bytes(Everything):
    """All bytes survive, and only the durable names."""

    def entry(self, options: list[Node | None]) -> Node | None:
        return options[0]


class Lengths(Names):
    """All names and lengths survive, and zeros take the place of bytes."""

    def content(self, file: File) -> bytes:
        return file.durable + bytes(max(0, len(file.now) - len(file.durable)))


EXTREMES: list[Chooser] = [Nothing(), Names(), Everything(), Bytes(), Lengths()]


class AtRandom:
    """Anything that may survive, at random."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def entry(self, options: list[Node | None]) -> Node | None:
        return self._rng.choice(options)

    def content(self, file: File) -> bytes:
        if not file.appended or self._rng.random() < 0.5:
            return self._rng.choice(notable(file))
        kept, new = len(file.durable), len(file.now) - len(file.durable)
        data = file.now[: kept + self._rng.randint(0, new)]
        for _ in range(self._rng.randrange(4)):
            start, end = sorted(self._rng.randint(kept, len(data)) for _ in range(2))
            data[start:end] = bytes(end - start)
        return bytes(data)


class InTurn:
    """All notable outcomes, one after the other: `for chooser in InTurn.all(): disk.after_cut(chooser)`."""

    def __init__(self, places: list[int]) -> None:
        self._places = places
        self._sizes: list[int] = []

    @classmethod
    def all(cls) -> Iterator[InTurn]:
        """Each has to be used before the next is taken."""
        places: list[int] = []
        while True:
            chooser = cls(places)
            yield chooser
            sizes = chooser._sizes
            places = [*places, *[0] * (len(sizes) - len(places))][: len(sizes)]
            while places and places[-1] + 1 == sizes[len(places) - 1]:
                places.pop()
            if not places:
                return
            places[-1] += 1

    def entry(self, options: list[Node | None]) -> Node | None:
        return options[self._pick(len(options))]

    def content(self, file: File) -> bytes:
        outcomes = notable(file)
        return outcomes[self._pick(len(outcomes))]

    def _pick(self, size: int) -> int:
        self._sizes.append(size)
        place = len(self._sizes) - 1
        return self._places[place] if place < len(self._places) else 0


def notable(file: File) -> list[bytes]:
    """The contents of a file that is not durable which a reader may tell apart: cut off, and with holes, at ends of
    lines and elsewhere."""
    old, now = file.durable, bytes(file.now)
    if not file.appended:
        return [old, now, b""]
    new = now[len(old) :]
    ends = [place + 1 for place, byte in enumerate(new) if byte == ord("\n")]
    lines = list(pairwise(sorted({0, *ends, len(new)})))
    cuts = {0, len(new) - 1, len(new), *ends, *((start + end) // 2 for start, end in lines)}
    contents = [old + new[:cut] for cut in sorted(cuts)]
    for start, end in [(0, len(new)), (0, len(new) - 1), *lines]:
        middle = (start + end) // 2
        for first, last in [(start, end), (start, middle), (middle, end), (middle, middle + 1)]:
            contents.append(old + new[:first] + bytes(last - first) + new[last:])
    return list(dict.fromkeys(contents))
