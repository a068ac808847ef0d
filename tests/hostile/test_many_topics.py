"""A request for very many topics: it costs what it asks for, and others are served meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.broker.wire_client import WireClient, batch_of, call, make_topic
from tests.timeouts import until

from penstock.broker.broker import Broker
from penstock.cluster.image import ClusterImage
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.wire.schemas.delete_topics import DeleteTopicsRequest

COUNT = 400


@pytest.fixture
def embedded() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


class Counted:
    """What a change of the metadata costs, in steps: writes to the tree, and images that everybody follows."""

    def __init__(self, broker: Broker) -> None:
        self.writes = self.images = 0
        metadata: Any = broker.cluster
        tree = metadata._tree
        multi = tree.multi

        async def counted(operations: Any) -> None:
            self.writes += 1
            await multi(operations)

        tree.multi = counted
        broker.cluster.listen(self._count)

    def _count(self, _: ClusterImage, __: ClusterImage) -> None:
        self.images += 1


def test_many_topics_are_made_and_deleted_in_few_steps(embedded: EmbeddedBroker, client: WireClient) -> None:
    """Ten thousand topics took 168 s: each was a write, an image, and a walk over all topics."""
    broker = embedded.broker
    counted = call(broker, lambda: Counted(broker))
    names = [f"many-{number}" for number in range(COUNT)]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    answer = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=topics), 7)
    assert [each.error_code for each in answer.topics] == [ErrorCode.NONE] * COUNT
    assert counted.writes <= COUNT // 25
    assert counted.images <= COUNT // 25
    # Topics that set the same have the same settings, in one object.
    settings = {id(each.log.settings) for each in broker.replicas if each.topic in set(names)}
    assert len(settings) == 1
    for name in names[::50]:
        assert client.produce(name, batch_of(b"x")).error_code == ErrorCode.NONE

    again = client.ask(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=topics[:2]), 7)
    assert {each.error_code for each in again.topics} == {ErrorCode.TOPIC_ALREADY_EXISTS}
    counted.writes = counted.images = 0
    gone = client.ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topic_names=[*names, "never"]), 5)
    assert [each.error_code for each in gone.responses] == [0] * COUNT + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert counted.writes <= COUNT // 25
    assert not [name for name in broker.cluster.image.topics if name.startswith("many-")]


def test_others_are_served_between_the_groups_of_a_long_request(embedded: EmbeddedBroker, client: WireClient) -> None:
    broker = embedded.broker
    other = make_topic(broker)
    answered: list[int] = []
    topics = [CreatableTopic(name=f"many-{number}", num_partitions=1, replication_factor=1) for number in range(COUNT)]

    def made() -> int:
        return len(broker.cluster.image.topics) - 1

    with ThreadPoolExecutor(1) as pool, WireClient(embedded.port) as second:
        asked = pool.submit(client.ask, ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=topics), 7)
        until(lambda: made() > 0, "the first of them are there")
        while not asked.done():
            assert second.produce(other, batch_of(b"x")).error_code == ErrorCode.NONE
            answered.append(made())
        assert {each.error_code for each in asked.result().topics} == {ErrorCode.NONE}
    between = [count for count in answered if 0 < count < COUNT]
    assert len(set(between)) >= 2, "another client is answered at several moments of the request"
