"""The threads a store may have: one that flushes buffered commits, one that compacts a tail that grew too long, and,
with asyncio, one that writes.

They start with the first thing there is to do, never hold the interpreter's exit up, and end with `close`. Until then
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

    After a run that failed there is another one when it is woken, or else after a pause, which doubles from one failure
    to the next, up to an hour.

    :param what: what `work` does, as the subject of a sentence in the log.
    :param subject: of the `logger` that hears of failures.
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
        # The one that does the work, or is about to. An exception may end it before it has begun.
        self._thread: threading.Thread | None = None
        # Whether it has begun: from then on it says itself when it ends.
        self._is_running = False
        # All that may live. More than one where a start was interrupted, so that nobody knew whether it would come.
        self._started: list[threading.Thread] = []
        # Held by the one that does the work; any other one waits, and goes on in its place should it end.
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
            if not rung:  # interrupted, or no thread: who comes next does not rely on this
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
        """Whether there is a thread, or need not be one any more."""
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
            except BaseException:  # interrupted: it may be about to run, or never come
                self._thread = None
                raise
        return True

    def _run(self) -> None:
        # No loop stands in here: CPython 3.13 has the jump back to the head of one outside of the `try` and the `with`
        # around it, so an exception that comes there would leave both without a word.
        with self._turn:
            try:
                self._is_running = True
                self._work_until_closed()
            finally:
                with self._starting:
                    self._thread = None
                    # Who wakes it next must not rely on this thread.
                    self._is_running = self._woken = self._hurried = False

    def _work_until_closed(self) -> None:
        pause: float | None = None
        self._woken = True  # a thread is started when there is something to do
        while not self._closed:
            try:
                self._thread = threading.current_thread()
                while self._await_turn(pause):
                    pause = self._try(pause)
            except Exception:  # noqa: BLE001  (no memory to wait, or to log a failure)
                pause = self._retry_seconds

    def _try(self, pause: float | None) -> float | None:
        """Run once; how long to wait before the next try, None after a good run.

        :param pause: as it was returned.
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
