"""What all admin calls share: one cluster client and one retry loop.

A call ends within its time-out. Errors that pass (a leader, controller or coordinator is moving) are retried, against
the new one; other errors are the result. Calls about many things return a result or an error for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl as tls
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Self, TypeVar

from penstock.client.addresses import Addresses
from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.connection import Connection
from penstock.client.errors import (
    BootstrapError,
    BrokerError,
    NotConnected,
    PenstockError,
    TimedOut,
    UnknownBroker,
    UnknownTopic,
    error_for,
)
from penstock.wire.protocol import ErrorCode

T = TypeVar("T")
R = TypeVar("R")

# A topic made a moment ago may be unknown to a broker that is a little behind; for how long it is worth asking again.
_UNKNOWN_TRIES = 3


class AdminCore:
    """The base of `AsyncAdmin`."""

    def __init__(
        self,
        bootstrap_servers: Addresses,
        *,
        client_id: str = "penstock-admin",
        request_timeout_ms: int = 30_000,
        connect_timeout_ms: int = 10_000,
        ssl: tls.SSLContext | None = None,
    ) -> None:
        self.cluster = ClusterClient(
            bootstrap_servers,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            ssl=ssl,
        )

    async def start(self, *, timeout_ms: int | None = None) -> None:
        """Find the cluster; every call does so if need be. Raises BootstrapError."""
        await self.cluster.start(timeout_ms=timeout_ms)

    async def close(self) -> None:
        """Close all connections; again is harmless."""
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

    async def _tried(self, what: str, timeout_ms: int | None, ask: Callable[[int], Awaitable[T]]) -> T:
        """The answer of `ask`, which is given the time that is left, tried again while that may help."""
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
                        if not _worth_another(error, backoff.failures):
                            raise
                        failure = error
                    await asyncio.sleep(backoff.failed(self._now_ms()) / 1000)
                    await self._look_around(failure)
        except TimeoutError as error:
            if isinstance(error, PenstockError):
                raise
            if failure is not None:
                raise failure from None
            raise TimedOut(
                f"{what} did not finish within {limit_ms} ms", hint="See whether the brokers are up"
            ) from None

    async def _look_around(self, failure: PenstockError) -> None:
        """Ask again who is there: the controller may be another one by now."""
        if isinstance(failure, BrokerError):
            await self.cluster.refresh()
        elif isinstance(failure, NotConnected):
            with contextlib.suppress(NotConnected, BootstrapError):  # the next try says what is the matter
                await self.cluster.refresh()

    async def _by_leader(
        self,
        what: str,
        partitions: Collection[TopicPartition],
        timeout_ms: int | None,
        ask: Callable[[Connection, list[TopicPartition], int], Awaitable[dict[TopicPartition, R | PenstockError]]],
    ) -> dict[TopicPartition, R | PenstockError]:
        """The answers of the partitions' leaders, one request a leader and try."""
        limit_ms = timeout_ms if timeout_ms is not None else self.cluster.request_timeout_ms
        deadline_ms = self._now_ms() + limit_ms
        answers: dict[TopicPartition, R | PenstockError] = {}
        open_ = list(dict.fromkeys(partitions))
        backoff = self.cluster.new_backoff()
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self.cluster.start()
                if any(self.cluster.view.leader_of(*partition) is None for partition in open_):
                    await self.cluster.refresh({partition.topic for partition in open_})
                while open_:
                    left_ms = max(1, int(deadline_ms - self._now_ms()))
                    answers.update(await self._ask_leaders(open_, left_ms, ask))
                    again = [item for item in open_ if _worth_another(answers[item], backoff.failures)]
                    open_ = again
                    if open_:
                        await asyncio.sleep(backoff.failed(self._now_ms()) / 1000)
                        await self.cluster.refresh({partition.topic for partition in open_})
        except TimeoutError as error:
            if isinstance(error, PenstockError) and not answers:
                raise
            late = TimedOut(f"{what} did not finish within {limit_ms} ms")
            for partition in open_:
                answers.setdefault(partition, late)
        return {partition: answers[partition] for partition in dict.fromkeys(partitions)}

    async def _ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        left_ms: int,
        ask: Callable[[Connection, list[TopicPartition], int], Awaitable[dict[TopicPartition, R | PenstockError]]],
    ) -> dict[TopicPartition, R | PenstockError]:
        answers: dict[TopicPartition, R | PenstockError] = {}
        by_node: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            view = self.cluster.view.leader_of(*partition)
            if view is None:
                answers[partition] = error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, where=str(partition))
            elif view.leader < 0:
                answers[partition] = error_for(ErrorCode.LEADER_NOT_AVAILABLE, where=str(partition))
            else:
                by_node.setdefault(view.leader, []).append(partition)

        async def one(node_id: int, led: list[TopicPartition]) -> dict[TopicPartition, R | PenstockError]:
            try:
                return await ask(await self.cluster.to(node_id), led, left_ms)
            except PenstockError as error:
                return dict.fromkeys(led, error)

        for found in await asyncio.gather(*(one(node_id, led) for node_id, led in by_node.items())):
            answers.update(found)
        return answers


def _worth_another(answer: object, failures: int) -> bool:
    if isinstance(answer, UnknownTopic | UnknownBroker):
        return failures < _UNKNOWN_TRIES - 1
    return isinstance(answer, PenstockError) and answer.retriable and not isinstance(answer, TimedOut)


def only(answers: dict[R, T | PenstockError]) -> T:
    """The single answer of a call about one thing; raises it if it is an error."""
    (answer,) = answers.values()
    if isinstance(answer, PenstockError):
        raise answer
    return answer


def topic_partitions(pairs: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in pairs]
