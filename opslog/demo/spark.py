"""The last act: Spark, which took no part, replays the store from its files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import orjson

from opslog.cli.engines import spark_missing
from opslog.demo.workers import DemoError
from opslog.environment import REAL

# The longest that the replay may take. On a machine that is not busy, it takes half a minute.
_SECONDS = 600.0
_TICK_SECONDS = 0.2

# The name of its state among those of the agents.
STATE = "Spark"


def replay(directory: Path, busy: Callable[[str], None] = lambda sentence: None) -> str | None:
    """Let Spark replay the finished store, and store its state beside those of the agents.

    :param busy: called again and again with a sentence about the progress.
    :returns: the reason why it was left out, if it was.
    :raises DemoError: it failed.
    """
    missing = spark_missing(None)
    if missing is not None:
        return missing
    errors, lines = directory / "errors" / "spark.txt", directory / "replayed"
    command = [sys.executable, "-m", "opslog.spark", "replay", str(directory / "store"), "--to", str(lines)]
    begun = REAL.monotonic()
    with errors.open("wb") as output, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=output) as process:
        try:
            while (passed := REAL.monotonic() - begun) < _SECONDS:
                busy(f"Spark {_doing(lines)}: {passed:.0f} s")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_TICK_SECONDS)
                    break
            else:
                raise DemoError(f"Spark did not replay the store within {_SECONDS:.0f} s")
        finally:
            process.kill()
    if process.returncode:
        raise DemoError(f"Spark could not replay the store:\n{errors.read_text(errors='replace')[-2000:]}")
    with (directory / "states" / f"{STATE}.jsonl").open("wb") as state:
        for part in sorted(lines.iterdir()):
            for line in part.read_bytes().splitlines():
                record = orjson.loads(line)
                state.write(orjson.dumps([record["id"], record["data"]]) + b"\n")
    return None


def _doing(lines: Path) -> str:
    """What Spark is doing, judged by its files: it writes into a directory beside the final one, which appears only at
    the end."""
    if lines.exists():
        return "is ending"
    return "replays the store" if any(lines.parent.glob(f".{lines.name}.*")) else "is starting"
