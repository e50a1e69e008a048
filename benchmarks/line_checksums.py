"""The cost that a checksum in each line of a log would have: ``python -m benchmarks.line_checksums``.

Compared are plain lines, lines with a CRC-32 of their own, with an XXH3 of 64 bits, and with a CRC-32 that runs through
the segment: each line has that of all bytes before it, so that a reader of many lines computes one, over all of
them. `docs/decisions/checksums.md` rests on the printed figures.
"""

from __future__ import annotations

import argparse
import gzip
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import orjson

from benchmarks.material import line
from opslog.format.commits import Batch, Commit, DeleteOp, SetOp, decode_commits, encode_commit

HISTORY = Path(__file__).parents[2] / "shared" / "data" / "httpx-history.jsonl.gz"


class Kind(NamedTuple):
    """:ivar write: the lines of commits; `load`: the commits of lines, checked."""

    write: Callable[[Sequence[Commit]], bytes]
    load: Callable[[bytes], list[Commit]]


def _plain(commits: Sequence[Commit]) -> bytes:
    return b"".join(map(encode_commit, commits))


def _load_plain(lines: bytes) -> list[Commit]:
    return decode_commits(lines, "p", 0)


def _own(digest: Callable[[bytes], bytes], length: int) -> Kind:
    """Each line ends with a checksum of the bytes before it."""
    tail = length + len(b',"sum":""}')

    def write(commits: Sequence[Commit]) -> bytes:
        bodies = [encode_commit(commit)[:-2] for commit in commits]
        return b"".join([b'%b,"sum":"%b"}\n' % (body, digest(body)) for body in bodies])

    def load(lines: bytes) -> list[Commit]:
        for one in lines.split(b"\n")[:-1]:
            if one[-length - 2 : -2] != digest(one[:-tail]):
                raise ValueError(one)
        return decode_commits(lines, "p", 0)

    return Kind(write, load)


def _crc(data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(data)


def _write_running(commits: Sequence[Commit]) -> bytes:
    value = 0
    lines: list[bytes] = []
    for commit in commits:
        body = encode_commit(commit)[:-2]
        value = zlib.crc32(body, value)
        end = b',"sum":"%08x"}\n' % value
        value = zlib.crc32(end, value)
        lines += (body, end)
    return b"".join(lines)


def _load_running(lines: bytes) -> list[Commit]:
    body, value = lines[: -len(b',"sum":"00000000"}\n')], lines[-11:-3]
    if _crc(body) != value:
        raise ValueError("go through the lines to find the first that is wrong")
    return decode_commits(lines, "p", 0)


def kinds() -> dict[str, Kind]:
    found = {"none": Kind(_plain, _load_plain), "CRC-32 of the line": _own(_crc, 8)}
    try:
        import xxhash
    except ModuleNotFoundError:
        pass
    else:
        found["XXH3 of the line"] = _own(lambda data: xxhash.xxh3_64_hexdigest(data).encode(), 16)
    return found | {"CRC-32, running": Kind(_write_running, _load_running)}


def small(count: int) -> list[Commit]:
    """The documents of the other benchmarks."""
    return _load_plain(b"".join(map(line, range(count))))


def history(count: int) -> list[Commit]:
    """The commits of a real program's history, one file or many in each."""
    with gzip.open(HISTORY) as file:
        found = [orjson.loads(text) for text in file.readlines()[:count]]
    return [
        Batch("2026-11-20T12:00:00.000000Z", clock, "a", [_op(op) for op in commit["ops"]])
        for clock, commit in enumerate(found, start=1)
    ]


def _op(op: dict[str, object]) -> SetOp | DeleteOp:
    id = str(op["id"])
    return SetOp(id, msgspec.Raw(orjson.dumps(op["data"]))) if op["op"] == "set" else DeleteOp(id)


def measure(name: str, commits: Sequence[Commit], rounds: int) -> None:
    """The quickest of many short rounds, the kinds in turn: all slower rounds were disturbed by other processes."""
    works: dict[tuple[str, str], Callable[[], object]] = {}
    sizes: dict[str, float] = {}
    for kind, (write, load) in kinds().items():
        lines = write(commits)
        assert load(lines) == list(commits)
        sizes[kind] = len(lines) / len(commits)
        works[kind, "write"] = partial(write, commits)
        works[kind, "load"] = partial(load, lines)
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for key, work in works.items():
            begin = time.perf_counter()
            work()
            best[key] = min(best[key], time.perf_counter() - begin)
    print(f"{name}: {len(commits)} lines of {sizes['none']:.0f} bytes")
    print(f"    {'per line':20}{'write':>10}{'load':>10}{'bytes':>8}")
    for kind, size in sizes.items():
        spent = [best[kind, way] / len(commits) * 1e9 for way in ("write", "load")]
        print(f"    {kind:20}{spent[0]:>7.0f} ns{spent[1]:>7.0f} ns{size:>8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="only to see that it runs")
    count, rounds = (50, 1) if parser.parse_args().small else (500, 2000)
    measure("small documents", small(count), rounds)
    if HISTORY.exists():
        measure("a history of files", history(count), rounds)


if __name__ == "__main__":
    main()
