"""What all admin calls share: one cluster client and one retry loop.

A call ends within its time-out. Errors that pass (a leader, controller or coordinator is moving) are retried, against
the new one; other errors are the result. Calls about many things return a result or an error for each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Self, TypeVar, Unpack

from penstock.client.addresses import Addresses
from penstock.client.cluster_client import ClusterClient, Kind
from penstock.client.cluster_metadata import Node, TopicPartition
from penstock.client.connection import Connection
from penstock.client.errors import (
    BootstrapError,
    BrokerError,
    NotConnected,
    PenstockError,
    TimedOut,
    UnknownBroker,
    UnknownTopic,
)
from penstock.client.leader_requests import Ask, ask_leaders
from penstock.client.settings import ClientOptions, ClientSettings, settings_from

T = TypeVar("T")
R = TypeVar("R")

# A new topic may be unknown to a broker that is a little behind: how many attempts are worth it.
_UNKNOWN_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings(ClientSettings):
    client_id: str = "penstock-admin"


class AdminCore:
    """The base of `AsyncAdmin`."""

    def __init__(
        self,
        bootstrap_servers: Addresses,
        **options: Unpack[ClientOptions],
    ) -> None:
        self.cluster = ClusterClient(
            bootstrap_servers, settings=settings_from(AdminSettings, options, "an admin client")
        )

    async def start(self, *, timeout_ms: int | None = None) -> None:
        """Connect; every call does so if necessary. Raises BootstrapError."""
        await self.cluster.start(timeout_ms=timeout_ms)

    async def close(self) -> None:
        """Close all connections. It may be called twice."""
        await self.cluster.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _now_ms(self) -> float:
        return self.cluster.clock.monotonic_ms()

    async def _retried(self, what: str, timeout_ms: int | None, ask: Callable[[int], Awaitable[T]]) -> T:
        """The result of `ask`, which gets the time that is left; retried while that may help."""
        limit_ms = timeout_ms if timeout_ms is not None else self.cluster.request_timeout_ms
        deadline_ms = self._now_ms() + limit_ms
        backoff = self.cluster.new_backoff()
        failure: PenstockError | None = None
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self.cluster.start()
                while True:
                    try:
                        return await ask(max(1, int(deadline_ms - self._now_ms())))
                    except (BrokerError, NotConnected, BootstrapError) as error:
                        if not _is_worth_retrying(error, backoff.failures):
                            raise
                        failure = error
                    await asyncio.sleep(backoff.failed(self._now_ms()) / 1000)
                    await self._refresh(failure)
        except TimeoutError as error:
            if isinstance(error, PenstockError):
                raise
            if failure is not None:
                raise failure from None
            raise TimedOut(
                f"{what} did not finish within {limit_ms} ms", hint="Check that the brokers are up"
            ) from None

    async def _refresh(self, failure: PenstockError) -> None:
        """Refresh metadata: there may be another controller by now."""
        if isinstance(failure, BrokerError):
            await self.cluster.refresh()
        elif isinstance(failure, NotConnected):
            with contextlib.suppress(NotConnected, BootstrapError):  # the next attempt raises
                await self.cluster.refresh()

    async def _of_coordinator(
        self, kind: Kind, key: str, what: str, timeout_ms: int | None, ask: Callable[[Connection, int], Awaitable[T]]
    ) -> T:
        """The answer of the coordinator of a group or a transactional id, wherever it is."""

        async def tried(left_ms: int) -> T:
            connection = await self.cluster.to_coordinator(kind, key)
            try:
                return await ask(connection, left_ms)
            except PenstockError as error:
                if error.retriable:
                    self.cluster.forget_coordinator(kind, key)
                raise

        return await self._retried(what, timeout_ms, tried)

    def _node_of(self, connection: Connection) -> Node | None:
        nodes = self.cluster.view.nodes.values()
        return next((node for node in nodes if f"{node.host}:{node.port}" == connection.node), None)

    async def _by_leader(
        self, what: str, partitions: Collection[TopicPartition], timeout_ms: int | None, ask: Ask[R]
    ) -> dict[TopicPartition, R | PenstockError]:
        """The results of the partitions' leaders."""
        limit_ms = timeout_ms if timeout_ms is not None else self.cluster.request_timeout_ms
        return await ask_leaders(self.cluster, what, partitions, ask, timeout_ms=limit_ms, retry=_is_worth_retrying)


def _is_worth_retrying(answer: object, failures: int) -> bool:
    if isinstance(answer, UnknownTopic | UnknownBroker):
        return failures < _UNKNOWN_TRIES - 1
    return isinstance(answer, PenstockError) and answer.retriable and not isinstance(answer, TimedOut)


def only(answers: dict[R, T | PenstockError]) -> T:
    """The only result of a call about one thing; raises it if it is an error."""
    (answer,) = answers.values()
    if isinstance(answer, PenstockError):
        raise answer
    return answer


def topic_partitions(pairs: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in pairs]
