"""Refusal of requests from web pages of other sites: a browser on this machine runs their scripts here, too."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from opslog.doors.access import Scope
from opslog.server.http import requests
from opslog.server.protocol.refusals import Refused


def check_local(scope: Scope) -> None:
    """Refuse requests that do not name this machine: of pages of other sites, and of a site whose name leads here.

    A browser sends the site of a script in Origin, and the host name that the script used in Host. Other programs name
    an address of this machine, and send no Origin.

    :raises Refused: 403.
    """
    given = requests.fields(scope["headers"])
    host, origin = given.get(b"host"), given.get(b"origin")
    if host is not None and not _is_local(f"//{host}"):
        raise Refused(403, f"this server is for its own machine, and not called {host!r}: ask for 127.0.0.1. {_ADVICE}")
    if origin is not None and not _is_local(origin):
        raise Refused(403, f"pages of {origin!r} may not use stores here. {_ADVICE}")


_ADVICE = "Who runs it can name those who may (--tokens FILE), or say that anyone may (--anyone)"


def _is_local(url: str) -> bool:
    """Whether a URL names this machine."""
    try:
        name = urlsplit(url).hostname or ""
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
