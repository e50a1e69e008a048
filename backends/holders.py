"""Names that are taken inside this process, of agents and of locks, and by whom.

A holder that is gone holds nothing: whatever comes in between, a name is free again at the latest when nobody has its
holder any more. A signal's handler may take and release names while its own thread is in here.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Hashable

from opslog.backends import forking
from opslog.errors import AgentBusyError


def this_process() -> str:
    """In words: ``pid 4711 on host web1``."""
    return f"pid {os.getpid()} on host {os.uname().nodename}"


def in_use_here(agent: str, url: str) -> AgentBusyError:
    """The refusal of a name that this process uses already."""
    return AgentBusyError(
        f"agent {agent!r} of {url} is in use by {this_process()} (this process): close the store that uses it, or open "
        "under another agent name",
        agent,
        this_process(),
    )


class Holders:
    """Who holds which name."""

    def __init__(self) -> None:
        self._holders: dict[Hashable, weakref.ref[object]] = {}

    def take(self, name: Hashable, holder: object) -> bool:
        """Whether the name is this holder's from now on, or was before."""
        mine = weakref.ref(holder)
        holders = self._holders
        while True:
            with forking.lock:
                taken = holders[name] if name in holders else None  # noqa: SIM401  (see below)
                if taken is not None and (other := taken()) is not None:
                    return other is holder
                # Without a call, after which a handler could come and take the name itself.
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
