"""Fuzzing for as long as wanted: `make fuzz MINUTES=10`.

Each input is a real file or one from the corpus, changed at random. The seed of the random numbers is printed, so that
a run can be repeated. An input that fails is made smaller and written to build/fuzz/<target>/. Move it to
tests/fuzz/corpus/<target>/ together with the fix.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tests.fuzz.mutations import mutate
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")
FOUND = Path(__file__).parents[2] / "build" / "fuzz"

SECONDS_MAX = 20
SMALLER_SECONDS = 5
MEMORY_MAX = 4 << 30


class Hang(BaseException):
    """An input took too long. This is not an `Exception`, so that no handler takes it for an error of its own."""


@contextmanager
def limited() -> Iterator[None]:
    def hang(*args: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS_MAX)
    try:
        yield
    finally:
        signal.alarm(0)


def failure(target: str, data: bytes) -> str | None:
    """How a target fails on these bytes: the error and the last line of code. None if it does not fail."""
    try:
        with limited():
            TARGETS[target].check(data)
    except (Exception, Hang) as error:  # noqa: BLE001  (any of them is what we are looking for)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {error!s:.300}"
    return None


def smaller(target: str, data: bytes, how: str) -> bytes:
    """A part of the data that fails in the same way. It searches for some seconds."""
    place = how.partition(": ")[0]
    step = len(data) // 2
    end = time.monotonic() + SMALLER_SECONDS
    while step:
        start = 0
        while start < len(data) and time.monotonic() < end:
            shorter = data[:start] + data[start + step :]
            if (failure(target, shorter) or "").startswith(place):
                data = shorter
            else:
                start += step
        step //= 2
    return data


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    parser.add_argument("targets", nargs="*", default=list(TARGETS))
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    print(f"seed {options.seed}, {options.minutes:g} minutes, {len(options.targets)} targets", flush=True)
    random = Random(options.seed)
    seeds = {
        target: [*TARGETS[target].seeds(), *(path.read_bytes() for path in sorted((CORPUS / target).glob("*")))]
        for target in options.targets
    }
    inputs: Counter[str] = Counter()
    found: dict[str, str] = {}
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        for target in options.targets:
            data = mutate(random.choice(seeds[target]), random, seeds[target])
            inputs[target] += 1
            how = failure(target, data)
            place = f"{target}: {(how or '').partition(': ')[0]}"
            if how is not None and place not in found:
                found[place] = how
                data = smaller(target, data, how)
                path = FOUND / target / hashlib.sha256(data).hexdigest()[:12]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                print(f"{target}: {how}\n    {path} {data[:200]!r}", flush=True)
    for target in options.targets:
        print(f"{target:24} {inputs[target]:8} inputs")
    print(f"{inputs.total()} inputs, {len(found)} failures, peak memory {_peak_mib()} MiB, seed {options.seed}")
    return 1 if found else 0


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
