"""The permitted targets of webhooks. The server posts to addresses that others give it, so it must not be led into its
own network.

If a target is a name, every address that it resolves to is checked. The connection then goes to a checked address, not
to the name, because the addresses of a name can change between two lookups.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

from opslog.server.subscriptions.subscription import SubscriptionRefused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Many receivers, and httpx, take no URLs much longer than this.
_URL_CHARACTERS_MAX = 8000
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # IETF protocol assignments; even the public ones are not web servers
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays, deprecated
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/3",  # multicast, reserved, broadcast
        "2001::/23",  # IETF protocol assignments
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)
# The entries of IANA's registries of special-purpose addresses (RFC 6890, as of 2025). Not `ipaddress.is_global`: it
# changed several times, and in Python 3.11 takes 192.0.0.8 for public.
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")


class Target(NamedTuple):
    """:ivar host: the name or address in the URL, without brackets.
    :ivar path: the path and the query.
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of ``Host``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


_PORTS = {"http": 80, "https": 443}


def rejected(reason: str) -> SubscriptionRefused:
    return SubscriptionRefused(400, "WEBHOOK_URL_REJECTED", reason)


def parse_target(url: str, *, allow_loopback: bool) -> Target:
    """The target of a URL. Only https is permitted; with `allow_loopback` also http to this machine.

    :raises SubscriptionRefused: no webhook may go there.
    """
    if len(url) > _URL_CHARACTERS_MAX:
        raise rejected(f"webhook.url has at most {_URL_CHARACTERS_MAX} characters")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode() if parts.hostname else ""
    except (ValueError, UnicodeError) as error:
        raise rejected(f"webhook.url is not a URL: {error}") from error
    if parts.scheme not in _PORTS or not host or port == 0 or any(c.isspace() or not c.isprintable() for c in url):
        raise rejected("webhook.url is an https:// URL with a host")
    if parts.username is not None or parts.password is not None:
        raise rejected("webhook.url must not hold a password: check the signature of what you get instead")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = Target(parts.scheme, host, port or _PORTS[parts.scheme], path)
    address = literal(host)
    if address is not None:
        check_address(target, address, allow_loopback=allow_loopback)
    elif parts.scheme == "http" and not (allow_loopback and host == "localhost"):
        raise rejected("webhook.url must use https")
    return target


def literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def check_address(target: Target, address: Address, *, allow_loopback: bool) -> None:
    """:raises SubscriptionRefused: no webhook may go to this address."""
    # Take an IPv4 address out of an IPv6 one first, because Python versions classify such IPv6 addresses differently.
    address = embedded(address)
    if address.is_loopback and allow_loopback:
        return
    if target.scheme != "https":
        raise rejected("webhook.url must use https")
    if not _is_public(address):
        raise rejected(f"{target.host} is {address}, which is not on the public internet")


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    return not any(address.version == network.version and address in network for network in _NOT_PUBLIC)


def embedded(address: Address) -> Address:
    """The IPv4 address that packets to this IPv6 address reach, if it stands for one; otherwise the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    if inner is None and (address in _NAT64 or (int(address) >> 32 == 0 and int(address) > 1)):
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return inner or address
