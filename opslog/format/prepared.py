"""Types that threads decode: msgspec works them out beforehand.

msgspec works out a type, and the types in it, when it is first used, in steps between which another thread may have
its turn. One that uses the same type then finds it half-done, and the process ends with a segmentation fault (msgspec
0.22). So whoever decodes or converts without a decoder that was made at import prepares its types at import.
"""

from __future__ import annotations

from typing import Any

import msgspec


def prepare(*types: Any) -> None:
    """Have msgspec work out these types, and those in them, now. From then on any thread may decode them.

    To be called by one thread at a time: at import, or under a lock.

    :raises TypeError: msgspec knows no such type.
    """
    for each in types:
        msgspec.json.Decoder(each)
