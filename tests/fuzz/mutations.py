"""Mutations of files that know something about their content: bits, bytes, lines, and the tokens of JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

_TOKEN = re.compile(rb'"(?:[^"\\\n]|\\.)*"|-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null|[\[\]{},:]')
_MEMBER = re.compile(rb'"(?:[^"\\\n]|\\.)*":(?:"(?:[^"\\\n]|\\.)*"|-?[0-9.eE+]+|true|false|null|\{\}|\[\])')

NUMBERS = [
    *(b"0", b"-0", b"-1", b"1.0", b"1e2", b"1E400", b"-1e-400", b"01", b"NaN", b"Infinity", b"0.1000000000000000055"),
    *(b"%d" % (sign * (1 << bits) + add) for sign in (1, -1) for bits in (31, 53, 63, 64) for add in (-1, 0, 1)),
    b"9" * 400,
    b"9" * 5000,
]
STRINGS = [
    *(b'""', b'"\\u0000"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\ud83d\\ude80"', b'"\xff"', b'"\xed\xa0\x80"'),
    *(b'"../../etc/passwd"', b'"/etc/passwd"', b'"a/../b"', b'"."', b'"\\u001b[2J"', b'"\\""', b'"\\n"', b'"CON"'),
    *(b'"2026-13-45T99:99:99.999999Z"', b'"2026-11-20T12:00:00Z"', b'"9999-12-31T23:59:59.999999Z"'),
    *(b'"seal"', b'"undo"', b'"set"', b'"delete"', b'"batch"', b'"a"', b'"b"', b'"%b"' % (b"x" * 300)),
    *(b'"transactions"', b'"by"', b'"tx"'),
]
VALUES = [
    *NUMBERS,
    *STRINGS,
    *(b"{}", b"[]", b"true", b"null", b'{"a":1,"a":2}', b'{"a":1,"\\u0061":2}', b"[1,]", b"{,}", b"", b"//", b"'a'"),
    *(start * depth + end * depth for start, end in ((b"[", b"]"), (b'{"a":', b"}")) for depth in (250, 2000)),
    b"[" * 100_000,
]
BYTES = [
    *(b"\r", b"\r\n", b"\n", b"\n\n", b"\0", b"\0" * 64, b"\xff", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
    *(b" ", b"\t", b"\\", b'"', b"{", b"}"),
]

Mutation = Callable[[bytes, Random, Sequence[bytes]], bytes]


def _span(data: bytes, random: Random) -> tuple[int, int]:
    start = random.randint(0, len(data))
    return start, min(len(data), start + random.choice((1, 2, 8, 30, 200)))


def flip(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]


def insert(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    place, _ = _span(data, random)
    return data[:place] + random.choice(BYTES) + data[place:]


def delete(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    start, stop = _span(data, random)
    return data[:start] + data[stop:]


def duplicate(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    start, stop = _span(data, random)
    return data[:stop] + data[start:]


def truncate(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    return data[: random.randint(0, len(data))]


def splice(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    other = random.choice(others)
    start, stop = sorted((random.randint(0, len(other)), random.randint(0, len(other))))
    place, end = _span(data, random)
    return data[:place] + other[start:stop] + data[random.choice((place, end)) :]


def lines(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """Whole lines are doubled, dropped, swapped, or taken from another file."""
    found = data.splitlines(keepends=True) or [b""]
    place, other = random.randrange(len(found)), random.randrange(len(found))
    match random.randrange(4):
        case 0:
            found.insert(other, found[place])
        case 1:
            del found[place]
        case 2:
            found[place], found[other] = found[other], found[place]
        case _:
            found.insert(place, random.choice(random.choice(others).splitlines(keepends=True) or [b"\n"]))
    return b"".join(found)


def token(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """A token of JSON becomes another one, of the same kind or of any kind."""
    found = list(_TOKEN.finditer(data))
    if not found:
        return insert(data, random, others)
    old = random.choice(found)
    kind = NUMBERS if old[0][:1] in b"-0123456789" else STRINGS if old[0][:1] == b'"' else VALUES
    same = random.choice(found)[0]
    new = random.choice((random.choice(kind), random.choice(VALUES), same))
    return data[: old.start()] + new + data[old.end() :]


def member(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """A member of an object is doubled, with the same value or with another one, or is dropped."""
    found = list(_MEMBER.finditer(data))
    if not found:
        return insert(data, random, others)
    one = random.choice(found)
    name = one[0][: one[0].index(b'":') + 2]
    match random.randrange(3):
        case 0:
            return data[: one.start()] + data[one.end() :].removeprefix(b",")
        case 1:
            return data[: one.end()] + b"," + name + random.choice(VALUES) + data[one.end() :]
        case _:
            return data[: one.start()] + random.choice(found)[0] + b"," + data[one.start() :]


MUTATIONS: list[Mutation] = [flip, insert, delete, duplicate, truncate, splice, lines, token, token, member, member]


def mutate(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    """`data`, changed in one to four places. :param others: files to copy bytes from."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if data:
            data = random.choice(MUTATIONS)(data, random, others)
    return data
