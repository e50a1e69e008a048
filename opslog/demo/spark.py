"""The last act: Spark, which took no part, replays the store from its files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson

from opslog.cli.engines import spark_missing
from opslog.demo.workers import DemoError

# How long it may take; on a machine that is not busy, half a minute.
_SECONDS = 600.0

# Under this name its state is among those of the agents.
STATE = "Spark"


def replay(directory: Path) -> str | None:
    """Let Spark replay the finished store, and note the state beside those of the agents.

    :returns: why it was left out, if it was.
    :raises DemoError: it failed.
    """
    missing = spark_missing(None)
    if missing is not None:
        return missing
    errors, lines = directory / "errors" / "spark.txt", directory / "replayed"
    command = [sys.executable, "-m", "opslog.spark", "replay", str(directory / "store"), "--to", str(lines)]
    with errors.open("wb") as output:
        try:
            code = subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=output, check=False, timeout=_SECONDS
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"Spark did not replay the store within {_SECONDS:.0f} s") from error
    if code:
        raise DemoError(f"Spark could not replay the store:\n{errors.read_text(errors='replace')[-2000:]}")
    with (directory / "states" / f"{STATE}.jsonl").open("wb") as state:
        for part in sorted(lines.iterdir()):
            for line in part.read_bytes().splitlines():
                record = orjson.loads(line)
                state.write(orjson.dumps([record["id"], record["data"]]) + b"\n")
    return None
