"""Simulate for some time, or replay one seed.

python -m tests.simulation --minutes 30 --workers 2     seeds from a new number on, which it prints
python -m tests.simulation --seed 658                   one run; if it fails, made as small as possible, with its story
python -m tests.simulation --breakages 200              the table of deliberate breakages, each in 200 seeds
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time

from tests.simulation.many import report, simulate
from tests.simulation.scenario import random_scenario, run
from tests.simulation.shrinking import shrink, story


def replay(seed: int) -> int:
    outcome = run(random_scenario(seed), keep_timeline=True)
    if outcome.violation is None:
        print(story(outcome))
        return 0
    print(f"seed {seed} fails: {outcome.violation}\nmaking it smaller ...", flush=True)
    print(story(shrink(outcome)))
    print(f"replay it with: make simulate SEED={seed}")
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long")
    parser.add_argument("--workers", type=int, default=1, help="how many processes")
    parser.add_argument("--seed", type=int, help="replay this one alone")
    parser.add_argument("--first", type=int, help="the first seed; a new one each time where it is not given")
    parser.add_argument("--breakages", type=int, metavar="SEEDS", help="print the table of deliberate breakages")
    asked = parser.parse_args()
    if asked.seed is not None:
        return replay(asked.seed)
    if asked.breakages is not None:
        from tests.simulation.every_breakage import table

        for line in table(asked.breakages):
            print(line, flush=True)
        return 0
    first = asked.first if asked.first is not None else secrets.randbelow(10**12)
    print(f"simulating from seed {first} on, for {asked.minutes:g} minutes, in {asked.workers} processes", flush=True)
    started = time.monotonic()
    totals = simulate(first, 60 * asked.minutes, asked.workers)
    print("\n".join(report(totals, time.monotonic() - started)))
    if totals.failed:
        print(f"failed: {', '.join(map(str, sorted(totals.failed)))}", flush=True)
        return replay(min(totals.failed))
    print("all invariants hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
