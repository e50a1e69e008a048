"""Sessions: how a door opens a store for clients that come and go, and under which names they write."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

from opslog.environment import REAL
from opslog.errors import InvalidNameError
from opslog.format.documents import Document
from opslog.format.layout import AGENT_CHARACTERS_MAX, check_agent
from opslog.opening import open as open_store
from opslog.store import Store

_HOST_MAX = 40
_UNUSABLE = re.compile(r"[^A-Za-z0-9_-]+")


def session_name(base: str) -> str:
    """A name for a new session, which no other session has: base, host, process and a nonce, as in
    ``claude.laptop.4711.5f0c9a2e``. The nonce is there because two containers may have the same host and process.

    :raises InvalidNameError: no agent can have such a name.
    """
    host = _UNUSABLE.sub("-", socket.gethostname().partition(".")[0])[:_HOST_MAX] or "host"
    rest = f".{host}.{os.getpid()}.{REAL.nonce()[:8]}"
    if len(base) > (longest := AGENT_CHARACTERS_MAX - len(rest)):
        raise InvalidNameError(
            f"no session can be called {base!r}: host, process and a random part follow, so on this machine the name "
            f"has at most {longest} characters"
        )
    try:
        return check_agent(base + rest)
    except InvalidNameError as error:
        raise InvalidNameError(f"no session can be called {base!r}: {error}") from error


def open_session(url: str, name: str, *, read_only: bool = False, **options: Any) -> Store[Document]:
    """Open a store for a session, which leaves no log behind and has no schema. Errors as of `opslog.open`.

    :param name: the author of what the session writes, as of `session_name`.
    """
    if read_only:
        return open_store(url, read_only=True, version=None, **options)
    return open_store(url, agent=name, log="shared", version=None, **options)
