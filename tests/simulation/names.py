"""Names and ids that a store must accept although they look like something else: a temporary file, a segment, another
agent.

Tests with names like ``agent-1`` alone never find code that takes a name for what it resembles.
"""

from __future__ import annotations

import random
import string

_FIRST = string.ascii_letters + string.digits
_ALLOWED = f"{_FIRST}._-"

# Allowed names, each of which resembles a file or a folder of a store.
_LOOKALIKES = (
    "build.tmp-1",
    "x.tmp-0123456789abcdef",
    "a..b",
    "0..",
    "00000000000000000001.jsonl",
    "00000000000000000002",
    "part-00000.index",
    "locks",
    "manifests",
    "removed",
    "staging",
    "compaction.lock",
    "archive.jsonl",
    "a.lease",
    "Z" * 128,
)

# Allowed ids: empty, like paths, with control characters, beyond the first plane, two forms of one letter, long.
_IDS = ("", "..", "a/b/../c", "d.tmp-1", "D0", "\n", "\x00", "\x7f", "ß", "\U0001d11e", "e\u0301", "\u00e9", "d" * 3000)


def random_names(choices: random.Random, count: int) -> list[str]:
    """Different names of agents or periods, from the whole allowed alphabet. Some differ only in case."""
    names: dict[str, None] = {}
    while len(names) < count:
        kind = choices.random()
        if kind < 0.5:
            name = choices.choice(_LOOKALIKES)
        elif kind < 0.7 and names:
            name = choices.choice(list(names)).swapcase()
        else:
            name = choices.choice(_FIRST) + "".join(choices.choices(_ALLOWED, k=choices.choice([0, 1, 5, 30])))
        names[name] = None
    return list(names)


def random_ids(choices: random.Random, count: int) -> list[str]:
    """Different document ids: plain ones, and ones that few programs expect."""
    odd = choices.sample(_IDS, min(len(_IDS), count // 2))
    return [*odd, *(f"d{number}" for number in range(count - len(odd)))]
