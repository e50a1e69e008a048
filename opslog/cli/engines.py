"""Chooses the engine that replays a store: one process of Python, or Spark, which starts slowly but uses all cores."""

from __future__ import annotations

import math
import os
import re
from importlib.util import find_spec
from typing import Literal, NamedTuple

from opslog.backends import Backend
from opslog.errors import OpslogError
from opslog.kernel import IS_USED
from opslog.log.survey import at_cut, list_logs
from opslog.snapshot.manifests import ManifestStore

Engine = Literal["auto", "python", "spark"]


class Speed(NamedTuple):
    """How fast the engines are, for stores where most of what is written is kept.

    :ivar python: the seconds that one process of Python takes for a gigabyte.
    :ivar spark: the seconds that Spark takes for a gigabyte on one core, once it runs.
    """

    python: float
    spark: float


# Measured on 2 cores (docs/spark.md, "Sizing").
WITH_KERNEL = Speed(python=1.8, spark=16.0)
WITHOUT_KERNEL = Speed(python=13.0, spark=23.0)
SPEED = WITH_KERNEL if IS_USED else WITHOUT_KERNEL
# The time that Spark takes for an almost empty store: to start, and to start its Python workers.
_START_SECONDS = 10.0

_GB = 1e9
# One process replays stores of up to this fraction of the machine's memory, since it may have to hold everything.
_MEMORY = 0.5


class Choice(NamedTuple):
    """:ivar engine: "python" or "spark".
    :ivar why: the reason, for a person.
    """

    engine: Literal["python", "spark"]
    why: str


def break_even(cores: float, memory: float, speed: Speed) -> float:
    """The size in bytes from which on Spark is faster, or has to be used.

    :param cores: the number of cores that Spark has.
    :param memory: of this machine, in bytes.
    """
    gained = speed.python - speed.spark / cores
    faster = _START_SECONDS / gained * _GB if gained > 0 else math.inf
    return min(faster, memory * _MEMORY)


def choose(size: int, cores: float, memory: float, missing: str | None, speed: Speed) -> Choice:
    """Choose the engine.

    :param size: the number of bytes to read.
    :param missing: why Spark cannot be used; None: it can.
    """
    limit = break_even(cores, memory, speed)
    if size < limit:
        return Choice("python", f"{_shown(size)} to read, and Spark is worth its start from {_shown(limit)} on")
    many = f"{_shown(size)} to read, where Spark is worth its start from {_shown(limit)} on"
    return Choice("python", f"{many}, but {missing}") if missing else Choice("spark", many)


def bytes_to_read(backend: Backend) -> int:
    """The bytes of the snapshot and of the logs after it, which make the newest state. Costs two listings."""
    manifest = ManifestStore(backend).newest()
    found = list_logs(backend, manifest, at_cut(manifest))
    return found.log_bytes + found.snapshot_bytes


def cores_of(master: str | None) -> float:
    """The number of cores of a Spark master; infinity, if it runs on other machines."""
    match = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master or "local[*]")
    if match is None:
        return math.inf
    return (os.cpu_count() or 1) if match[1] == "*" else int(match[1] or 1)


def spark_missing(master: str | None) -> str | None:
    """Why Spark cannot be used here; None if it can."""
    if find_spec("pyspark") is None:
        return "Spark is not installed: pip install 'opslog[spark]'"
    if not (master or "").startswith("sc://"):
        from opslog.spark.java import java_home

        try:
            java_home()
        except OpslogError as error:
            return str(error)
    return None


def _shown(size: float) -> str:
    return f"{size / _GB:.1f} GB" if size >= _GB / 10 else f"{math.ceil(size / 1e6)} MB"
