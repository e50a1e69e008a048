"""Whether an LMDB data file is as long as its newest commit requires.

LMDB maps its file and does not check the file's length. In a truncated file (an interrupted copy, a disk that filled up
while a backup was restored) the first access to a missing page kills the process with SIGBUS. So the length is checked
when a shard is opened, before any page of it is read through the map.

A file may be shorter than its highest page number requires, and still be intact: LMDB does not write pages at the end
that one transaction both allocated and freed. Only in such a file, all pages are followed from the roots. That reads
every page except those of large values.

The layout is that of data version 1 (LMDB 0.9) on 64-bit little-endian machines. The header of a page: its number (8
bytes), unused (2), flags (2), where its free space begins (2) and ends (2). Offsets of nodes follow (2 each), up to the
free space. A node: size of the value (4), flags (2), size of the key (2), key, value. In a branch, the first six bytes
of a node are a page number instead. Large values are on pages of their own; the node has the number of the first one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from struct import Struct

_HEADER = Struct("<QHHHH")
_NODE = Struct("<IHH")
_NUMBER = Struct("<Q")
_META = Struct("<IIQQ48s48sQQ")
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _LEAF2 = 0x01, 0x02, 0x20
_BIG, _TABLE = 0x01, 0x02
_ROOT_AT = 40
_NONE = 2**64 - 1

ReadPage = Callable[[int], bytes]


def missing_page(path: str, page_bytes: int, last_page: int) -> int | None:
    """The number of a page that the newest commit needs and the file does not have; None if there is none.

    :param last_page: the highest page number ever allocated, as LMDB reports it.
    :raises OSError: the file cannot be read.
    :raises ValueError: it is too short, and its contents make no sense.
    """
    size = os.stat(path).st_size
    if size >= (last_page + 1) * page_bytes:
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        pages = size // page_bytes
        needed = _needed(lambda number: os.pread(descriptor, page_bytes, number * page_bytes), pages)
        return next((number for number in needed if number >= pages), None)
    finally:
        os.close(descriptor)


def _needed(read: ReadPage, pages: int) -> Iterator[int]:
    """The last number of each extent of pages that the newest commit needs. Pages from `pages` on are not read."""
    yield 1
    if pages < 2:
        return
    seen: set[int] = set()
    waiting = [root for root in _roots(read) if root != _NONE]
    while waiting:
        number = waiting.pop()
        yield number
        if number >= pages:
            return
        if number in seen:
            raise ValueError(f"page {number} is used twice")
        seen.add(number)
        page = read(number)
        _, _, flags, lower, _ = _HEADER.unpack_from(page)
        if not flags & (_BRANCH | _LEAF):
            raise ValueError(f"page {number} is neither branch nor leaf")
        if flags & _LEAF2:
            continue
        for at in range(_HEADER.size, lower, 2):
            offset = int.from_bytes(page[at : at + 2], "little")
            size, kind, key = _NODE.unpack_from(page, offset)
            value = offset + _NODE.size + key
            if flags & _BRANCH:
                waiting.append(size | kind << 32)
            elif kind & _BIG:
                (first,) = _NUMBER.unpack_from(page, value)
                yield first + (_HEADER.size + size - 1) // len(page)
            elif kind & _TABLE:
                (root,) = _NUMBER.unpack_from(page, value + _ROOT_AT)
                if root != _NONE:
                    waiting.append(root)


def _roots(read: ReadPage) -> tuple[int, int]:
    """The root pages of the free list and of the main table, as the newer of the two meta pages has them."""
    metas = [_META.unpack_from(read(number), _HEADER.size) for number in (0, 1)]
    if any(meta[:2] != (_MAGIC, _VERSION) for meta in metas):
        raise ValueError("its meta pages are not those of LMDB 0.9")
    newest = max(metas, key=lambda meta: int(meta[7]))
    free, main = (int(_NUMBER.unpack_from(table, _ROOT_AT)[0]) for table in newest[4:6])
    return free, main
