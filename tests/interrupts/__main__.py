"""Interrupt every call at every place, or replay one case.

python -m tests.interrupts --workers 2                                       all of it: hours
python -m tests.interrupts --calls set --settings memory-fsync               some of it
python -m tests.interrupts --replay set/memory-fsync/after/17/MemoryError    one case
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from tests.interrupts.async_running import ThreadCase, run_thread
from tests.interrupts.calls import CALLS
from tests.interrupts.handlers import HANDLERS
from tests.interrupts.places import Kind
from tests.interrupts.running import Case, Runner
from tests.interrupts.stage import SETTINGS_OF_ALL, Setting
from tests.interrupts.watching import EXCEPTIONS

Unit = tuple[str, Setting, Kind]

_UNIT_SECONDS = 7200.0


def sweep(unit: Unit, events: list[str], every: int, hangs: int) -> str:
    """Run all cases of a call; returns a line of figures."""
    call, setting, kind = unit
    runner = Runner()
    places = runner.count(call, setting, kind)
    started, lost, cases, bad = time.monotonic(), 0, 0, 0
    for number, event in product(range(1, places + 1, every), events):
        case = Case(call, str(setting), kind, number, event)
        result = runner.run(case)
        cases += 1
        lost += result.is_lost
        if result.problems:
            bad += 1
            print(f"{case}\t{result.where}\t{'; '.join(result.problems)}", flush=True)
            hangs -= result.hangs
            if not hangs:
                print("given up: too many cases that do not end", flush=True)
                break
    runner.end()
    figures = f"{places} places, {cases} cases, {bad} bad, {lost} to be reopened, {time.monotonic() - started:.1f} s"
    return f"# {call}, {setting}, {kind}: {figures}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interrupts", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", nargs="*", default=[call.name for call in CALLS])
    parser.add_argument("--settings", nargs="*", default=[str(setting) for setting in SETTINGS_OF_ALL])
    parser.add_argument("--kinds", nargs="*", default=["after", "instead"])
    parser.add_argument("--events", nargs="*", default=[*EXCEPTIONS, *HANDLERS])
    parser.add_argument("--every", type=int, default=1, help="take one place of so many")
    parser.add_argument("--hangs", type=int, default=3, help="give a call up after so many cases that do not end")
    parser.add_argument("--workers", type=int, default=1, help="how many processes")
    parser.add_argument("--replay", type=Case.of, help="one case")
    parser.add_argument(
        "--replay-thread", type=ThreadCase.of, help="one case of a thread, about: threads run as they like"
    )
    parser.add_argument("--unit", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.replay or asked.replay_thread:
        runner = Runner()
        print(runner.run(asked.replay) if asked.replay else run_thread(runner, asked.replay_thread))
        runner.end()
        return 0
    settings = [setting for setting in SETTINGS_OF_ALL if str(setting) in asked.settings]
    units: list[Unit] = list(product(asked.calls, settings, asked.kinds))
    if asked.unit:
        for unit in units:
            print(sweep(unit, asked.events, asked.every, asked.hangs), flush=True)
        return 0

    def run(unit: Unit) -> list[str]:
        """Runs in a process of its own, so that a case that never ends does not hold up the others."""
        call, setting, kind = unit
        command = [sys.executable, "-m", "tests.interrupts", "--unit", "--calls", call, "--settings", str(setting)]
        command += ["--kinds", kind, "--events", *asked.events]
        command += ["--every", str(asked.every), "--hangs", str(asked.hangs)]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_UNIT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return [f"{unit}: does not end"]
        lines = done.stdout.splitlines()
        if done.returncode:
            lines.append(f"{unit}: exit status {done.returncode}")
        print("\n".join(lines), flush=True)
        return lines

    started = time.monotonic()
    with ThreadPoolExecutor(asked.workers) as pool:
        lines = [line for lines in pool.map(run, units) for line in lines]
    found = Counter(line.partition("\t")[0].split("/")[0] for line in lines if not line.startswith("#"))
    cases = sum(int(line.split(" cases")[0].split()[-1]) for line in lines if line.startswith("#"))
    print(f"{cases} cases in {time.monotonic() - started:.0f} s; failed: {dict(found) or 'none'}")
    return bool(found)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # some cases leave threads that never end
