"""The settings of a client, without I/O: one server's stream root, the headers and parameters of each request, and the
retries."""

from __future__ import annotations

from opslog.server.client import arguments
from opslog.server.client.calls import Calls
from opslog.server.client.computed import AsyncValues, Extras
from opslog.server.client.retrying import Retrying, Steps
from opslog.server.client.subscribing import Holding, Subscribing
from opslog.server.client.webhooks import Webhooks


class Endpoint:
    """:param url: the address below which all streams are.
    :raises UsageError: one of the settings is invalid.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        headers: AsyncValues | None,
        params: AsyncValues | None,
        retrying: Retrying | None,
    ) -> None:
        self._url = arguments.address(url)
        self.policy = retrying or Retrying()
        self.extras = Extras(token, headers, params)
        self._webhooks = Webhooks(self._url, self.policy)

    def stream(self, path: str) -> Calls:
        return Calls(self._url, path, self.policy)

    def subscription(self, id: str) -> Subscribing:
        return Subscribing(self._url, id, self.policy)

    def verified(self, body: bytes, signature: str) -> Steps[Holding]:
        wake = yield from self._webhooks.verified(body, signature)
        return Holding(self.subscription(wake.subscription_id), wake)
