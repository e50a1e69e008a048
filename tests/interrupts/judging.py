"""What must be true after an interrupted call. Pure: a function from observations to problems."""

from __future__ import annotations

from dataclasses import dataclass, field

import opslog
from tests.interrupts.handlers import Handled
from tests.interrupts.stage import Documents

LOST = (opslog.ReopenError, opslog.ClosedError)
"""The errors by which a store says that it cannot continue."""


@dataclass
class Step:
    """A further call, from the interrupted thread or another one, and what it raised."""

    name: str
    is_write: bool
    error: BaseException | None


@dataclass
class Observed:
    """The outcome of an interrupted call, and the state of the store after it.

    :ivar error: the exception of the call, None if it returned.
    :ivar injected: the exception that was raised inside the call. None: a handler made a call of its own instead, which
        `handled` describes.
    :ivar possible: the states that the documents may be in, without the writes of the steps; see `Call.possible`.
    :ivar written: the documents that the steps have written, if they returned, in the order of the steps.
    :ivar others: the documents that another agent wrote meanwhile.
    :ivar memory: the documents of the store itself at the end, None if it refused to read them.
    :ivar fresh: the documents that another reader found then.
    :ivar reopened: the documents that the agent's next session found.
    :ivar handed: the commits that were handed out, in order.
    :ivar of_others: the commits that others have written.
    :ivar faults: the findings of `verify`.
    :ivar left: threads and descriptors that are still there.
    :ivar warnings: the reports by Python.
    :ivar also: the problems that only this call can leave.
    :ivar vanished: whether the exception was raised in a finalizer. Python lets none out of it.
    """

    injected: BaseException | None
    is_buffered: bool
    is_write: bool
    has_buffered: bool
    closes: bool
    clears: bool
    undoes: bool
    error: BaseException | None
    possible: list[Documents]
    steps: list[Step] = field(default_factory=list)
    written: Documents = field(default_factory=dict)
    others: Documents = field(default_factory=dict)
    memory: Documents | None = None
    fresh: Documents = field(default_factory=dict)
    reopened: Documents = field(default_factory=dict)
    handed: list[tuple[str, int]] = field(default_factory=list)
    of_others: list[tuple[str, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    vanished: bool = False
    handled: Handled = field(default_factory=Handled)

    @property
    def is_closed(self) -> bool:
        return self.closes or self.handled.has_closed

    @property
    def is_lost(self) -> bool:
        """Whether the store said that it has to be reopened."""
        return any(isinstance(step.error, opslog.ReopenError) for step in self.steps) or (
            self.has_buffered and isinstance(self.error, opslog.ReopenError)
        )


def problems(seen: Observed) -> list[str]:
    """Returns the problems; an empty result means that all is well."""
    judges = (_of_the_call, _of_the_steps, _of_the_documents, _of_others_commits, _left)
    return [problem for judge in judges for problem in judge(seen)]


def _of_the_call(seen: Observed) -> list[str]:
    error = seen.error
    if seen.injected is None:
        return _of_the_handler(seen)
    if error is None:
        if not isinstance(seen.injected, OSError | MemoryError) and not seen.vanished:
            return [f"{type(seen.injected).__name__} was swallowed"]
        return []
    if type(error) is not type(seen.injected) and not isinstance(error, opslog.OpslogError):
        return [f"the call raised {error!r} instead"]
    return []


def _of_the_handler(seen: Observed) -> list[str]:
    """The outcome of the call is the same as without the handler. Only a handler that closes the store may end the
    call."""
    found = []
    if seen.handled.error is not None:
        found.append(f"the handler's call raised {seen.handled.error!r}")
    if seen.handled.read not in (None, *(state.get("x") for state in seen.possible)):
        found.append(f"the handler read {seen.handled.read}")
    may_end = seen.handled.has_closed and isinstance(seen.error, opslog.OpslogError)
    if seen.error is not None and not may_end:
        found.append(f"a handler ended the call: {seen.error!r}; its own was {_ended(seen.handled)}")
    return found


def _ended(handled: Handled) -> str:
    return f"refused: {handled.refused!r}" if handled.refused else "done"


def _of_the_steps(seen: Observed) -> list[str]:
    """Each further call succeeds, or each one that writes says that the store has to be reopened."""
    found = []
    lost = False  # the call itself may have meant only a file of an archive or a compaction
    for step in seen.steps:
        if step.error is None:
            if lost and step.is_write:
                found.append(f"{step.name} went on, though the store had to be reopened")
        elif isinstance(step.error, opslog.ReopenError):
            lost = True
        elif seen.is_closed and isinstance(step.error, opslog.ClosedError):
            continue
        else:
            found.append(f"{step.name} raised {step.error!r}")
    if lost and not seen.is_write:
        found.append(f"the store has to be reopened after a call that writes nothing: {_first_lost(seen)!r}")
    return found


def _first_lost(seen: Observed) -> BaseException | None:
    errors = [seen.error, *(step.error for step in seen.steps)]
    return next(error for error in errors if isinstance(error, opslog.ReopenError))


def _of_the_documents(seen: Observed) -> list[str]:
    found = []
    said = seen.is_lost or isinstance(seen.error, opslog.WriteFailedError)
    must = seen.error is None or (seen.has_buffered and not said)
    right = [state | seen.written for state in (seen.possible[-1:] if must else seen.possible)]
    if seen.is_buffered and seen.is_lost:  # then the buffered commits are lost too, from some commit on
        steps = list(seen.written.items())
        right = seen.possible[:-1] + [seen.possible[-1] | dict(steps[:count]) for count in range(len(steps) + 1)]
    right = [state | seen.others | seen.handled.others for state in right]
    inner = seen.handled.written
    # A handler's write in the middle of a batch is part of the batch. And a call that deletes everything may have come
    # after it.
    is_certain = not seen.handled.is_in_batch and not seen.clears
    right = [state | inner for state in right] + ([] if is_certain else right)
    if seen.clears:  # it may have come after a handler read what others wrote, and have deleted that, too
        brought = seen.handled.brought
        right += [{id: document for id, document in state.items() if id not in brought} for state in right[-1:]]
    if inner and seen.undoes:  # the undo may have taken back the handler's write, which then was the newest
        right.append(seen.possible[0] | seen.written | seen.others)
    if seen.reopened not in right:
        found.append(f"the next session finds {_shown(seen.reopened)}, not {' or '.join(map(_shown, right))}")
    if seen.fresh != seen.reopened:
        found.append(f"another reader found {_shown(seen.fresh)}, and the next session {_shown(seen.reopened)}")
    if seen.memory is not None and not seen.is_lost and seen.memory != seen.fresh:
        found.append(f"the store shows {_shown(seen.memory)}, others see {_shown(seen.fresh)}")
    return found


def _shown(documents: Documents) -> str:
    return "{" + ", ".join(f"{id}: {document.get('v')}" for id, document in sorted(documents.items())) + "}"


def _of_others_commits(seen: Observed) -> list[str]:
    found = []
    if len(set(seen.handed)) < len(seen.handed):
        found.append(f"handed out twice: {seen.handed}")
    for agent in {agent for agent, _ in seen.handed}:
        clocks = [clock for by, clock in seen.handed if by == agent]
        if clocks != sorted(clocks):
            found.append(f"handed out in another order: {clocks} of {agent!r}")
    if not seen.is_lost and not seen.is_closed and (lost := set(seen.of_others) - set(seen.handed)):
        found.append(f"never handed out: {sorted(lost)}")
    return found


def _left(seen: Observed) -> list[str]:
    # If the exception came into a finalizer, what it was to close stays open.
    left = [] if seen.vanished else seen.left
    return [*(f"left behind: {name}" for name in left), *seen.faults, *seen.warnings, *seen.also]
