"""Whole jobs, for the command line: each starts Spark, does one thing, and ends what it started."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from opslog.backends import open_backend
from opslog.bulk.replay import Format
from opslog.environment import REAL
from opslog.errors import UsageError
from opslog.history import Point
from opslog.spark.errors import unwrap
from opslog.spark.read.output import write_state
from opslog.spark.read.planning import find_recent, survey_state
from opslog.spark.read.replaying import replay
from opslog.spark.sessions import session

# Begins to show a step of this name. Returns a function to call with (bytes done, bytes to do); None: nobody watches.
Step = Callable[[str], Callable[[int, int], None] | None]

_POLL_SECONDS = 0.2
_STOP_SECONDS = 5.0


def replay_into(
    url: str,
    directory: Path,
    form: Format,
    *,
    as_of: Point | None = None,
    master: str | None = None,
    variant: bool = False,
    step: Step | None = None,
) -> int:
    """Replay a store into a directory, which every machine of Spark has to see. Returns the number of documents.

    :param step: as for `running`.
    """
    with closing(open_backend(url, create=False)) as backend:
        found = survey_state(backend, as_of)
        clocks = [found.manifest.clock]
        if as_of is None:
            clocks += [find_recent(backend, log, 1).clock for log in found.logs]
    size = found.log_bytes + found.snapshot_bytes
    with running("opslog replay", master, size, step) as spark:
        return write_state(
            replay(spark, url, as_of=as_of),
            directory,
            form,
            REAL,
            settings=found.manifest.settings,
            clock=max(clocks),
            bytes=size,
            variant=variant,
        )


@contextmanager
def running(name: str, master: str | None, size: int = 0, step: Step | None = None) -> Iterator[SparkSession]:
    """A session of Spark. If this call starts it, it ends with the block. All of Java's output on stderr is hidden,
    because failures are exceptions.

    :param size: the bytes that each step of Spark processes.
    :param step: begins to show a step of this name; see `Step`.
    :raises OpslogError: raised by a task or a data source.
    :raises UsageError: Spark did not start.
    """
    existed = SparkSession.getActiveSession() is not None
    config: dict[str, str | bool | int] = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.log.level": "OFF",
    }
    before = _children()
    with _no_logging():
        with nullcontext() if existed else _starting(before), _no_interrupt_ignored():
            spark = session(name, master=master, config=config)
        try:
            with _interruptible(), _watched(spark, size, step):
                yield spark
        except PySparkException as error:
            raise unwrap(error) from None
        finally:
            if not existed:
                _stop(spark, before)


@contextmanager
def _no_logging() -> Iterator[None]:
    """Hide a log entry of py4j. An interrupt ends the call that waits for Java, and py4j would log its traceback."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Restore Python's own handler of Ctrl-C, if this thread can set one. PySpark's handler asks Java to cancel all
    jobs, over the connection on which the interrupted call still waits."""
    try:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
    except ValueError:  # this is not the main thread, which alone gets signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _no_interrupt_ignored() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of the block, if Ctrl-C raised one inside it that was ignored. Starting Spark
    forks, and Python ignores exceptions in the functions that it calls around a fork."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    was_interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal was_interrupted
        was_interrupted = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:  # PySpark may have set its own
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if was_interrupted:
        raise KeyboardInterrupt


@contextmanager
def _starting(before: frozenset[int]) -> Iterator[None]:
    """Send the stderr of processes that start in this block, and of their children, to a hidden file. If the block
    fails, end these processes, because a Java that nobody has called yet would wait for ever.

    :param before: the child processes before the block.
    :raises UsageError: Spark did not start. It has the first error that was written, in place of Spark's own error.
    """
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        except PySparkException as error:
            file.seek(0)
            lines = file.read().decode(errors="replace").strip().splitlines()
            reason = next((line for line in lines if re.search("error|exception", line, re.IGNORECASE)), str(error))
            raise UsageError(f"Spark did not start: {reason.strip()}") from None
        except BaseException:
            _kill_but(before)
            raise
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)


def _stop(spark: SparkSession, before: frozenset[int]) -> None:
    """End Spark. After an error or Ctrl-C Spark waits for its tasks; this waits a limited time, and then kills Java."""
    if sys.exc_info()[0] is None:
        spark.stop()
        return

    def stop() -> None:
        with suppress(Exception):
            spark.stop()

    stopping = threading.Thread(target=stop, name="opslog-spark-stop", daemon=True)
    stopping.start()
    stopping.join(_STOP_SECONDS)
    if stopping.is_alive():
        _kill_but(before)


def _kill_but(before: frozenset[int]) -> None:
    for child in _children() - before:
        os.kill(child, signal.SIGKILL)


def _children() -> frozenset[int]:
    """The child processes of this one; none, if the system does not report them as Linux does."""
    lists = Path("/proc/self/task").glob("*/children")
    return frozenset(int(child) for path in lists for child in path.read_text(encoding="ascii").split())


@contextmanager
def _watched(spark: SparkSession, size: int, step: Step | None) -> Iterator[None]:
    """Show Spark's progress. A server of Spark Connect does not report it."""
    if step is None or not hasattr(spark, "_jsparkSession"):
        yield
        return
    tracker, ended = spark.sparkContext.statusTracker(), threading.Event()

    def watch() -> None:
        advances: dict[int, Callable[[int, int], None] | None] = {}
        while not ended.wait(_POLL_SECONDS):
            with suppress(Py4JError, OSError):
                for stage in sorted(tracker.getActiveStageIds()):
                    info = tracker.getStageInfo(stage)
                    if info is None or not info.numTasks:
                        continue
                    if stage not in advances:
                        advances[stage] = step(f"replaying, step {len(advances) + 1}")
                    if (advance := advances[stage]) is not None:
                        advance(size * info.numCompletedTasks // info.numTasks, size)

    thread = threading.Thread(target=watch, name="opslog-spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
