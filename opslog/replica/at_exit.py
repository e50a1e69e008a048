"""The buffer of a store that is open when the program ends: it is written, or reported as lost."""

from __future__ import annotations

import warnings
from typing import Protocol

from opslog.backends import Backend
from opslog.errors import OpslogError
from opslog.log.writer import LogWriter
from opslog.logs import logger


class Buffered(Protocol):
    """What writing its buffer needs of an open store.

    :ivar failure_was_raised: whether a caller got `failure`.
    """

    log: LogWriter | None
    failure_was_raised: bool

    @property
    def backend(self) -> Backend: ...

    @property
    def is_forked(self) -> bool: ...

    @property
    def failure(self) -> OpslogError | None: ...


def write_buffer(replica: Buffered) -> None:
    """Write the buffer of a store that was not closed before the program ends. Report one that was lost, if no call has
    done so. Raises none of opslog's errors."""
    # The log decides, not the store: a `close` that was interrupted may have left a buffer.
    log = replica.log
    if log is None or replica.is_forked or (log.is_closed and replica.failure is None):
        return
    # Later writes, for example by other functions that run at exit, cannot rely on a thread any more.
    log.write_at_once()
    failure: OpslogError | None = None
    try:
        try:
            log.flush()
        except OpslogError:
            raise
        except BaseException:
            log.flush()  # an interrupt came into the first
            raise
    except OpslogError as error:
        failure = error
    finally:
        _report(replica, log, failure or replica.failure)


def _report(replica: Buffered, log: LogWriter, failure: OpslogError | None) -> None:
    if failure is None and log.is_settled:
        warnings.warn(f"unclosed {replica!r}: its buffer was written at exit; close it", ResourceWarning, stacklevel=1)
    elif not (replica.failure_was_raised and log.is_closed):
        # No caller is left to get the error; one that got it but did not close the store may have been cancelled. A
        # warning is shown without any configuration.
        why = failure or "writing them was interrupted"
        lost = f"the program ended, and buffered commits of {replica.backend.url} may be lost: {why}"
        logger("log").error(lost)
        warnings.warn(lost, RuntimeWarning, stacklevel=1)
