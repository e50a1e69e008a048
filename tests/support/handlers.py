"""Where the handler of a signal can come into a call, one place after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Place(NamedTuple):
    """The `number` of a place among those of one call, and the function it is in."""

    number: int
    where: str


def at_places(call: Callable[[], T], handler: Callable[[Place], None]) -> T:
    """What `call` returns; meanwhile the handler is called, in this thread, where a function of opslog begins, and
    where it has called one that is not written in Python. What it raises is raised there."""
    number = 0

    def at(frame: FrameType, event: str, function: object) -> None:
        nonlocal number
        name = frame.f_globals.get("__name__", "")
        if event == "call" and frame.f_code.co_name == "<genexpr>":
            return  # it may be about to be thrown away, where nothing comes
        if event in ("call", "c_return") and name.startswith("opslog"):
            number += 1
            handler(Place(number, f"{name}.{frame.f_code.co_name}"))

    sys.setprofile(at)
    try:
        return call()
    finally:
        sys.setprofile(None)
