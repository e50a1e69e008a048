"""Strict JSON, and files of lines that know where they are.

Values are decoded exactly or not at all: integers of any size stay integers, and what Python's or JavaScript's reader
would quietly bend is refused: a name that an object has twice, NaN and Infinity, numbers beyond the range of a double,
halves of surrogate pairs (they have no UTF-8 form), bytes that are not UTF-8.

The standard library's decoder is used because it alone shows the pairs of an object before they become a dict, which is
what finding duplicate names needs.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, NoReturn, TypeVar

import msgspec

from opslog.errors import CorruptError, UsageError

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
        """Whether the writer got as far as the line end."""
        return self.data.endswith(b"\n")

    def decode(self) -> Any:
        """The JSON value of this line. :raises CorruptError: it is not one, or not an exact one."""
        return decode_json(self.data, self.path, self.offset)

    def convert(self, value: Any, shape: type[T]) -> T:
        """`value`, checked against a msgspec type. :raises CorruptError: it has another shape."""
        return convert(value, shape, self.path, self.offset)

    def corrupt(self, problem: str) -> CorruptError:
        return corrupt(problem, self.path, self.offset)


def read_lines(stream: Iterable[bytes], path: str) -> Iterator[Line]:
    """The lines of a binary stream, one in memory at a time; `path` is what messages call the stream."""
    offset = 0
    for number, data in enumerate(stream, 1):
        yield Line(path, number, offset, data)
        offset += len(data)


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

    :raises CorruptError: with the offset of the bad byte where the decoder knows it, else that of `data`.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise corrupt("not UTF-8", path, offset + error.start) from error
    try:
        value = _DECODER.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise corrupt("half of a surrogate pair, which no UTF-8 text can hold", path, offset) from error
    except json.JSONDecodeError as error:
        raise corrupt(f"not JSON: {error.msg}", path, offset + len(text[: error.pos].encode("utf-8"))) from error
    except RecursionError as error:
        raise corrupt("nested too deeply", path, offset) from error
    except ValueError as error:
        raise corrupt(str(error), path, offset) from error
    return value


def convert(value: Any, shape: type[T], path: str, offset: int = 0) -> T:
    """`value`, checked against a msgspec type. :raises CorruptError: it has another shape."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise corrupt(str(error), path, offset) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the name {twice!r} twice, and only one of the values could be kept")
    return result


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text} is beyond the range of a double")
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse_constant)
