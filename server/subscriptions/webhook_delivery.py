"""Posting webhooks: only to checked addresses, without following redirects, and reading only the beginning of a
response."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import httpx

from opslog.server.subscriptions.webhook_targets import Address, Target, check_address, literal, parse_target, rejected

Resolve = Callable[[str, int], Awaitable[list[Address]]]

TIMEOUT_SECONDS = 30.0
_ANSWER_BYTES_MAX = 64 * 1024
# How many webhooks are posted at once: receivers that do not answer must not keep others waiting, and must leave the
# server enough of the 1,024 files that a process may usually have open.
_POSTS_MAX = 500


async def resolve(host: str, port: int) -> list[Address]:
    """Every address of a name.

    :raises OSError: it has none, or it cannot be resolved at the moment.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # Drop a scope, as in fe80::1%eth0: it is not a part of the address that is checked.
    addresses = [literal(str(entry[4][0]).partition("%")[0]) for entry in found]
    return [address for address in addresses if address is not None]


class Delivery:
    """:param allow_loopback: webhooks may go to this machine, also by http.
    :param resolve: see `resolve`.
    """

    def __init__(self, *, allow_loopback: bool, resolve: Resolve = resolve) -> None:
        self._allow_loopback = allow_loopback
        self._resolve = resolve
        # Ignore the proxies and password files of this machine: they could change the target of a request, or the
        # request itself.
        self._http = httpx.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            timeout=TIMEOUT_SECONDS,
            limits=httpx.Limits(max_connections=_POSTS_MAX, max_keepalive_connections=0),
        )

    async def check(self, url: str) -> None:
        """Check that webhooks may go to this URL, as far as is known now. A name that cannot be resolved passes: it may
        be resolved later.

        :raises SubscriptionRefused: no webhook may go there.
        """
        target = parse_target(url, allow_loopback=self._allow_loopback)
        try:
            await self._addresses(target)
        except OSError:
            return

    async def post(self, url: str, body: bytes, signature: str) -> bool:
        """Post a webhook. Returns whether the receiver is already done with the wake (it answered ``{"done": true}``).

        :raises SubscriptionRefused: the name now leads to an address to which no webhook may go.
        :raises OSError: it was not delivered: there was no connection, or no answer in time.
        :raises httpx.HTTPError: it was not delivered: the answer cannot be read, or is not a success.
        """
        target = parse_target(url, allow_loopback=self._allow_loopback)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            address = (await self._addresses(target))[0]
            host = f"[{address}]" if address.version == 6 else str(address)
            request = self._http.build_request(
                "POST",
                f"{target.scheme}://{host}:{target.port}{target.path}",
                content=body,
                headers={
                    "Host": target.authority,
                    "Content-Type": "application/json",
                    "Accept-Encoding": "identity",  # the answer is read as it comes
                    "Webhook-Signature": signature,
                    "User-Agent": "opslog",
                },
                # The certificate is checked against the name, although the connection goes to an address.
                extensions={"sni_hostname": target.host},
            )
            answer = await self._http.send(request, stream=True)
            try:
                if not answer.is_success:
                    raise httpx.HTTPError(f"answered {answer.status_code}")
                return _is_done(await _beginning(answer))
            finally:
                await answer.aclose()

    async def close(self) -> None:
        await self._http.aclose()

    async def _addresses(self, target: Target) -> list[Address]:
        """All addresses of the target, each of them allowed."""
        address = literal(target.host)
        addresses = [address] if address is not None else await self._resolve(target.host, target.port)
        if not addresses:
            raise rejected(f"{target.host} has no address")
        for one in addresses:
            check_address(target, one, allow_loopback=self._allow_loopback)
        return addresses


async def _beginning(answer: httpx.Response) -> bytes:
    read = bytearray()
    async for chunk in answer.aiter_raw():
        read += chunk
        if len(read) > _ANSWER_BYTES_MAX:
            return b""
    return bytes(read)


def _is_done(answer: bytes) -> bool:
    try:
        parsed = json.loads(answer)
    except ValueError:
        return False  # any successful response counts as delivered
    return isinstance(parsed, dict) and parsed.get("done") is True
