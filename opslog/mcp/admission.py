"""Who may use a server over HTTP: those with a bearer token, as `opslog serve` takes them (`opslog.doors.tokens`).

The SDK does the refusing, in the words of RFC 6750: 401 without a known token, 403 without the right to read. It also
lets a session be used with the token that began it, and with no other.
"""

from __future__ import annotations

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthCredentials

from opslog.doors.access import App, Receive, Scope, Send, request_of
from opslog.doors.tokens import STORES, Token, Tokens


class TokenUser(AuthenticatedUser):
    """The holder of a token, as the SDK knows users.

    :ivar agent: in whose name they write; None: they may only read.
    """

    def __init__(self, token: Token, store: str) -> None:
        path = STORES + store
        self.agent = token.author() if token.covers(path, "write") else None
        rights = ["read"] if token.covers(path, "read") else []
        super().__init__(AccessToken(token="", client_id=token.name, scopes=rights))


def admitting(application: App, tokens: Tokens, store: str) -> App:
    """An application that answers only those with a token that may read a store. Its requests have a `TokenUser`.

    :param store: the name that tokens have for it.
    """
    protected = RequireAuthMiddleware(application, ["read"])

    async def admit(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        if (token := tokens.find(_authorization(scope))) is not None:
            request_of(scope).token = token.name
            scope["user"] = user = TokenUser(token, store)
            scope["auth"] = AuthCredentials(user.scopes)
        await protected(scope, receive, send)

    return admit


def _authorization(scope: Scope) -> str | None:
    """The header, if there is one of it."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    return str(given[0], "latin-1") if len(given) == 1 else None
