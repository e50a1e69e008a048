"""Headers and parameters of every request, fixed or computed anew for each request. So a token can be renewed while a
client is open.

This does no I/O. `Extras.prepared` yields each `Computed`, the result of a caller's function, and is sent its value. So
the client for asyncio can await an awaitable result, which the client for threads refuses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from opslog.errors import UsageError
from opslog.server.client import arguments
from opslog.server.client.messages import Request

# For threads: names with their values, or with functions that return them; or one function that returns all of them.
Values = Mapping[str, str | Callable[[], str]] | Callable[[], Mapping[str, str]]

# For asyncio: the same, and each function may be a coroutine function.
AsyncValues = (
    Mapping[str, str | Callable[[], str] | Callable[[], Awaitable[str]]]
    | Callable[[], Mapping[str, str]]
    | Callable[[], Awaitable[Mapping[str, str]]]
)

T = TypeVar("T")


class Computed(NamedTuple):
    """:ivar returned: what a function of the caller returned: a value, or an awaitable of one."""

    returned: Any


Computing = Generator[Computed, Any, T]

_OWN_HEADERS = ("content-length", "content-type", "transfer-encoding", "host")
_OWN_PREFIXES = ("stream-", "producer-")
_OWN_PARAMETERS = ("cursor", "live", "offset")


class Prepared(NamedTuple):
    """The parts of a request besides its method and content."""

    url: str
    headers: dict[str, str]


class Extras:
    """The headers and parameters that a caller gives for every request.

    :param token: sent as a bearer token.
    :raises UsageError: one of them cannot be sent.
    """

    def __init__(self, token: str | None, headers: AsyncValues | None, params: AsyncValues | None) -> None:
        self._token = None if token is None else arguments.token(token)
        self._headers = headers if headers is not None else {}
        self._params = params if params is not None else {}
        for what, given, check in (("headers", headers, _check_header), ("params", params, _check_parameter)):
            if given is None or callable(given):
                continue
            if not isinstance(given, Mapping):
                raise UsageError(f"{what} are a mapping, or a function that gives one, not {type(given).__name__}")
            for name, value in given.items():
                check(name, "x" if callable(value) else value)
        fixed = headers if isinstance(headers, Mapping) else {}
        if token is not None and any(name.lower() == "authorization" for name in fixed):
            raise UsageError("a client has a token or the header Authorization, not both")

    def prepared(self, request: Request) -> Computing[Prepared]:
        """The headers and the address of a request. If two headers have the same name but for case, the request's own
        header wins over the caller's, and the caller's over the token."""
        headers = {} if self._token is None else {"authorization": ("Authorization", f"Bearer {self._token}")}
        computed = yield from _computed("headers", self._headers)
        for name, value in (*computed.items(), *request.headers.items()):
            if name not in request.headers:
                _check_header(name, value)
            headers[name.lower()] = name, value
        params = yield from _computed("params", self._params)
        for name, value in params.items():
            _check_parameter(name, value)
        return Prepared(_with_parameters(request.url, params), dict(headers.values()))


def _computed(what: str, given: AsyncValues) -> Computing[dict[str, str]]:
    if callable(given):
        found = yield Computed(given())
        if not isinstance(found, Mapping):
            raise UsageError(f"the function for {what} gave {type(found).__name__} instead of a mapping")
        return dict(found)
    values = {}
    for name, value in given.items():
        values[name] = (yield Computed(value())) if callable(value) else value
    return values


def _check_header(name: object, value: object) -> None:
    """Check the name and value of a header. The value may be a secret, so no message shows it."""
    if not arguments.is_header_name(name):
        raise UsageError(f"{name!r} is not the name of a header")
    assert isinstance(name, str)
    if name.lower() in _OWN_HEADERS or name.lower().startswith(_OWN_PREFIXES):
        raise UsageError(f"the header {name} is set by the client, for each request as it needs it")
    if not arguments.is_header_value(value):
        raise UsageError(f"the value of the header {name} is printable ASCII, not what was given or computed")


def _check_parameter(name: object, value: object) -> None:
    if not isinstance(name, str) or not name or name in _OWN_PARAMETERS:
        raise UsageError(f"{name!r} cannot be the name of a parameter: it is empty, or the protocol's own")
    if not isinstance(value, str):
        raise UsageError(f"the value of the parameter {name} is a string, not {type(value).__name__}")
    try:
        quote(name + value)
    except UnicodeEncodeError:
        raise UsageError(f"the value of the parameter {name} has half of a character in it") from None


def _with_parameters(url: str, params: Mapping[str, str]) -> str:
    """The address with parameters, in alphabetical order, so that caches see one address (section 10.1)."""
    if not params:
        return url
    own = [part for part in urlsplit(url).query.split("&") if part]
    all_of_them = sorted([*own, *(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in params.items())])
    return f"{url.partition('?')[0]}?{'&'.join(all_of_them)}"
