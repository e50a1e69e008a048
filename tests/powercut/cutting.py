"""Cuts the power at every point of a run, and judges what is left."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.powercut.disk import EXTREMES, AtRandom, Chooser, Disk, Event, Image
from tests.powercut.judging import Logs, Written, judge, shown, survivors, write_out


class Cutter:
    """Judges everything that a power cut may leave of a run, each image once.

    :ivar images: how many images there were.
    :ivar points: at how many moments the power was cut.
    """

    def __init__(self, world: Path, scratch: Path, before: Logs | None = None) -> None:
        self.images = self.points = 0
        self._disk, self._written = Disk(world), Written(before)
        self._scratch = scratch
        self._seen: set[int] = set()

    def apply(self, event: Event) -> None:
        """Carry out one more action before the power is cut."""
        self._disk.apply(event)
        self._written.apply(event)

    def cut(self, choosers: Iterable[Chooser], moment: object) -> None:
        """Judge what a cut may leave now, each way of choosing that. :param moment: for the message."""
        self.points += 1
        for chooser in choosers:
            image = {path: data for path, data in self._disk.after_cut(chooser).items() if not _is_lock(path)}
            # The promises are part of the key: the same files may be enough before an acknowledgement, and not after
            # it.
            key = hash((tuple(sorted(image.items(), key=lambda item: item[0])), self._written.key))
            if key not in self._seen:
                self._seen.add(key)
                self._judge(image, moment)

    def at_random(self, events: Iterable[Event], seed: object, *, each: int, share: float = 1.0) -> None:
        """The extremes and `each` random outcomes at each point, or at a share of all points."""
        rng = random.Random(f"cuts {seed}")
        for number, event in enumerate(events):
            self.apply(event)
            if rng.random() < share:
                self.cut([*EXTREMES, *(AtRandom(rng) for _ in range(each))], f"{number}: {event}")

    def leave(self, place: Path, seed: object) -> Logs:
        """Write one random outcome of a cut now to a directory. Returns the logs that are left there."""
        write_out(self._disk.after_cut(AtRandom(random.Random(f"left {seed}"))), place)
        return survivors(place, self._written)

    def _judge(self, image: Image, moment: object) -> None:
        self.images += 1
        place = self._scratch / "cut"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        write_out(image, place)
        try:
            judge(place, self._written)
        except BaseException as error:
            error.add_note(f"the power was cut after {moment}\n{shown(image)}")
            raise


def _is_lock(path: str) -> bool:
    """The content of a lock file only serves messages. `tests/powercut/test_powercut.py` has a test of it."""
    return "/locks/" in path
