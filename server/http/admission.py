"""Who may make a request: tokens and rates, for everything that the server serves."""

from __future__ import annotations

from math import ceil

from opslog.doors.access import Scope, request_of
from opslog.doors.tokens import Right, Token, Tokens
from opslog.server.http import requests
from opslog.server.http.rates import Rates
from opslog.server.protocol.refusals import Refused


class Admission:
    """Admits requests.

    :param tokens: who may do what; None: everyone may do everything.
    :param rates: how often; None: without a limit.
    """

    def __init__(self, tokens: Tokens | None, rates: Rates | None) -> None:
        self._tokens = tokens
        self._rates = rates

    @property
    def has_tokens(self) -> bool:
        return self._tokens is not None

    def admit(self, scope: Scope, path: str, right: Right, *, wants_token: bool = True) -> Token | None:
        """Count a request. Returns its token, if this server requires one.

        :param path: the path that the request is about, which the token's prefixes must cover.
        :param wants_token: False for requests with credentials of another kind.
        :raises Refused: 401, 403 or 429.
        """
        token = self.token(scope) if wants_token else None
        if token is not None:
            check(token, path, right)
        self._count(scope, token)
        return token

    def admit_to_list(self, scope: Scope) -> Token | None:
        """As `admit`, for a request that is answered by what its token may read.

        :raises Refused: 401 or 429.
        """
        token = self.token(scope)
        self._count(scope, token)
        return token

    def _count(self, scope: Scope, token: Token | None) -> None:
        """:raises Refused: 429."""
        who = str((scope.get("client") or ("",))[0]) if token is None else f"token {token.name}"
        if self._rates is not None and (seconds := self._rates.wait(who)):
            raise Refused(429, "too many requests", [(b"retry-after", b"%d" % ceil(seconds))])

    def token(self, scope: Scope) -> Token | None:
        """The token of a request; None: this server requires none.

        :raises Refused: 401.
        """
        if self._tokens is None:
            return None
        token = self._tokens.find(requests.fields(scope["headers"]).get(b"authorization"))
        if token is None:
            raise Refused(401, "this server wants a bearer token", [(b"www-authenticate", b"Bearer")])
        request_of(scope).token = token.name
        return token


def check(token: Token, path: str, right: Right) -> None:
    """:raises Refused: 403, this token does not cover the path."""
    if not token.covers(path, right):
        raise Refused(403, f"this token may not {right} {path or 'everything'}")


def author_of(token: Token) -> str:
    """The author of what a token writes to stores.

    :raises Refused: 403, it cannot write.
    """
    if (author := token.author()) is None:
        raise Refused(403, f"this token names no agent to write as, and {token.name!r} cannot be one")
    return author
