"""The names of agents and locks that are taken inside this process, and their holders.

A name is free again at the latest when the last reference to its holder is gone, whatever was interrupted. A signal
handler may take and release names while its own thread is in here.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Hashable

from opslog.backends import forking
from opslog.errors import AgentBusyError


def this_process() -> str:
    """Describes this process: ``pid 4711 on host web1``."""
    return f"pid {os.getpid()} on host {os.uname().nodename}"


def in_use_here(agent: str, url: str) -> AgentBusyError:
    """The error for a name that this process already uses."""
    return AgentBusyError(
        f"agent {agent!r} of {url} is in use by {this_process()} (this process): close the store that uses it, or open "
        "under another agent name",
        agent,
        this_process(),
    )


class Holders:
    """Records the holder of each name."""

    def __init__(self) -> None:
        self._holders: dict[Hashable, weakref.ref[object]] = {}

    def take(self, name: Hashable, holder: object) -> bool:
        """Take the name. Returns whether this holder has it now, also if it had it before."""
        mine = weakref.ref(holder)
        holders = self._holders
        while True:
            with forking.lock:
                taken = holders[name] if name in holders else None  # noqa: SIM401  (see below)
                if taken is not None and (other := taken()) is not None:
                    return other is holder
                # No call here: after one a signal handler could run and take the name itself.
                if (holders[name] if name in holders else None) is taken:  # noqa: SIM401
                    holders[name] = mine
                    return True

    def is_free(self, name: Hashable) -> bool:
        """Whether nobody holds the name just now."""
        with forking.lock:
            taken = self._holders.get(name)
            return taken is None or taken() is None

    def release(self, name: Hashable, holder: object) -> None:
        """Let others take the name, if this holder has it."""
        with forking.lock:
            taken = self._holders.get(name)
            if taken is not None and taken() is holder:
                del self._holders[name]
