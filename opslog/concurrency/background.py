"""The threads a store may have: one that flushes buffered commits, one that compacts a tail that grew too long, and,
with asyncio, one that writes.

They start when there is work, never delay the interpreter's exit, and end with `close`. Until then nothing ends them: a
failed run is logged and tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from opslog.concurrency.locking import Bell
from opslog.errors import OpslogError
from opslog.logs import logger

RETRY_SECONDS = 1.0
_RETRY_SECONDS_MAX = 3600.0


class Worker:
    """Runs `work` in a thread of its own whenever it is woken, one run at a time.

    After a failed run it tries again when it is woken, or after a pause. The pause doubles with each failure, up to an
    hour.

    :param what: names `work`, as the subject of a sentence in the log.
    :param subject: the subject of the `logger` for failures.
    :param delay_seconds: how long after the last wake-up it waits for more, unless it has to hurry.
    :param retry_seconds: the first pause.
    :ivar is_awake: whether its thread is going to do the work, as far as that is known.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        *,
        what: str,
        subject: str = "background",
        delay_seconds: float = 0.0,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._name = name
        self._work = work
        self._what = what
        self._subject = subject
        self._delay_seconds = delay_seconds
        self._retry_seconds = retry_seconds
        self._bell = Bell()
        self.is_awake = self._hurried = self._closed = False
        self._starting = threading.RLock()
        # The thread that does the work, or is about to. An exception may end it before it has begun.
        self._thread: threading.Thread | None = None
        # Whether that thread has begun. If it has, it notes its own end.
        self._is_running = False
        # All threads that may be alive. There is more than one if a start was interrupted, since it is then unknown
        # whether the thread started.
        self._started: list[threading.Thread] = []
        # The thread that does the work holds this. Any other one waits, and takes over when that thread ends.
        self._turn = threading.Lock()

    def wake(self, hurry: bool = False) -> bool:
        """Have `work` run soon; with `hurry`, now. Cheap if the worker is awake already.

        :returns: False if `work` will not run, because this process can start no more threads. The caller then does the
            work itself, or wakes the worker again later.
        """
        if self.is_awake and self._is_running and (self._hurried or not hurry):
            return True
        rung = False
        try:
            self.is_awake = True
            self._hurried = self._hurried or hurry
            if self._start():
                self._bell.ring()
                rung = True
        finally:
            if not rung:  # interrupted, or no thread: the next caller must not take the worker for awake
                self.is_awake = self._hurried = False
        return rung

    def close(self) -> None:
        """Wait for a run that is under way, and end the thread."""
        self._closed = True
        self._bell.ring()
        with self._starting:
            threads = self._started
        for thread in threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join()

    def _start(self) -> bool:
        """Start a thread if one is needed. Returns False if the process cannot start one."""
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
            except BaseException:  # interrupted: it is unknown whether the thread will run
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
                    self._is_running = self.is_awake = self._hurried = False

    def _work_until_closed(self) -> None:
        pause: float | None = None
        self.is_awake = True  # a thread is started only when there is work
        while not self._closed:
            try:
                self._thread = threading.current_thread()
                while self._await_turn(pause):
                    pause = self._try(pause)
            except Exception:  # noqa: BLE001  (not enough memory to wait, or to log a failure)
                pause = self._retry_seconds

    def _try(self, pause: float | None) -> float | None:
        """Run `work` once. Returns how long to wait before the next attempt; None if it succeeded.

        :param pause: the value that the last call returned.
        """
        try:
            self._work()
        except Exception as error:  # noqa: BLE001  (nobody else would see it)
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
        """Wait until the worker is woken or closed, for `pause` at the longest. Returns False if it is closed."""
        while not (self.is_awake or self._closed):
            if pause is None:
                self._bell.wait()
            elif not self._bell.wait(pause):
                break
        while self._delay_seconds and not (self._hurried or self._closed):
            if not self._bell.wait(self._delay_seconds):
                break
        self.is_awake = self._hurried = False
        return not self._closed
