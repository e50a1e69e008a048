"""Who may do what: bearer tokens with prefixes, from a TOML file that holds only their hashes.

::

    [[token]]
    name = "planner"
    sha256 = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"
    read = [""]
    write = ["agents/planner", "stores/tasks"]
    operate = ["stores/tasks"]
    agent = "planner"

A prefix covers the stream of that path and all below it; ``""`` covers everything. The store served as ``tasks``, and
its feed, is ``stores/tasks``. Whoever writes to a store does so in the name of the token's `agent`, and in no other.

Nothing here knows HTTP: each door refuses in its own way what a token does not allow.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal

import msgspec

from opslog.errors import InvalidNameError, UsageError
from opslog.format.layout import check_agent

_SHA256 = re.compile(r"[0-9a-f]{64}")

# The prefix of stores in the paths that tokens cover; their names follow.
STORES: Final = "stores/"

# To operate is to change how a store is kept, not what its documents say; or to move many of them out at once.
Right = Literal["read", "write", "operate"]


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """:ivar name: for logs and limits.
    :ivar sha256: of the token, in hexadecimal digits.
    :ivar read: prefixes.
    :ivar agent: the author of what it writes to stores. None: its `name`, if an agent can have that name.
    """

    name: str
    sha256: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    operate: tuple[str, ...] = ()
    agent: str | None = None

    def covers(self, path: str, right: Right) -> bool:
        """Whether it allows this."""
        prefixes = {"read": self.read, "write": self.write, "operate": self.operate}[right]
        return any(_covers(prefix, path) for prefix in prefixes)

    def author(self) -> str | None:
        """The author of what it writes to stores. None: it cannot write, because no agent can have its name."""
        try:
            return check_agent(self.agent or self.name)
        except InvalidNameError:
            return None


class Tokens:
    """The tokens that a server knows, by their hashes."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = {token.sha256: token for token in tokens}

    @classmethod
    def load(cls, path: Path) -> Tokens:
        """:raises UsageError: the file cannot be read, or is not a file of tokens, as docs/server.md describes it."""
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
            tokens = msgspec.convert(found.pop("token", []), list[Token])
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read as a list of tokens: {error}") from error
        if found or not tokens:
            raise UsageError(f"{path} has to hold [[token]] tables, and nothing else")
        if len({token.name for token in tokens}) < len(tokens):
            raise UsageError(f"{path} has two tokens of the same name")
        for token in tokens:
            if not _SHA256.fullmatch(token.sha256):
                raise UsageError(f"{path}: the sha256 of {token.name!r} is not 64 hexadecimal digits in lower case")
            if token.agent is not None:
                check_agent(token.agent)
        return cls(tokens)

    def authors(self, path: str) -> Iterator[tuple[str, str]]:
        """The name and the author of each token that may write to a path."""
        for token in self._tokens.values():
            if token.covers(path, "write") and (author := token.author()) is not None:
                yield token.name, author

    def find(self, authorization: str | None) -> Token | None:
        """The token of a request; None: it has none that is known.

        :param authorization: the request's header of this name.
        """
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        # Looked up by its hash, so the time that this takes says nothing about other tokens.
        return self._tokens.get(sha256(secret.strip().encode("latin-1")).hexdigest())


def _covers(prefix: str, path: str) -> bool:
    prefix = prefix.strip("/")
    return not prefix or path == prefix or path.startswith(f"{prefix}/")
