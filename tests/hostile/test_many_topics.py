"""A request for very many topics: it costs what it asks for, and others are served meanwhile."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from tests.broker.wire_client import WireClient, batch_of, call, fetch_request, make_topic
from tests.hostile.fuzz.run import Child
from tests.timeouts import PATIENCE_MS, PATIENCE_S, until

from penstock.broker.broker import Broker
from penstock.cluster.image import ClusterImage
from penstock.runtime.garbage_collector import MOST_EXAMINED
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.create_topics import CreatableTopic, CreateTopicsRequest
from penstock.wire.schemas.delete_topics import DeleteTopicsRequest
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest
from penstock.wire.schemas.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.wire.schemas.leave_group import LeaveGroupRequest

COUNT = 400
MANY = 3_000
"""Topics with three times as many objects as a full collection of garbage may look at."""


@pytest.fixture
def embedded() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings={"offsets.topic.num.partitions": "2"}) as broker:
        yield broker


@pytest.fixture
def child(tmp_path: Path) -> Iterator[tuple[Child, int]]:
    """A broker in a process of its own, as `penstock server` runs one, and its port."""
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), "socket.busy.poll.us": "0"}
    process = Child("broker_process")
    try:
        started = process.ask(json.dumps({"settings": settings, "topics": {}, "counts_objects": True}))
        yield process, int(started["PLAINTEXT"])
    finally:
        process.end()


def new_topics(count: int) -> CreateTopicsRequest:
    topics = [CreatableTopic(name=f"many-{number}", num_partitions=1, replication_factor=1) for number in range(count)]
    return CreateTopicsRequest(topics=topics, timeout_ms=PATIENCE_MS)


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
    topics = new_topics(COUNT).topics
    names = [each.name for each in topics]
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

    def made() -> int:
        return len(broker.cluster.image.topics) - 1

    with ThreadPoolExecutor(1) as pool, WireClient(embedded.port) as second:
        asked = pool.submit(client.ask, ApiKey.CREATE_TOPICS, new_topics(COUNT), 7)
        until(lambda: made() > 0, "the first of them are there")
        while not asked.done():
            assert second.produce(other, batch_of(b"x")).error_code == ErrorCode.NONE
            answered.append(made())
        assert {each.error_code for each in asked.result().topics} == {ErrorCode.NONE}
    between = [count for count in answered if 0 < count < COUNT]
    assert len(set(between)) >= 2, "another client is answered at several moments of the request"


def test_no_collection_of_garbage_looks_at_all_partitions(child: tuple[Child, int]) -> None:
    """With 10,000 partitions, full collections held the loop, and all threads, for 0.22 s."""
    broker, port = child
    with WireClient(port, timeout_s=2 * PATIENCE_S) as client:
        answer = client.ask(ApiKey.CREATE_TOPICS, new_topics(MANY), 7)
    assert {each.error_code for each in answer.topics} == {ErrorCode.NONE}
    status = broker.ask("status")
    assert 0 < status["most_examined"] <= MOST_EXAMINED
    assert not status["surprises"]
    sys.stdout.write(f"CreateTopics of {MANY}: longest turn {status['longest_cpu_ms']:.1f} ms\n")


def make_and_delete(client: WireClient, count: int) -> None:
    """Topics with a record."""
    made = client.ask(ApiKey.CREATE_TOPICS, new_topics(count), 7)
    assert {each.error_code for each in made.topics} == {ErrorCode.NONE}
    names = [each.name for each in made.topics]
    for name in names:
        client.produce(name, batch_of(b"x"))
        client.fetch(name)
    gone = client.ask(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topic_names=names), 5)
    assert {each.error_code for each in gone.responses} == {ErrorCode.NONE}


def come_and_go(client: WireClient, count: int) -> None:
    """Members of groups, connections with a fetch session, and connections that send something else than a request."""
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    for number in range(count):
        group = f"group-{number}"
        join = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[protocol],
        )
        member_id = client.ask(ApiKey.JOIN_GROUP, join, 3).member_id
        client.ask(ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id=group, member_id=member_id), 1)
        with WireClient(client.socket.getpeername()[1]) as other:
            other.ask(ApiKey.FETCH, fetch_request({("nothing", 0): 0}, session_epoch=0), 12)
        with WireClient(client.socket.getpeername()[1]) as other:
            other.send_bytes(pack(">i", 8) + b"nonsense")
            assert other.is_ended()


@pytest.mark.parametrize("come", [make_and_delete, come_and_go])
def test_what_clients_leave_behind_is_freed_without_a_collection_of_garbage(
    come: Callable[[WireClient, int], None], embedded: EmbeddedBroker, client: WireClient
) -> None:
    """What is in a cycle may be set aside before it is garbage, and stay for long."""
    wait_for_groups(client)
    come(client, 1)  # the codecs are compiled
    gc.collect()
    gc.disable()
    try:
        come(client, COUNT)
        found = gc.collect()
    finally:
        gc.enable()
    assert found < COUNT


def wait_for_groups(client: WireClient) -> None:
    question = FindCoordinatorRequest(key="group-0")
    until(lambda: not client.ask(ApiKey.FIND_COORDINATOR, question, 3).error_code, "there is a coordinator")
