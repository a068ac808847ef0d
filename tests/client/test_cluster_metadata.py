"""What a client believes about a cluster."""

from __future__ import annotations

from penstock.client.cluster_metadata import ClusterView
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ONE, TWO = b"1" * 16, b"2" * 16


def metadata(
    name: str, *leaders: tuple[int, int], topic_id: bytes = ONE, error: ErrorCode = ErrorCode.NONE
) -> MetadataResponse:
    """A response about one topic: leader and epoch of each partition."""
    partitions = [
        MetadataResponsePartition(
            partition_index=index, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2], isr_nodes=[leader]
        )
        for index, (leader, epoch) in enumerate(leaders)
    ]
    topic = MetadataResponseTopic(name=name, topic_id=topic_id, partitions=partitions[::-1], error_code=error)
    nodes = [MetadataResponseBroker(node_id=node, host="h", port=9000 + node) for node in (1, 2)]
    return MetadataResponse(brokers=nodes, cluster_id="c", controller_id=1, topics=[topic])


def leader(view: ClusterView, topic: str = "t", partition: int = 0) -> tuple[int, int]:
    found = view.leader_of(topic, partition)
    assert found is not None
    return found.leader, found.leader_epoch


def test_partitions_stand_by_index_however_they_arrive() -> None:
    view = ClusterView().merge(metadata("t", (1, 0), (2, 0)))
    assert [item.index for item in view.topics["t"].partitions] == [0, 1]
    assert leader(view, partition=1) == (2, 0)
    assert view.leader_of("t", 2) is None
    assert view.leader_of("other", 0) is None
    assert view.nodes[2].port == 9002


def test_a_broker_that_is_behind_does_not_bring_an_old_leader_back() -> None:
    view = ClusterView().merge(metadata("t", (2, 5)))
    assert leader(view.merge(metadata("t", (1, 4)))) == (2, 5)
    assert leader(view.merge(metadata("t", (1, 6)))) == (1, 6)


def test_the_same_epoch_may_report_that_the_leader_is_gone() -> None:
    view = ClusterView().merge(metadata("t", (2, 5)))
    assert view.merge(metadata("t", (-1, 5))).topics["t"].partitions[0].leader == -1


def test_a_recreated_topic_begins_at_its_first_epoch_again() -> None:
    view = ClusterView().merge(metadata("t", (2, 5)))
    assert leader(view.merge(metadata("t", (1, 0), topic_id=TWO))) == (1, 0)


def test_brokers_without_epochs_are_believed() -> None:
    view = ClusterView().merge(metadata("t", (1, -1)))
    assert leader(view.merge(metadata("t", (2, -1)))) == (2, -1)


def test_a_partial_answer_leaves_the_other_topics_a_whole_one_does_not() -> None:
    view = ClusterView().merge(metadata("a", (1, 0))).merge(metadata("b", (1, 0), topic_id=TWO))
    assert set(view.topics) == {"a", "b"}
    assert set(view.merge(metadata("b", (1, 0)), complete=True).topics) == {"b"}
    assert set(view.merge(metadata("b", (1, 0)), keep=lambda name: name != "a").topics) == {"b"}


def test_a_deleted_topic_has_an_error_and_no_partitions() -> None:
    view = ClusterView().merge(metadata("t", (1, 0)))
    gone = view.merge(metadata("t", topic_id=bytes(16), error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert gone.topics["t"].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert gone.topic("t") is None
    assert gone.leader_of("t", 0) is None


def test_an_election_does_not_make_a_topic_disappear() -> None:
    view = ClusterView().merge(metadata("t", (1, 0)))
    waiting = view.merge(metadata("t", topic_id=ONE, error=ErrorCode.LEADER_NOT_AVAILABLE))
    assert len(waiting.topics["t"].partitions) == 1


def test_piggybacked_metadata_counts_only_if_it_is_newer() -> None:
    view = ClusterView().merge(metadata("t", (1, 3), (1, 3)))
    assert view.with_leader("t", 0, 2, 3) is view
    assert view.with_leader("t", 9, 2, 4) is view
    assert view.with_leader("x", 0, 2, 4) is view
    newer = view.with_leader("t", 1, 2, 4)
    assert leader(newer, partition=1) == (2, 4)
    assert leader(newer, partition=0) == (1, 3)


def test_an_answer_without_brokers_does_not_make_us_forget_ours() -> None:
    view = ClusterView().merge(metadata("t", (1, 0)))
    assert set(view.merge(MetadataResponse()).nodes) == {1, 2}


def test_the_same_response_twice_changes_nothing() -> None:
    view = ClusterView().merge(metadata("t", (1, 0)))
    assert view.merge(metadata("t", (1, 0))) == view
