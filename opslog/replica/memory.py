"""The state of an open store, shared by its threads: read, changed and given up in steps that exclude each
other."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Concatenate, ParamSpec, TypeVar

from opslog.errors import MissingFileError, UsageError
from opslog.format.commits import Commit, Record
from opslog.replica.state import State

R = TypeVar("R")
P = ParamSpec("P")


class Memory:
    """What an open store has in memory. Safe to use from many threads.

    :ivar state: the present one; another one after each load. To be read through `read`.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._state_lock = threading.RLock()
        # Whether somebody is in a block under `_state_lock`. Who has that lock and finds this set is the handler of a
        # signal that came while its own thread was in there.
        self._in_state = False

    @abstractmethod
    def replace(self, state: State, missing: MissingFileError | None) -> None:
        """Load another state in place of this one. Does nothing where that was done meanwhile.

        :param missing: what of it was collected; None: it is torn.
        :raises OpslogError: there is no other one.
        """

    def read(self, query: Callable[Concatenate[State, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What the state says; another one, if what this one wants to look up was collected meanwhile, or if it is
        torn.

        :raises UsageError: called by the handler of a signal that came while its thread was changing the state.
        """
        while True:
            missing = None
            with self._state_lock:
                state = self.state
                if not state.is_torn:
                    outer = self._in_state
                    if outer:
                        state.check_idle()
                    self._in_state = True
                    try:
                        return query(state, *args, **kwargs)
                    except MissingFileError as error:
                        missing = error
                    finally:
                        self._in_state = outer
            self.replace(state, missing)

    def winner(self, id: str) -> Record | None:
        """Who wins the document in the tail, where that is newer than the whole snapshot, and nobody is changing the
        state; otherwise None, and `read` has the answer. Takes no lock.

        Whoever changes the state is in it for as long. So a caller who sees a part of a change is as late as the
        change is, and its next call waits for the rest. A state that was replaced meanwhile loses its winners, and no
        winner is none: what it still has is what it had when the call began.
        """
        if self._in_state:
            return None
        state = self.state
        winner = state.winners.get(id)
        if winner is None and (lines := state.lines) is not None:
            winner = lines.get(id)
        if winner is None or winner.clock <= state.manifest.clock or state.is_torn:
            return None
        return winner

    def change(self, call: Callable[[State], R]) -> R:
        """What a call makes of the state, while no other thread reads or changes it. The state may be torn."""
        with self._state_lock:
            outer, self._in_state = self._in_state, True
            try:
                return call(self.state)
            finally:
                self._in_state = outer

    def apply(self, commits: Iterable[Commit]) -> None:
        """Take in the next commits of one's own log. What ends this early leaves the state to be loaded anew."""
        with self._state_lock:  # as `change`, which every buffered set would enter by two more calls
            outer, self._in_state = self._in_state, True
            try:
                self.state.apply(commits)
            finally:
                self._in_state = outer

    def invalidate(self) -> None:
        """Nobody may read the state as it is; it has to be loaded anew."""
        with self._state_lock:
            self.state.is_torn = True

    def check_not_in_state(self) -> None:
        """To be called before anything that waits for other threads, which may wait for the state in turn.

        :raises UsageError: called by the handler of a signal that came while its own thread was in the state.
        """
        if not self._in_state:
            return  # nobody is, so this thread is not
        with self._state_lock:
            if self._in_state:
                raise UsageError(
                    "this call came while the same thread was in another call of this store, as the handler of a "
                    "signal does: let the handler set a flag, and make the call after it has returned"
                )
