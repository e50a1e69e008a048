"""The threads a store may have: one that flushes buffered commits, one that compacts a tail that grew too long, and,
with asyncio, one that writes.

They start when there is something to do, never delay the interpreter's exit, and end with `close`. Until then
nothing ends them: a run that fails is logged, and tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from opslog.concurrency.locking import Bell
from opslog.errors import OpslogError
from opslog.logs import logger

_RETRY_SECONDS = 1.0
_RETRY_SECONDS_MAX = 3600.0


class Worker:
    """Runs `work` in a thread of its own whenever it is woken, one run at a time.

    After a failed run there is another one when it is woken, or else after a pause, which doubles from one failure
    to the next, up to an hour.

    :param what: names `work`, as the subject of a sentence in the log.
    :param subject: of the `logger` for failures.
    :param delay_seconds: how long after being woken it waits for more, unless it is hurried.
    :param retry_seconds: the first pause.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        *,
        what: str,
        subject: str = "background",
        delay_seconds: float = 0.0,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        self._name = name
        self._work = work
        self._what = what
        self._subject = subject
        self._delay_seconds = delay_seconds
        self._retry_seconds = retry_seconds
        self._bell = Bell()
        self._woken = self._hurried = self._closed = False
        self._starting = threading.RLock()
        # The thread that does the work, or is about to. An exception may end it before it has begun.
        self._thread: threading.Thread | None = None
        # Whether that thread has begun: from then on it notes its own end.
        self._is_running = False
        # All threads that may be alive. More than one if a start was interrupted, so that it was unknown whether it
        # took place.
        self._started: list[threading.Thread] = []
        # Held by the thread that does the work; any other one waits, and takes its place if it ends.
        self._turn = threading.Lock()

    def wake(self, hurry: bool = False) -> bool:
        """Have `work` run soon; with `hurry`, now. Cheap when it is awake already.

        :returns: False if it will not run, because this process can start no more threads: do it yourself, or wake it
            again later.
        """
        if self._woken and self._is_running and (self._hurried or not hurry):
            return True
        rung = False
        try:
            self._woken = True
            self._hurried = self._hurried or hurry
            if self._start():
                self._bell.ring()
                rung = True
        finally:
            if not rung:  # interrupted, or no thread: the next caller does not rely on it
                self._woken = self._hurried = False
        return rung

    def close(self) -> None:
        """Let a run that is under way end, and then the thread."""
        self._closed = True
        self._bell.ring()
        with self._starting:
            threads = self._started
        for thread in threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join()

    def _start(self) -> bool:
        """Whether there is a thread, or none is needed any more."""
        with self._starting:
            if self._closed or (self._thread is not None and self._thread.is_alive()):
                return True
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._started = [*(other for other in self._started if other.is_alive()), thread]
            try:
                self._thread = thread
                thread.start()
            except RuntimeError:  # a limit of processes or of memory, or the interpreter ends
                self._thread = None
                return False
            except BaseException:  # interrupted: the thread may be about to run, or never run
                self._thread = None
                raise
        return True

    def _run(self) -> None:
        # There is no loop here. CPython 3.13 puts the jump back to the head of a loop outside of the `try` and the
        # `with` around it, so an exception at that point would leave both unnoticed.
        with self._turn:
            try:
                self._is_running = True
                self._work_until_closed()
            finally:
                with self._starting:
                    self._thread = None
                    # The next call of `wake` must not rely on this thread.
                    self._is_running = self._woken = self._hurried = False

    def _work_until_closed(self) -> None:
        pause: float | None = None
        self._woken = True  # a thread is only started when there is something to do
        while not self._closed:
            try:
                self._thread = threading.current_thread()
                while self._await_turn(pause):
                    pause = self._try(pause)
            except Exception:  # noqa: BLE001  (no memory to wait, or to log a failure)
                pause = self._retry_seconds

    def _try(self, pause: float | None) -> float | None:
        """Run once; returns how long to wait before the next attempt, None after a good run.

        :param pause: as it was returned last time.
        """
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  (nobody else would ever hear of it)
            pause = self._retry_seconds if pause is None else min(2 * pause, _RETRY_SECONDS_MAX)
            surprise = None if isinstance(error, OpslogError) else error
            logger(self._subject).warning(
                "%s failed, and will be tried again in %g seconds at the latest: %s",
                self._what,
                pause,
                error,
                exc_info=surprise,
            )
            return pause
        return None

    def _await_turn(self, pause: float | None) -> bool:
        """Wait until there is something to do, at the longest for `pause`; whether there is."""
        while not (self._woken or self._closed):
            if pause is None:
                self._bell.wait()
            elif not self._bell.wait(pause):
                break
        while self._delay_seconds and not (self._hurried or self._closed):
            if not self._bell.wait(self._delay_seconds):
                break
        self._woken = self._hurried = False
        return not self._closed
