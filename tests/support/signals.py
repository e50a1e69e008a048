"""The handler of a signal at every place of a call, one after the other and not by luck."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


def at_each(call: Callable[[int], Callable[[], T]], handler: Callable[[], None]) -> Iterator[tuple[int, T | Exception]]:
    """Make a call again and again, with the handler at one place after the other, until there is no further place.

    :param call: prepares the call of a number, and gives it. :param handler: called in the same thread, at places in
        opslog's own code where CPython would run the handler of a signal: where a function begins, and where a built-in
        one has returned. What it raises is raised there.
    :returns: per place its number, and what the call returned or raised.
    """
    for number in itertools.count(1):
        prepared, places = call(number), 0

        def at(frame: FrameType, event: str, argument: object, number: int = number) -> None:
            nonlocal places
            if event in ("call", "c_return") and frame.f_globals.get("__name__", "").startswith("opslog"):
                places += 1
                if places == number:
                    handler()

        outcome: T | Exception
        gc.disable()  # what comes in between in a finalizer, Python ignores
        sys.setprofile(at)
        try:
            outcome = prepared()
        except Exception as error:  # noqa: BLE001  (it is what the caller looks at)
            outcome = error
        finally:
            sys.setprofile(None)
            gc.enable()
        if places < number:
            assert number > 10, "there are more places in any call"
            return
        yield number, outcome
