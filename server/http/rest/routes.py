"""Routes: their addresses, parameters, bodies and responses. The description of the API is generated from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from opslog.doors.operations import Operations
from opslog.doors.tokens import Right
from opslog.history import Point
from opslog.server.http.requests import Fields
from opslog.server.protocol.refusals import Headers, Refused
from opslog.server.stores.served import ServedStore


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query.

    :ivar kind: str, int or bool.
    :ivar least: the smallest number; `most`: the greatest one.
    :ivar is_list: it may be repeated.
    """

    name: str
    description: str
    kind: type = str
    least: int = 0
    most: int | None = None
    default: Any = None
    is_list: bool = False
    is_required: bool = False

    def value(self, texts: list[str]) -> Any:
        """The value of these texts.

        :raises Refused: 400.
        """
        if self.is_list:
            return texts
        if len(texts) > 1:
            raise Refused(400, f"{self.name} was given more than once")
        (text,) = texts
        if self.kind is str:
            return text
        if self.kind is bool:
            if text not in {"true", "false"}:
                raise Refused(400, f"{self.name} is true or false, not {text!r}")
            return text == "true"
        # No number here has more than 19 digits, and Python refuses to convert thousands.
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
        if number is None or number < self.least or (self.most is not None and number > self.most):
            most = "" if self.most is None else f" to {self.most}"
            raise Refused(400, f"{self.name} is a whole number from {self.least}{most}, not {text!r}")
        return number


AS_OF = Parameter("as_of", "The state at this clock, or at this time (RFC 3339), instead of now.")
CURSOR = Parameter("cursor", "The cursor of the page before.")
FIELDS = Parameter("fields", "Return only the values at these paths; may be repeated.", is_list=True)
WHERE = Parameter(
    "where", "Only documents that fulfil this: `status = active and hours > 3`, or the same as a JSON object."
)


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a route, as it reaches the handler.

    :ivar operations: with the client as author; on the past, if the request has `as_of`.
    :ivar id: the part of the address after the route's own path, percent-decoded.
    :ivar given: the parameters by name, each with a value of its kind, or its default.
    :ivar headers: the headers that matter.
    :ivar body: of the route's type; None: the request has no body.
    """

    served: ServedStore
    operations: Operations
    id: str
    given: Mapping[str, Any]
    headers: Fields
    body: Any


@dataclass(frozen=True, slots=True)
class Answer:
    """:ivar body: becomes JSON, unless it is bytes, which are JSON already; None: no body."""

    status: int
    body: Any = None
    headers: Headers = field(default_factory=list)


# Blocks. Raises the errors of the store.
Handler = Callable[[Call], Answer]


@dataclass(frozen=True, slots=True)
class Route:
    """:ivar path: after ``/v1/store/NAME``. A name in braces at its end stands for everything that follows.
    :ivar right: what a token must allow.
    :ivar body: the type of the request's body, if it has one.
    :ivar is_optional: the body may be missing.
    :ivar answers: the statuses of success, each with its meaning and the type of its body.
    :ivar conditions: the headers with conditions that it takes.
    :ivar media_type: of the body.
    :ivar is_keyed: it takes an Idempotency-Key.
    :ivar now_only: why a read has no `as_of`.
    :ivar is_long: it may read much of the store, so few of its requests are answered at once, and no other request
        waits for them.
    :ivar is_in_turn: as `is_long`, but its requests wait for each other, since they share what they find.
    """

    method: str
    path: str
    right: Right
    name: str
    summary: str
    handler: Handler
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    is_optional: bool = False
    answers: Mapping[int, tuple[str, Any]] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    media_type: str = "application/json"
    is_keyed: bool = False
    now_only: str = ""
    is_long: bool = False
    is_in_turn: bool = False

    @property
    def takes(self) -> str | None:
        """The name in braces."""
        return self.path.partition("{")[2].rstrip("}") or None

    @property
    def prefix(self) -> str:
        """The path without it."""
        return self.path.partition("{")[0]

    def match(self, path: str) -> str | None:
        """The value of the name in braces, still percent-encoded; None: the path is another route's."""
        if self.takes is None:
            return "" if path == self.path else None
        return path[len(self.prefix) :] if path.startswith(self.prefix) else None

    def parse(self, query: bytes) -> dict[str, Any]:
        """The parameters.

        :raises Refused: 400, one of them is unknown, missing, or has an invalid value.
        """
        found: dict[str, list[str]] = {}
        try:
            pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000)
        except ValueError as error:
            raise Refused(400, f"the query cannot be read: {error}") from None
        for name, value in pairs:
            found.setdefault(name, []).append(value)
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in found:
            if name == "as_of" and self.now_only:
                raise Refused(400, f"{self.method} {self.path} has no as_of: {self.now_only}")
            if name not in known:
                there = ", ".join(known) or "none"
                raise Refused(400, f"{self.method} {self.path} has no parameter {name!r}; it has {there}")
        for name, parameter in known.items():
            if parameter.is_required and name not in found:
                raise Refused(400, f"the parameter {name} is missing: {parameter.description}")
        return {
            name: parameter.value(found[name]) if name in found else parameter.default
            for name, parameter in known.items()
        }


def point_of(text: str) -> Point:
    """A clock, if it has only digits; otherwise a time, which is checked where it is used."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text
