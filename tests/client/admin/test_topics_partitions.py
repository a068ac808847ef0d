"""Elections, moves and eligible leaders: what the admin client asks for, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.client.scripted import VERSIONS, Scripted, brokers, run, speaking
from tests.timeouts import PATIENCE_MS

from penstock.client.admin import AsyncAdmin, PartitionReassignment
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import BrokerError, ConfigError, InvalidSetting, PenstockError, UnsupportedVersion
from penstock.wire.framing import RequestHeader
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas import alter_partition_reassignments as alter
from penstock.wire.schemas import describe_topic_partitions as pages
from penstock.wire.schemas import elect_leaders as elect
from penstock.wire.schemas import list_partition_reassignments as listing
from penstock.wire.schemas.api_versions import ApiVersion
from penstock.wire.schemas.metadata import MetadataResponsePartition, MetadataResponseTopic
from penstock.wire.types import Message

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Asked:
    """A broker that answers from a list, and remembers what it was asked for."""

    def __init__(self, api: ApiKey, *answers: Message, highest: int = 2) -> None:
        self.requests: list[Any] = []
        self._api = api
        self._answers = list(answers)
        self.topics: list[MetadataResponseTopic] = []
        versions = [*VERSIONS, ApiVersion(api_key=api, min_version=0, max_version=highest)]
        self.server = Scripted(speaking(self._answer, versions))

    def _answer(self, header: RequestHeader, message: Any) -> Message:
        if header.api.key is not self._api:
            found = brokers((1, "127.0.0.1", self.server.port))
            found.topics = self.topics
            return found
        self.requests.append(message)
        return self._answers.pop(0)

    def run(self, call: Callable[[AsyncAdmin], Any]) -> Any:
        async def story() -> Any:
            async with self.server, AsyncAdmin(self.server.address, request_timeout_ms=PATIENCE_MS) as admin:
                return await call(admin)

        return run(story())


def elected(*codes: tuple[TopicPartition, int]) -> elect.ElectLeadersResponse:
    topics: dict[str, list[elect.PartitionResult]] = {}
    for (topic, index), code in codes:
        topics.setdefault(topic, []).append(elect.PartitionResult(partition_id=index, error_code=code))
    return elect.ElectLeadersResponse(
        replica_election_results=[
            elect.ReplicaElectionResult(topic=topic, partition_result=rows) for topic, rows in topics.items()
        ]
    )


def code_of(outcome: PenstockError | None) -> ErrorCode | None:
    return None if outcome is None else outcome.code


# --- elections


def test_each_partition_has_its_outcome() -> None:
    broker = Asked(ApiKey.ELECT_LEADERS, elected((A0, 0), (A1, 84), (B0, 80)))
    outcomes = broker.run(lambda admin: admin.elect_leaders("preferred", [A0, ("a", 1), B0, A0]))
    assert {key: code_of(outcome) for key, outcome in outcomes.items()} == {
        A0: None, A1: ErrorCode.ELECTION_NOT_NEEDED, B0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }  # fmt: skip
    (request,) = broker.requests
    assert request.election_type == 0
    assert [(topic.topic, topic.partitions) for topic in request.topic_partitions] == [("a", [0, 1]), ("b", [0])]


def test_without_partitions_all_are_meant_and_an_empty_list_sends_nothing() -> None:
    broker = Asked(ApiKey.ELECT_LEADERS, elected((A0, 0)))
    assert broker.run(lambda admin: admin.elect_leaders("unclean")) == {A0: None}
    assert (broker.requests[0].election_type, broker.requests[0].topic_partitions) == (1, None)
    assert Asked(ApiKey.ELECT_LEADERS).run(lambda admin: admin.elect_leaders("preferred", [])) == {}


def test_an_old_controller_elects_preferred_leaders_only() -> None:
    broker = Asked(ApiKey.ELECT_LEADERS, elected((A0, 0)), highest=0)
    assert broker.run(lambda admin: admin.elect_leaders("preferred", [A0])) == {A0: None}
    with pytest.raises(UnsupportedVersion, match="unclean"):
        Asked(ApiKey.ELECT_LEADERS, highest=0).run(lambda admin: admin.elect_leaders("unclean", [A0]))


@pytest.mark.parametrize(
    "moved", [elect.ElectLeadersResponse(error_code=41), elected((A0, 41))], ids=["whole answer", "one partition"]
)
def test_a_controller_that_moves_is_followed(moved: Message) -> None:
    broker = Asked(ApiKey.ELECT_LEADERS, moved, elected((A0, 0)))
    assert broker.run(lambda admin: admin.elect_leaders("preferred", [A0])) == {A0: None}


def test_a_partition_without_an_answer_does_not_count_as_done() -> None:
    broker = Asked(ApiKey.ELECT_LEADERS, elected((A0, 0)))
    outcomes = broker.run(lambda admin: admin.elect_leaders("preferred", [A0, A1]))
    assert outcomes[A0] is None
    assert "does not contain the partition" in str(outcomes[A1])


def test_an_unknown_election_type_is_rejected() -> None:
    with pytest.raises(ConfigError, match="clean"):
        Asked(ApiKey.ELECT_LEADERS).run(lambda admin: admin.elect_leaders("clean", [A0]))  # type: ignore[arg-type]


# --- moves


def altered(*codes: tuple[TopicPartition, int]) -> alter.AlterPartitionReassignmentsResponse:
    topics: dict[str, list[alter.ReassignablePartitionResponse]] = {}
    for (topic, index), code in codes:
        row = alter.ReassignablePartitionResponse(partition_index=index, error_code=code, error_message="why")
        topics.setdefault(topic, []).append(row)
    return alter.AlterPartitionReassignmentsResponse(
        responses=[alter.ReassignableTopicResponse(name=topic, partitions=rows) for topic, rows in topics.items()]
    )


def test_moves_are_begun_and_taken_back_by_one_request() -> None:
    broker = Asked(ApiKey.ALTER_PARTITION_REASSIGNMENTS, altered((A0, 0), (A1, 39), (B0, 85)), highest=1)
    wanted: dict[tuple[str, int], Sequence[int] | None] = {A0: (1, 2), A1: [7], B0: None}
    outcomes = broker.run(lambda admin: admin.alter_partition_reassignments(wanted))
    assert outcomes[A0] is None
    assert isinstance(outcomes[A1], InvalidSetting)
    assert "a-1: why" in outcomes[A1].message
    assert code_of(outcomes[B0]) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    sent = [
        (topic.name, part.partition_index, part.replicas)
        for topic in broker.requests[0].topics
        for part in topic.partitions
    ]
    assert sent == [("a", 0, [1, 2]), ("a", 1, [7]), ("b", 0, None)]


def test_an_answer_about_the_whole_is_raised() -> None:
    answer = alter.AlterPartitionReassignmentsResponse(error_code=31, error_message="not you")
    broker = Asked(ApiKey.ALTER_PARTITION_REASSIGNMENTS, answer, highest=1)
    with pytest.raises(BrokerError, match="not you"):
        broker.run(lambda admin: admin.alter_partition_reassignments({A0: [1]}))


def test_moves_under_way_are_listed() -> None:
    part = listing.OngoingPartitionReassignment(
        partition_index=0, replicas=[2, 3, 1], adding_replicas=[2, 3], removing_replicas=[1]
    )
    answer = listing.ListPartitionReassignmentsResponse(
        topics=[listing.OngoingTopicReassignment(name="a", partitions=[part])]
    )
    broker = Asked(ApiKey.LIST_PARTITION_REASSIGNMENTS, answer, answer, highest=0)

    async def both(admin: AsyncAdmin) -> Sequence[Any]:
        return await admin.list_partition_reassignments(), await admin.list_partition_reassignments([A0])

    every, named = broker.run(both)
    assert every == named == {A0: PartitionReassignment((2, 3, 1), (2, 3), (1,))}
    assert every[A0].target == (2, 3)
    assert broker.requests[0].topics is None
    assert [(topic.name, topic.partition_indexes) for topic in broker.requests[1].topics] == [("a", [0])]


def test_brokers_without_moves_say_so() -> None:
    with pytest.raises(UnsupportedVersion, match="ListPartitionReassignments"):
        Asked(ApiKey.ELECT_LEADERS).run(lambda admin: admin.list_partition_reassignments())


# --- eligible leaders


def page(index: int, elr: list[int] | None, following: int | None) -> pages.DescribeTopicPartitionsResponse:
    part = pages.DescribeTopicPartitionsResponsePartition(
        partition_index=index, eligible_leader_replicas=elr, last_known_elr=[9] if elr else None
    )
    return pages.DescribeTopicPartitionsResponse(
        topics=[pages.DescribeTopicPartitionsResponseTopic(name="a", partitions=[part])],
        next_cursor=None if following is None else pages.Cursor(topic_name="a", partition_index=following),
    )


def described(broker: Asked, count: int) -> list[tuple[Any, Any]]:
    parts = [
        MetadataResponsePartition(partition_index=index, leader_id=1, replica_nodes=[1, 2, 3], isr_nodes=[1, 2])
        for index in range(count)
    ]
    broker.topics = [MetadataResponseTopic(name="a", partitions=parts)]
    found = broker.run(lambda admin: admin.describe_topics(["a"], include_eligible=True))
    return [(part.eligible, part.last_known_eligible) for part in found["a"].partitions]


def test_eligible_leaders_come_page_by_page() -> None:
    answers = (page(0, [3], 1), page(1, [], 2), page(2, [2, 3], None))
    broker = Asked(ApiKey.DESCRIBE_TOPIC_PARTITIONS, *answers, highest=0)
    assert described(broker, 3) == [((3,), (9,)), ((), ()), ((3,), (9,))], (
        "one that is in sync by now is not among them"
    )
    assert [request.cursor and request.cursor.partition_index for request in broker.requests] == [None, 1, 2]


def test_a_broker_that_turns_in_circles_is_not_asked_forever() -> None:
    broker = Asked(ApiKey.DESCRIBE_TOPIC_PARTITIONS, page(0, [3], 0), page(0, [3], 0), highest=0)
    assert described(broker, 1) == [((3,), (9,))]


def test_what_a_broker_does_not_send_stays_unknown() -> None:
    assert described(Asked(ApiKey.DESCRIBE_TOPIC_PARTITIONS, page(0, None, None), highest=0), 1) == [(None, None)]
    assert described(Asked(ApiKey.ELECT_LEADERS), 1) == [(None, None)]
