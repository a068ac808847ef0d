"""Reading from a nearer replica: when, from whom, and how a consumer finds back to the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.client.scripted import VERSIONS, Scripted, brokers, run, speaking
from tests.timeouts import PATIENCE_S

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.async_consumer import AsyncConsumer
from penstock.client.fetch_state import PreferredReadReplicas
from penstock.records import encode_batch
from penstock.wire.framing import RequestHeader
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from penstock.wire.schemas.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from penstock.wire.types import Message

P = TopicPartition("views", 0)
LEADER, NEAR = 1, 2
BOTH = {LEADER, NEAR}


def redirected(at_ms: float = 0.0) -> PreferredReadReplicas:
    near = PreferredReadReplicas(max_age_ms=1_000)
    near.redirected(P, NEAR, 5, at_ms)
    return near


def test_a_redirection_holds_for_its_time() -> None:
    near = redirected()
    assert near.source(P, LEADER, 5, BOTH, 999) == NEAR
    assert near.source(TopicPartition("views", 1), LEADER, 5, BOTH, 999) == LEADER
    assert near.source(P, LEADER, 5, BOTH, 1_000) == LEADER
    assert near.may_redirect([P], 1_000), "it was not let down: the leader may name a nearer one again"


def test_a_new_leader_ends_it() -> None:
    assert redirected().source(P, LEADER, 6, BOTH, 1) == LEADER


def test_a_replica_whose_broker_has_left_is_avoided_for_a_while() -> None:
    near = redirected()
    assert near.source(P, LEADER, 5, {LEADER}, 1) == LEADER
    assert not near.may_redirect([P], 2)
    assert near.may_redirect([TopicPartition("views", 1)], 2)
    assert near.may_redirect([P], 60_000)


def test_only_an_error_of_the_preferred_replica_ends_the_redirection() -> None:
    near = redirected()
    assert not near.ended(P, LEADER, 1)
    assert near.ended(P, NEAR, 1)
    assert not near.ended(P, NEAR, 2)
    assert near.source(P, LEADER, 5, BOTH, 3) == LEADER
    assert not near.may_redirect([P], 3)


def test_a_broker_that_does_not_answer_ends_all_that_lead_to_it() -> None:
    near = redirected()
    near.lost(LEADER, 1)
    assert near.source(P, LEADER, 5, BOTH, 1) == NEAR
    near.lost(NEAR, 1)
    assert near.source(P, LEADER, 5, BOTH, 1) == LEADER


Serve = Callable[[int, FetchRequest], PartitionData]


class TwoBrokers:
    """A leader and a follower that answer fetches as the test says; records which broker was asked, for which rack."""

    def __init__(self, serve: Serve) -> None:
        self.asked: list[tuple[int, str, int]] = []
        self._serve = serve
        self._servers = {node: Scripted(speaking(self._answering(node), VERSIONS)) for node in (LEADER, NEAR)}

    def _answering(self, node: int) -> Callable[[RequestHeader, Any], Message | None]:
        def answer(header: RequestHeader, message: Any) -> Message | None:
            if header.api.key is ApiKey.METADATA:
                return self._metadata()
            if header.api.key is not ApiKey.FETCH:
                raise AssertionError(header)
            wanted = [one for topic in message.topics for one in topic.partitions]
            self.asked.append((node, message.rack_id, wanted[0].fetch_offset))
            answered = FetchableTopicResponse(topic=P.topic, partitions=[self._serve(node, message)])
            return FetchResponse(responses=[answered])

        return answer

    def _metadata(self) -> MetadataResponse:
        found = brokers(*((node, "127.0.0.1", server.port) for node, server in self._servers.items()))
        led = MetadataResponsePartition(
            partition_index=0, leader_id=LEADER, leader_epoch=5, replica_nodes=[LEADER, NEAR], isr_nodes=[LEADER, NEAR]
        )
        found.topics = [MetadataResponseTopic(name=P.topic, partitions=[led])]
        return found

    def read(self, count: int) -> list[bytes]:
        async def story() -> list[bytes]:
            async with (
                self._servers[LEADER] as first,
                self._servers[NEAR],
                AsyncConsumer(
                    bootstrap_servers=first.address, client_rack="here", auto_offset_reset="earliest"
                ) as consumer,
            ):
                await consumer.assign([P])
                await consumer.seek(P, 0)
                found: list[bytes] = []
                async with asyncio.timeout(PATIENCE_S):
                    async for record in consumer:
                        found.append(record.value)
                        if len(found) == count:
                            return found
                raise AssertionError("it ended")

        return run(story())


def one_record(message: FetchRequest) -> PartitionData:
    offset = message.topics[0].partitions[0].fetch_offset
    batch = encode_batch([(0, None, b"%d" % offset, ())], base_offset=offset)
    return PartitionData(partition_index=0, high_watermark=100, records=batch)


def redirection() -> PartitionData:
    return PartitionData(partition_index=0, high_watermark=100, preferred_read_replica=NEAR)


def test_records_come_from_the_replica_that_the_leader_names() -> None:
    cluster = TwoBrokers(lambda node, message: redirection() if node == LEADER else one_record(message))
    assert cluster.read(3) == [b"0", b"1", b"2"]
    assert cluster.asked[:4] == [(LEADER, "here", 0), (NEAR, "here", 0), (NEAR, "here", 1), (NEAR, "here", 2)]


def test_a_replica_that_is_behind_sends_the_reader_back_and_loses_it_nothing() -> None:
    """It says that an offset is out of range which only the leader may say so about."""

    def serve(node: int, message: FetchRequest) -> PartitionData:
        if node == NEAR and message.topics[0].partitions[0].fetch_offset > 0:
            return PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        return redirection() if node == LEADER and message.rack_id else one_record(message)

    cluster = TwoBrokers(serve)
    assert cluster.read(3) == [b"0", b"1", b"2"]
    assert cluster.asked[:5] == [
        (LEADER, "here", 0), (NEAR, "here", 0), (NEAR, "here", 1), (LEADER, "", 1), (LEADER, "", 2),
    ]  # fmt: skip


def test_an_unreachable_replica_leaves_the_leader() -> None:
    def serve(node: int, message: FetchRequest) -> PartitionData:
        if node == NEAR:
            raise ConnectionAbortedError
        return redirection() if message.rack_id else one_record(message)

    cluster = TwoBrokers(serve)
    assert cluster.read(2) == [b"0", b"1"]
    assert cluster.asked[:4] == [(LEADER, "here", 0), (NEAR, "here", 0), (LEADER, "", 0), (LEADER, "", 1)]
