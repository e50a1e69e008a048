"""A real standalone cluster of Spark: a master and workers, each a process of its own on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from opslog.spark.java import java_home
from tests.support.waiting import until

HOME = Path(pyspark.__file__).parent


@contextmanager
def _running(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Spark that writes its output to a file. The process and its children are gone after the block."""
    environment = {
        **os.environ,
        "JAVA_HOME": java_home(),
        "SPARK_HOME": str(HOME),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *command], env=environment, stdout=output, stderr=output
        )
        try:
            yield process
        finally:
            process.terminate()  # the executors of a worker end then
            process.wait()


def _logged(process: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    """Wait until a process has logged something that matches."""
    found: list[str] = []

    def check() -> bool:
        assert process.poll() is None, log.read_text()
        found.extend(re.findall(pattern, log.read_text()))
        return bool(found)

    until(check)
    return found[0]


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """The URL of a running master with this many workers of one core each.

    Each worker is a host of its own. Otherwise Spark would never run a task on one worker while another one is slow
    with it.
    """
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        log = folder / "master.log"
        ports = ("--port", "0", "--webui-port", "0")
        master = stack.enter_context(_running(log, f"{deploy}.master.Master", "--host", "127.0.0.1", *ports))
        url = _logged(master, log, r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            log = folder / f"worker-{number}.log"
            size = ("--cores", "1", "--memory", "700m", "--work-dir", str(folder / f"work-{number}"))
            host = ("--host", f"127.0.0.{number + 2}")
            worker = stack.enter_context(_running(log, f"{deploy}.worker.Worker", *host, *ports, *size, url))
            _logged(worker, log, "Successfully registered with master")
        yield url
