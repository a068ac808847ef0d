"""A leader that is frozen or cut off keeps its connections and says nothing; clients continue with the next leader.

The request time-outs here are longer than a test may take, so a test that ends has not waited for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.client.scripted import VERSIONS, Scripted, brokers, run, speaking
from tests.timeouts import NEVER_MS, until_async

from penstock.client.cluster_client import ClusterClient
from penstock.client.consumer import AsyncConsumer
from penstock.client.errors import NotConnected
from penstock.client.producer import AsyncProducer
from penstock.records.batch import encode_batch
from penstock.wire.framing import RequestHeader
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.api_versions import ApiVersion
from penstock.wire.schemas.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from penstock.wire.schemas.init_producer_id import InitProducerIdResponse
from penstock.wire.schemas.list_groups import ListGroupsRequest
from penstock.wire.schemas.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from penstock.wire.schemas.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from penstock.wire.types import Message

TOPIC = "led"
_VERSIONS = [*VERSIONS, ApiVersion(api_key=ApiKey.INIT_PRODUCER_ID, min_version=0, max_version=4)]


class Pair:
    """Two brokers, of which the first leads the topic; `freeze` makes it say nothing from then on."""

    def __init__(self) -> None:
        self.servers = {1: Scripted(speaking(self._first, _VERSIONS)), 2: Scripted(speaking(self._second, _VERSIONS))}
        self.is_frozen = False
        self.leader, self.epoch = 1, 3
        self.names_first = True
        self.asked: list[tuple[int, ApiKey, Any]] = []

    def of(self, node: int, api: ApiKey) -> list[Any]:
        """What a broker was asked."""
        return [message for where, what, message in self.asked if (where, what) == (node, api)]

    def freeze(self) -> None:
        self.is_frozen = True

    def elect_second(self, *, names_first: bool = True) -> None:
        """The others hold the first for dead: they name another leader, and the first no more, or still."""
        self.leader, self.epoch, self.names_first = 2, 4, names_first

    def _first(self, header: RequestHeader, message: Any) -> Message | None:
        self.asked.append((1, header.api.key, message))
        return None if self.is_frozen else self._answer(header, message)

    def _second(self, header: RequestHeader, message: Any) -> Message | None:
        self.asked.append((2, header.api.key, message))
        return self._answer(header, message)

    def _answer(self, header: RequestHeader, message: Any) -> Message | None:
        match header.api.key:
            case ApiKey.METADATA:
                return self._metadata()
            case ApiKey.INIT_PRODUCER_ID:
                return InitProducerIdResponse(producer_id=7, producer_epoch=0)
            case ApiKey.PRODUCE:
                stored = PartitionProduceResponse(index=0, base_offset=5)
                return ProduceResponse(responses=[TopicProduceResponse(name=TOPIC, partition_responses=[stored])])
            case ApiKey.FETCH:
                return self._records(message)
        raise AssertionError(f"{header.api.key} was asked")

    def _metadata(self) -> MetadataResponse:
        nodes = [(number, "127.0.0.1", server.port) for number, server in self.servers.items()]
        answer = brokers(*(nodes if self.names_first else nodes[1:]))
        led = MetadataResponsePartition(
            partition_index=0, leader_id=self.leader, leader_epoch=self.epoch, replica_nodes=[1, 2], isr_nodes=[1, 2]
        )
        answer.topics = [MetadataResponseTopic(name=TOPIC, partitions=[led])]
        return answer

    def _records(self, request: Any) -> Message | None:
        if not request.topics or request.topics[0].partitions[0].fetch_offset > 0:
            return None  # it waits for more to come
        data = PartitionData(partition_index=0, high_watermark=1, records=encode_batch([(1, None, b"read", ())]))
        return FetchResponse(responses=[FetchableTopicResponse(topic=TOPIC, partitions=[data])])


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    brokers_ = Pair()
    async with brokers_.servers[1], brokers_.servers[2]:
        yield brokers_


def numbers(produced: Any) -> tuple[int, int, int]:
    """Producer id, epoch and first sequence number of the batch in a request."""
    batch = bytes(produced.topic_data[0].partition_data[0].records)
    return int.from_bytes(batch[43:51], "big"), int.from_bytes(batch[51:53], "big"), int.from_bytes(batch[53:57], "big")


@pytest.mark.parametrize("names_first", [True, False])
def test_a_producer_sends_again_to_the_new_leader_under_the_same_numbers(names_first: bool) -> None:
    async def story() -> None:
        async with pair() as both:
            addresses = [server.address for server in both.servers.values()]
            async with AsyncProducer(
                addresses, request_timeout_ms=NEVER_MS, delivery_timeout_ms=NEVER_MS, retry_backoff_ms=1
            ) as producer:
                await producer.send(TOPIC, b"before")
                both.freeze()
                delivery = await producer.enqueue(TOPIC, b"during")
                await until_async(lambda: len(both.of(1, ApiKey.PRODUCE)) == 2, "the old leader has the request")
                assert not both.of(2, ApiKey.PRODUCE)
                both.elect_second(names_first=names_first)
                assert (await delivery).offset == 5
                [again] = both.of(2, ApiKey.PRODUCE)
                assert numbers(again) == numbers(both.of(1, ApiKey.PRODUCE)[1]) == (7, 0, 1)
                assert (await producer.send(TOPIC, b"after")).offset == 5

    run(story())


def test_a_producer_waits_for_a_slow_leader_while_there_is_no_other() -> None:
    async def story() -> None:
        async with pair() as both:
            addresses = [server.address for server in both.servers.values()]
            async with AsyncProducer(addresses, request_timeout_ms=NEVER_MS, delivery_timeout_ms=NEVER_MS) as producer:
                await producer.send(TOPIC, b"before")
                both.freeze()
                delivery = await producer.enqueue(TOPIC, b"during")
                asked = len(both.of(2, ApiKey.METADATA))
                await until_async(lambda: len(both.of(2, ApiKey.METADATA)) > asked + 2, "the other broker was asked")
                assert not delivery.done()
                assert len(both.of(1, ApiKey.PRODUCE)) == 2
                both.elect_second()
                await delivery

    run(story())


def test_a_consumer_reads_on_from_the_new_leader() -> None:
    async def story() -> None:
        async with pair() as both:
            addresses = [server.address for server in both.servers.values()]
            both.freeze()  # it greets all the same
            async with AsyncConsumer(bootstrap_servers=addresses[1:], request_timeout_ms=NEVER_MS) as consumer:
                await consumer.assign([(TOPIC, 0)])
                await consumer.seek((TOPIC, 0), 0)
                reading = asyncio.ensure_future(anext(aiter(consumer)))
                await until_async(lambda: both.of(1, ApiKey.FETCH), "the old leader has the request")
                both.elect_second()
                assert (await reading).value == b"read"
                in_flight = consumer._core._fetcher._in_flight
                await until_async(
                    lambda: {node for node, _ in in_flight} == {2}, "nothing is waited for at the old one"
                )

    run(story())


def test_metadata_is_asked_of_another_broker_when_one_does_not_answer() -> None:
    async def story() -> None:
        async with pair() as both:
            addresses = [both.servers[1].address]
            async with ClusterClient(addresses, request_timeout_ms=NEVER_MS) as client:
                await client.to(1)
                both.freeze()
                both.elect_second()
                await client.refresh([TOPIC])
                leader = client.view.leader_of(TOPIC, 0)
                assert leader is not None
                assert leader.leader == 2
                # The silent one is not asked again as long as there is another.
                first = len(both.of(1, ApiKey.METADATA))
                await client.refresh([TOPIC])
                assert len(both.of(1, ApiKey.METADATA)) == first

    run(story())


def test_requests_to_a_broker_that_left_the_cluster_end_when_another_says_so() -> None:
    async def story() -> None:
        async with pair() as both:
            addresses = [server.address for server in both.servers.values()]
            async with ClusterClient(addresses, request_timeout_ms=NEVER_MS) as client:
                connection = await client.to(1, lane="group")
                both.freeze()
                both.elect_second(names_first=False)
                with pytest.raises(NotConnected, match="has left the cluster"):
                    await connection.request(ApiKey.LIST_GROUPS, ListGroupsRequest(), timeout_ms=NEVER_MS)

    run(story())


def test_a_single_broker_is_not_asked_for_metadata_while_it_is_slow() -> None:
    async def story() -> None:
        async with pair() as both:
            del both.servers[2]
            async with ClusterClient([both.servers[1].address], request_timeout_ms=NEVER_MS) as client:
                connection = await client.to(1)
                reports: list[int] = []
                stop = client.on_overdue(reports.append)
                both.freeze()
                asked = len(both.of(1, ApiKey.METADATA))
                waiting = asyncio.ensure_future(
                    connection.request(ApiKey.LIST_GROUPS, ListGroupsRequest(), timeout_ms=NEVER_MS)
                )
                await until_async(lambda: len(reports) > 1, "it is known to be silent")
                assert connection.is_silent
                assert reports == [1] * len(reports)
                assert len(both.of(1, ApiKey.METADATA)) == asked
                stop()
                waiting.cancel()

    run(story())
