"""A disk with the guarantees of POSIX: every process sees a write at once, and a power cut may lose it until it is
synced.

After a power cut, this is left:

- Of a file: everything that was synced, and any number of the bytes written after that, whose end may be zeros.
- Of a directory, for each name independently: the file that it led to at the last sync, or any that it has led to
  since. So a name that was never synced may be gone, even if the content of its file was synced; with the name of a
  directory, everything below it is gone.

Locks and open files belong to processes, and end with them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(eq=False)
class File:
    """Bytes, of which the first `synced` are durable."""

    number: int
    modified: float
    content: bytearray = field(default_factory=bytearray)
    synced: int = 0
    links: int = 0


@dataclass(eq=False)
class Directory:
    """Names. `durable`: as last synced; `changed`: for each name, everything that it has led to since."""

    number: int
    modified: float
    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    changed: dict[str, list[Node | None]] = field(default_factory=dict)
    links: int = 0

    def put(self, name: str, node: Node | None) -> None:
        """Make a name lead to a file or directory, or to nothing."""
        before = self.entries.pop(name, None)
        if before is not None:
            before.links -= 1
        if node is not None:
            self.entries[name] = node
            node.links += 1
        self.changed.setdefault(name, []).append(node)

    def sync(self) -> None:
        for name in self.changed:
            if name in self.entries:
                self.durable[name] = self.entries[name]
            else:
                self.durable.pop(name, None)
        self.changed.clear()


Node = File | Directory


class Disk:
    """A tree of directories and files. Paths begin with a slash.

    :param now: its clock.
    :param ignores_case: whether it keeps the case of names and does not distinguish them by it, as some filesystems do.

    Calls with a `start` take paths relative to that directory, wherever it has been moved, even if it has no name any
    more.
    """

    def __init__(self, now: Callable[[], float], *, ignores_case: bool = False) -> None:
        self.now = now
        self._ignores_case = ignores_case
        self._number = 1
        self.root = Directory(1, now())
        self.root.links = 1

    def find(self, path: str, start: Directory | None = None) -> Node:
        """
        :raises FileNotFoundError: as the system does.
        :raises NotADirectoryError: likewise.
        """
        node: Node = start or self.root
        for name in path.split("/"):
            if name in ("", "."):
                continue
            if not isinstance(node, Directory):
                raise NotADirectoryError(20, "Not a directory", path)
            spelled = self._spelled(node, name)
            if spelled not in node.entries:
                raise FileNotFoundError(2, "No such file or directory", path)
            node = node.entries[spelled]
        return node

    def _spelled(self, directory: Directory, name: str) -> str:
        """The name as the directory has it, if it has it."""
        if not self._ignores_case or name in directory.entries:
            return name
        return next((other for other in directory.entries if other.lower() == name.lower()), name)

    def directory(self, path: str, start: Directory | None = None) -> Directory:
        node = self.find(path, start)
        if not isinstance(node, Directory):
            raise NotADirectoryError(20, "Not a directory", path)
        return node

    def place(self, path: str, start: Directory | None = None) -> tuple[Directory, str]:
        """The directory of a path's last name, and that name."""
        parent, _, name = path.rstrip("/").rpartition("/")
        directory = self.directory(parent, start)
        if not directory.links:
            raise FileNotFoundError(2, "No such file or directory", path)  # it was removed, and accepts no new names
        return directory, self._spelled(directory, name)

    def make_file(self, path: str, start: Directory | None = None) -> File:
        directory, name = self.place(path, start)
        if name in directory.entries:
            raise FileExistsError(17, "File exists", path)
        self._number += 1
        file = File(self._number, self.now())
        directory.put(name, file)
        return file

    def make_directory(self, path: str, start: Directory | None = None) -> None:
        directory, name = self.place(path, start)
        if name in directory.entries:
            raise FileExistsError(17, "File exists", path)
        self._number += 1
        directory.put(name, Directory(self._number, self.now()))

    def link(self, source: str, target: str, start: Directory | None = None) -> None:
        node = self.find(source, start)
        directory, name = self.place(target, start)
        if name in directory.entries:
            raise FileExistsError(17, "File exists", target)
        directory.put(name, node)

    def unlink(self, path: str, start: Directory | None = None) -> File:
        """Remove a name; returns its file."""
        node = self.find(path, start)
        if isinstance(node, Directory):
            raise IsADirectoryError(21, "Is a directory", path)
        directory, name = self.place(path, start)
        directory.put(name, None)
        return node

    def remove_directory(self, path: str, start: Directory | None = None) -> None:
        node = self.directory(path, start)
        if node.entries:
            raise OSError(39, "Directory not empty", path)
        directory, name = self.place(path, start)
        directory.put(name, None)

    def remove_tree(self, path: str) -> None:
        """Remove a directory, if it exists, with everything in it."""
        try:
            inside = list(self.directory(path).entries.items())
        except FileNotFoundError:
            return
        for name, node in inside:
            if isinstance(node, Directory):
                self.remove_tree(f"{path}/{name}")
            else:
                self.unlink(f"{path}/{name}")
        self.remove_directory(path)

    def replace_by_copy(self, path: str, former: str, *, of_links: bool) -> None:
        """Move a directory away, to the path `former`, and put a copy of it in its place. All of this is durable.

        :param of_links: the copy has hard links to the same files.
        """
        directory, name = self.place(path)
        moved = self.directory(path)
        copy = self._copied(moved, of_links)
        elsewhere, new_name = self.place(former)
        elsewhere.put(new_name, moved)
        directory.put(name, copy)
        for changed in (directory, elsewhere):
            changed.sync()

    def _copied(self, original: Directory, of_links: bool) -> Directory:
        self._number += 1
        copy = Directory(self._number, self.now())
        for name, node in original.entries.items():
            if isinstance(node, Directory):
                copy.put(name, self._copied(node, of_links))
                continue
            if of_links:
                copy.put(name, node)
                continue
            self._number += 1
            copy.put(name, File(self._number, node.modified, bytearray(node.content), len(node.content)))
        copy.sync()
        return copy

    def write(self, file: File, data: bytes) -> None:
        file.content += data
        file.modified = self.now()

    def files(self, path: str) -> Iterator[tuple[str, File]]:
        """Every file below a directory, with its path, in no particular order."""
        try:
            directory = self.directory(path)
        except OSError:
            return
        for name, node in directory.entries.items():
            if isinstance(node, Directory):
                yield from self.files(f"{path}/{name}")
            else:
                yield f"{path}/{name}", node

    def lose_power(self, choices: random.Random) -> None:
        self._lose(self.root, choices, set())

    def _lose(self, directory: Directory, choices: random.Random, seen: set[int]) -> None:
        """Visits names in sorted order, so that the choices are the same each time."""
        left = dict(directory.durable)
        for name in sorted(directory.changed):
            node = choices.choice([directory.durable.get(name), *directory.changed[name]])
            left.pop(name, None)
            if node is not None:
                left[name] = node
        directory.entries = {}
        directory.durable = dict(left)
        directory.changed.clear()
        for name in sorted(left):
            node = directory.entries[name] = left[name]
            if node.number in seen:
                node.links += 1
                continue
            seen.add(node.number)
            node.links = 1
            if isinstance(node, Directory):
                self._lose(node, choices, seen)
            else:
                _lose_content(node, choices)


def _lose_content(file: File, choices: random.Random) -> None:
    unsynced = len(file.content) - file.synced
    if unsynced:
        kept = choices.choice([0, unsynced, choices.randint(0, unsynced)])
        zeros = choices.choice([0, 0, choices.randint(0, unsynced - kept)])
        file.content[file.synced + kept :] = bytes(zeros)
    file.synced = len(file.content)
