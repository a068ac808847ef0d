"""The way from this broker to the others.

Noun: a `BrokerLink`, one connection to one broker for one purpose, opened when it is first asked for.

Rule: whoever asks gets an answer or LinkLost; a connection that broke is opened anew with the next question, to the
address under which the broker is registered by then. Links do not share connections: a broker answers in order, and
what the controller says must not wait behind a long poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.client.addresses import Address
from penstock.client.connection import Connection
from penstock.client.errors import PenstockError
from penstock.client.opening import Way, open_connection
from penstock.replication.links import LinkLost
from penstock.wire.types import Message

AddressOf = Callable[[int], Address | None]
"""By the broker's id; None if it is not registered."""


class BrokerLinks:
    """Makes links; `close` ends all of them."""

    def __init__(self, address_of: AddressOf, way: Way) -> None:
        self._address_of = address_of
        self._way = way
        self._links: set[BrokerLink] = set()

    def to(self, broker_id: int) -> BrokerLink:
        link = BrokerLink(self, broker_id, self._address_of, self._way)
        self._links.add(link)
        return link

    def forget(self, link: BrokerLink) -> None:
        self._links.discard(link)

    def close(self) -> None:
        for link in tuple(self._links):
            link.close()


class BrokerLink:
    """See `penstock.replication.links.Link`."""

    def __init__(self, links: BrokerLinks, broker_id: int, address_of: AddressOf, way: Way) -> None:
        self._links = links
        self._broker_id = broker_id
        self._address_of = address_of
        self._way = way
        self._connection: Connection | None = None
        self._address: Address | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def ask(self, api_key: int, version: int, message: Message, timeout_ms: float) -> Message:
        """LinkLost; then nobody knows whether the question arrived."""
        try:
            connection = await self._open()
            answer: Message = await connection.request(api_key, message, version=version, timeout_ms=timeout_ms)
        except PenstockError as error:
            raise LinkLost(f"broker {self._broker_id}: {error}") from error
        return answer

    def send(self, api_key: int, version: int, message: Message, timeout_ms: float) -> asyncio.Future[Message] | None:
        connection = self._connection
        if connection is None or connection.closed or self._address_of(self._broker_id) != self._address:
            return None
        return connection.send(api_key, message, version=version, timeout_ms=timeout_ms)

    async def _open(self) -> Connection:
        async with self._opening:
            self._require_open()
            address = self._address_of(self._broker_id)
            if address is None:
                raise LinkLost(f"broker {self._broker_id} is not registered")
            connection = self._connection
            if connection is not None and not connection.closed and address == self._address:
                return connection
            if connection is not None:
                connection.close("the broker is registered with another address")
            self._connection, self._address = await open_connection(address, self._way), address
            self._require_open()
            return self._connection

    def _require_open(self) -> None:
        if self._closed:
            if self._connection is not None:
                self._connection.close("the link is closed")
            raise LinkLost(f"broker {self._broker_id}: the link is closed")

    def close(self) -> None:
        """Whoever waits gets LinkLost. Again is harmless."""
        self._closed = True
        self._links.forget(self)
        if self._connection is not None:
            self._connection.close("the link is closed")
