"""Decides when a request is sent again, without I/O: generators yield requests and pauses, and are sent the responses.

A driver sends each `Request` that a generator yields, and sends the `Reply` back into the generator. It waits for each
`Pause`, and throws failures such as `Lost` into the generator. A client consists of nothing else, be it with threads or
with tasks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, NoReturn, TypeVar, get_args

from opslog.environment import REAL, Environment
from opslog.errors import UsageError
from opslog.server.client import arguments
from opslog.server.client.answers import detail_of, refuse, senseless
from opslog.server.client.errors import OutcomeUnknownError, UnavailableError
from opslog.server.client.messages import Reply, Request

T = TypeVar("T")
Called = TypeVar("Called", bound=Callable[..., Any])


class Pause(NamedTuple):
    seconds: float


class Lost(Exception):
    """No response came, or the response cannot be read.

    :ivar sent: whether the server may have got the request.
    :ivar answered: a whole response came, but it does not match its headers, such as a compressed body that cannot be
        decompressed.
    """

    def __init__(self, reason: str, *, sent: bool, answered: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent
        self.answered = answered


Steps = Generator[Request | Pause, Any, T]


def described(call: Called, method: Callable[..., Steps[Any]]) -> Called:
    """Give `call` the name, docstring and signature of the `method` that it performs, with the result of the steps as
    its return type."""
    signature = inspect.signature(method, eval_str=True)
    _, _, result = get_args(signature.return_annotation)
    call.__name__, call.__doc__ = method.__name__, method.__doc__
    call.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]  # inspect reads it
    return call


# Statuses which say that the request was not carried out.
OVERLOADED = frozenset({429, 503})

# Statuses after which it is unknown whether the request was carried out.
_FAILED = frozenset({408, 500, 502, 504})

# Methods that change nothing.
_SAFE = frozenset({"GET", "HEAD"})


@dataclass(frozen=True)
class Retrying:
    """The retry policy of a client.

    :ivar seconds: how long a request is tried again before its error is raised; 0: not at all; `math.inf`: for ever.
    :ivar first: seconds before the second attempt. The pause doubles for each further attempt, up to `longest`, and
        each pause varies by a quarter.
    """

    seconds: float = 60.0
    first: float = 0.1
    longest: float = 5.0
    environment: Environment = REAL

    def __post_init__(self) -> None:
        """:raises UsageError: one of them is invalid."""
        arguments.seconds("seconds", self.seconds, above_zero=False)
        arguments.seconds("first", self.first, above_zero=True)
        arguments.seconds("longest", self.longest, above_zero=True)
        if not self.first <= self.longest < math.inf:
            raise UsageError(f"longest is at least first, {self.first}, and not endless: {self.longest}")

    def tries(self) -> Tries:
        return Tries(self)


class Tries:
    """The attempts of one request: counts them, and gives up in time."""

    def __init__(self, policy: Retrying) -> None:
        self._policy = policy
        self._until = policy.environment.monotonic() + policy.seconds
        self._failed = 0

    def again(self, asked: float = 0.0) -> Pause | None:
        """The pause before the next attempt, at least as many seconds as the server `asked` for; None: give up."""
        policy = self._policy
        delay = min(policy.longest, policy.first * 2**self._failed)
        self._failed = min(self._failed + 1, 60)
        varied = delay * (0.75 + 0.5 * int(policy.environment.nonce()[:8], 16) / 16**8)
        pause = max(varied, asked)
        return Pause(pause) if policy.environment.monotonic() + pause <= self._until else None


def asked_pause(reply: Reply | None, environment: Environment) -> float:
    """The seconds that the server asked to wait; 0: it did not ask, or not in a form of HTTP."""
    value = "" if reply is None else reply.headers.get("retry-after", "")
    if value.isascii() and value.isdecimal():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return 0.0
    if until.tzinfo is None:  # "-0000" does not name a zone; times in HTTP are always in GMT
        until = until.replace(tzinfo=UTC)
    return max(0.0, until.timestamp() - environment.time())


def call(
    request: Request,
    meaning: Callable[[Request, Reply], T],
    policy: Retrying,
    *,
    repeatable: bool,
    done_anyway: Callable[[Reply], bool] = lambda reply: False,
    refused: Callable[[Request, Reply, bool], NoReturn] = lambda request, reply, uncertain: refuse(request, reply),
) -> Steps[T]:
    """Send a request until a response decides it.

    :param meaning: returns the result that a success means.
    :param repeatable: sending the request twice has the same effect as once.
    :param done_anyway: whether an error response means success if an earlier attempt may have been carried out.
    :param refused: raises the error for a refusal; its last argument says whether an earlier attempt may have been
        carried out.
    :raises StreamError: the response is an error, or none came.
    """
    tries = policy.tries()
    uncertain = False
    while True:
        reply: Reply | None = None
        reason = ""
        try:
            reply = yield request
        except Lost as lost:
            if lost.answered and request.method in _SAFE:
                give_up_reading(request, lost)
            reason = str(lost)
            uncertain = uncertain or lost.sent
        if reply is not None and reply.status in OVERLOADED | _FAILED:
            uncertain = uncertain or reply.status in _FAILED
        elif reply is not None:
            if 200 <= reply.status < 300 or (uncertain and done_anyway(reply)):
                return meaning(request, reply)
            refused(request, reply, uncertain)
        pause = None if uncertain and not repeatable else tries.again(asked_pause(reply, policy.environment))
        if pause is None:
            give_up(request, reply, reason, uncertain=uncertain)
        yield pause


def give_up(request: Request, reply: Reply | None, reason: str, *, uncertain: bool) -> NoReturn:
    """Raise the error of a request that will not be tried again."""
    if reply is not None and not uncertain:
        refuse(request, reply)
    did = f"{request.method} {request.url}"
    status, detail = (None, "") if reply is None else (reply.status, detail_of(reply))
    happened = reason if reply is None else f"the server failed with {status}{f' ({detail})' if detail else ''}"
    if uncertain and request.method not in _SAFE:
        advice = "it may or may not have been carried out: read the stream before you repeat it"
        raise OutcomeUnknownError(f"{did}: {happened}; {advice}", status=status, url=request.url, detail=detail)
    message = f"{did}: {happened}; nothing was changed, try again later"
    raise UnavailableError(message, status=status, url=request.url, detail=detail)


def give_up_reading(request: Request, lost: Lost) -> NoReturn:
    """Raise the error of a request that changes nothing, and whose response cannot be read."""
    senseless(request, None, f"with what cannot be read ({lost})", "a proxy, or the server, damages its answers")
