"""One target with coverage feedback, by atheris: ``python -m tests.fuzz.guided TARGET [options of libFuzzer]``.

It changes inputs by the same mutations, so that they stay close to real files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["opslog"]):
    from tests.fuzz.mutations import mutate
    from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")


def main() -> None:
    name = sys.argv.pop(1)
    target = TARGETS[name]
    seeds = [*target.seeds(), *(path.read_bytes() for path in sorted((CORPUS / name).glob("*")))]

    def change(data: bytes, size_max: int, seed: int) -> bytes:
        random = Random(seed)
        return mutate(data or random.choice(seeds), random, seeds)[:size_max]

    # libFuzzer adds what it finds to the first directory it is given; the corpus is only read.
    found = Path(__file__).parents[2] / "build" / "fuzz" / name
    found.mkdir(parents=True, exist_ok=True)
    kept = [str(CORPUS / name)] if (CORPUS / name).is_dir() else []
    atheris.Setup([sys.argv[0], *sys.argv[1:], str(found), *kept], target.check, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
