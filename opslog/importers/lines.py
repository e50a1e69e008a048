"""Files of lines with known positions, decoded exactly (`opslog.format.exact`) or refused."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple, TypeVar

import msgspec

from opslog.errors import CorruptError, UsageError
from opslog.format.commits import LINE_BYTES_MAX
from opslog.format.exact import InexactError, loads

T = TypeVar("T")


class Line(NamedTuple):
    """One line of a file.

    `number` counts from 1, `offset` is the byte offset of its first byte, `data` includes the line end if there is one.
    """

    path: str
    number: int
    offset: int
    data: bytes

    @property
    def source(self) -> str:
        return f"{self.path}:{self.number}"

    @property
    def blank(self) -> bool:
        return not self.data.strip()

    @property
    def complete(self) -> bool:
        """Whether the line has a line end."""
        return self.data.endswith(b"\n")

    def decode(self) -> Any:
        """The JSON value of this line.

        :raises CorruptError: it is not JSON, or cannot be decoded exactly.
        """
        return decode_json(self.data, self.path, self.offset)

    def convert(self, value: Any, shape: type[T]) -> T:
        """`value`, checked against a msgspec type.

        :raises CorruptError: it has another shape.
        """
        return convert(value, shape, self.path, self.offset)

    def corrupt(self, problem: str) -> CorruptError:
        return corrupt(problem, self.path, self.offset)


def read_lines(stream: Iterable[bytes], path: str) -> Iterator[Line]:
    """The lines of a binary stream, one in memory at a time; `path` is the stream's name in messages.

    :raises CorruptError: a line is longer than any that a store could hold.
    """
    offset = 0
    for number, data in enumerate(stream, 1):
        if len(data) > LINE_BYTES_MAX:
            raise corrupt(f"a line of more than {LINE_BYTES_MAX} bytes: no document is so long", path, offset)
        yield Line(path, number, offset, data)
        offset += len(data)


def bounded(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream; of a line that is too long, only the beginning."""
    return iter(lambda: stream.readline(LINE_BYTES_MAX + 1), b"")


def open_file(path: str | os.PathLike[str]) -> io.BufferedReader:
    """:raises UsageError: the file cannot be opened."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise UsageError(f"cannot read {os.fspath(path)}: {error.strerror}; check path and permissions") from error


def corrupt(problem: str, path: str, offset: int) -> CorruptError:
    return CorruptError(f"{path}, byte {offset}: {problem}", path, offset)


def decode_json(data: bytes, path: str, offset: int = 0) -> Any:
    """The JSON value in `data`, which lies at `offset` of file `path`.

    :raises CorruptError: with the offset of the bad byte if the decoder knows it, else that of `data`.
    """
    try:
        return loads(data)
    except InexactError as error:
        raise corrupt(str(error), path, offset + error.offset) from error


def convert(value: Any, shape: type[T], path: str, offset: int = 0) -> T:
    """`value`, checked against a msgspec type.

    :raises CorruptError: it has another shape.
    """
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise corrupt(str(error), path, offset) from error
