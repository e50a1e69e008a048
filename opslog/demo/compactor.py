"""The demo's compaction process: compacts the store over and over, while everyone writes, until it is asked to stop.

python -m opslog.demo.compactor DIRECTORY
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import opslog
from opslog.demo.agent import SETTINGS
from opslog.demo.workers import STOP, Conductor, Status

_PAUSE_SECONDS = 0.1
# One compaction in this many merges the whole snapshot into one run.
_FULL_EVERY = 10


def main(directory: Path) -> None:
    conductor = Conductor()
    compactions = rounds = 0
    with opslog.open(directory / "store", agent="compactor", settings=SETTINGS) as store:
        conductor.report(Status("running"))
        while not conductor.says(STOP, _PAUSE_SECONDS):
            rounds += 1
            with suppress(opslog.LockedError):  # an agent's automatic compaction is running
                compactions += store.compact(full=rounds % _FULL_EVERY == 0).number is not None
            conductor.report(Status("running", compactions=compactions))
    conductor.report(Status("done", compactions=compactions))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
