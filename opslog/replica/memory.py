"""The state of an open store, shared by its threads. Reading, changing and replacing it are steps that exclude each
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
    """The state of an open store in memory. Safe to use from many threads.

    :ivar state: the current state, another object after each load. Use `read` to read it.
    :ivar guards: how often documents may have become guarded. It is increased before the clock observes the commits
        that guard them, before the state takes in an undo, which may give a transaction's record back, and when a
        thread enters the first block of a transaction. 0 means that no document is guarded and that no thread was in
        such a block: no transaction was ever in this memory or appended from here.
    :ivar in_state: the thread that is in a block that reads or changes the state; 0: none is. A caller that finds its
        own thread here is a signal handler that has interrupted it in such a block.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.guards = int(state.has_transactions)
        self._state_lock = threading.RLock()
        self.in_state = 0

    @abstractmethod
    def replace(self, state: State, missing: MissingFileError | None) -> None:
        """Load another state in place of this one. Does nothing if another thread has done so meanwhile.

        :param missing: the error for a file of the state that was collected; None: the state is torn.
        :raises OpslogError: no other state can be loaded.
        """

    def read(self, query: Callable[Concatenate[State, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `query` on the state and return its result. If the state is torn, or a file that it needs was collected
        meanwhile, loads another state and calls `query` on that.

        :raises UsageError: called by a signal handler that interrupted its own thread while it changed the state.
        """
        me = threading.get_ident()  # here, since a handler may run after any call, and must find itself in `in_state`
        while True:
            missing = None
            with self._state_lock:
                state = self.state
                if not state.is_torn:
                    outer = self.in_state
                    if outer:
                        state.check_idle()
                    self.in_state = me
                    try:
                        return query(state, *args, **kwargs)
                    except MissingFileError as error:
                        missing = error
                    finally:
                        self.in_state = outer
            self.replace(state, missing)

    def winner(self, id: str) -> Record | None:
        """The winner of a document in the tail, if it is newer than the whole snapshot and nobody is changing the
        state. Otherwise None, and `read` has the answer. Takes no lock.

        `in_state` is set as long as the state is changed. So if a caller sees a part of a change, its next call waits
        for the rest. A state that was replaced meanwhile loses its winners, and then this returns None. A winner that
        it still has was the winner when the call began.
        """
        if self.in_state:
            return None
        state = self.state
        winner = state.winners.get(id)
        if winner is None and (lines := state.lines) is not None:
            winner = lines.get(id)
        if winner is None or winner.clock <= state.manifest.clock or state.is_torn:
            return None
        return winner

    def change(self, call: Callable[[State], R]) -> R:
        """Call a function on the state, while no other thread reads or changes it, and return its result. The state may
        be torn."""
        me = threading.get_ident()  # as in `read`
        with self._state_lock:
            outer, self.in_state = self.in_state, me
            try:
                return call(self.state)
            finally:
                self.in_state = outer

    def apply(self, commits: Iterable[Commit]) -> None:
        """Apply the next commits of the store's own log. If an exception ends this early, the state is torn."""
        me = threading.get_ident()  # as in `read`
        with self._state_lock:  # as `change`, without its two calls: every buffered set passes here
            outer, self.in_state = self.in_state, me
            try:
                self.state.apply(commits)
            finally:
                self.in_state = outer

    def invalidate(self) -> None:
        """Mark the state as torn: it has to be loaded again before anybody reads it."""
        with self._state_lock:
            self.guards += 1  # the log may have transactions that memory does not have
            self.state.is_torn = True

    def check_not_in_state(self) -> None:
        """Call this before anything that waits for other threads, because they may be waiting for the state. Takes no
        lock: a read holds it for as long as the storage takes, and the event loop must not wait for that.

        :raises UsageError: called by a signal handler that interrupted its own thread in the state.
        """
        if self.in_state == threading.get_ident():
            raise UsageError(
                "this call came while the same thread was in another call of this store, as the handler of a signal "
                "does: let the handler set a flag, and make the call after it has returned"
            )
