"""Types that threads decode, analysed by msgspec in advance.

msgspec analyses a type, and the types in it, at its first use. It does so in steps, and another thread may run between
two of them. If that thread uses the same type, it finds a half-done analysis, and the process ends with a segmentation
fault (msgspec 0.22). So modules that decode or convert without a decoder made at import prepare their types at import.
"""

from __future__ import annotations

from typing import Any

import msgspec


def prepare(*types: Any) -> None:
    """Have msgspec analyse these types, and those in them, now. From then on any thread may decode them.

    Call it from one thread at a time: at import, or under a lock.

    :raises TypeError: msgspec knows no such type.
    """
    for each in types:
        msgspec.json.Decoder(each)
