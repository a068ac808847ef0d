"""Moving partitions (KIP-455)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.cluster.controller.decision_stories import ONE, TWO, cluster, only, state

from penstock.cluster.controller.election import (
    AlterPartitionError,
    IsrRequest,
    PartitionRules,
    PartitionsByBroker,
    alter_isr,
)
from penstock.cluster.controller.reassignment import (
    MoveProgress,
    Reassignment,
    alter_reassignments,
    complete_reassignments,
    decode_preferred_election,
    decode_reassignment,
    encode_preferred_election,
    encode_reassignment,
    progress,
    remaining_request,
)
from penstock.cluster.errors import (
    ApiException,
    InvalidReplicaAssignment,
    LayoutError,
    NoReassignmentInProgress,
    UnknownTopic,
)
from penstock.cluster.image import ClusterImage, PartitionImage
from penstock.cluster.tree.layout import decode_topic
from penstock.cluster.tree.tree import Delete, Operation, Set

T = ("t", 0)
ALL = (1, 2, 3, 4, 5)


def moved(image: ClusterImage, replicas: Sequence[int] | None, rules: Any = TWO) -> Reassignment:
    return alter_reassignments(image, {T: replicas}, rules)


def shape(partition: PartitionImage) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return partition.replicas, partition.adding, partition.removing


def with_isr(image: ClusterImage, *isr: int) -> ClusterImage:
    now = only(image)
    epochs = {broker: 100 + broker for broker in ALL}
    members = tuple(epochs[broker] for broker in isr)
    request = IsrRequest("t", 0, now.leader, epochs[now.leader], now.leader_epoch, now.state_version, isr, members)
    decision = alter_isr(image, request, epochs, PartitionRules(2))
    assert not isinstance(decision, AlterPartitionError)
    return decision.image


def paths_of(operations: Sequence[Operation]) -> list[str]:
    return [operation.path for operation in operations]


def test_a_move_is_under_way_until_who_is_added_is_in_sync() -> None:
    image = cluster(ALL, t=[state()])
    begun = moved(image, (2, 3, 4)).decision
    assert paths_of(begun.operations) == ["/brokers/topics/t"]
    assert shape(only(begun.image)) == ((2, 3, 4, 1), (4,), (1,))
    assert (only(begun.image).leader, only(begun.image).isr, only(begun.image).state_version) == (1, (1, 2, 3), 7)
    partitions_by_broker = PartitionsByBroker(begun.image)
    assert partitions_by_broker.moving() == [T]
    assert progress(begun.image, partitions_by_broker.moving()) == [
        MoveProgress("t", 0, (2, 3, 4, 1), (4,), (1,), (4,))
    ]
    assert complete_reassignments(begun.image, [T], TWO).operations == ()
    caught_up = with_isr(begun.image, 1, 2, 3, 4)
    assert progress(caught_up, [T])[0].behind == ()
    done = complete_reassignments(caught_up, [T], TWO)
    after = only(done.image)
    assert shape(after) == ((2, 3, 4), (), ())
    assert (after.leader, after.leader_epoch, set(after.isr)) == (2, 6, {2, 3, 4})
    # The state first: it must name nobody who is no replica, even if nothing more is written.
    assert paths_of(done.operations) == ["/brokers/topics/t/partitions/0/state", "/brokers/topics/t"]
    document = done.operations[1]
    assert isinstance(document, Set)
    assert decode_topic("t", document.data).partitions[0] == ((2, 3, 4), (), ())
    assert complete_reassignments(done.image, [T], TWO).operations == ()
    partitions_by_broker.follow(done.image)
    assert partitions_by_broker.moving() == []
    assert list(partitions_by_broker.of([1])) == []


def test_a_move_is_taken_back() -> None:
    begun = with_isr(moved(cluster(ALL, t=[state()]), (4, 5)).decision.image, 1, 2, 3, 4)
    back = moved(begun, None).decision
    assert set(only(back.image).replicas) == {1, 2, 3}
    assert (shape(only(back.image))[1:], only(back.image).isr) == (((), ()), (1, 2, 3))
    again = moved(back.image, None)
    assert isinstance(again.refusals[T], NoReassignmentInProgress)


def test_a_move_is_not_taken_back_to_where_nobody_is_in_sync() -> None:
    image = cluster(ALL, t=[state((4, 1), adding=(4,), removing=(1,), leader=4, isr=(4,))])
    found = moved(image, None)
    assert isinstance(found.refusals[T], InvalidReplicaAssignment)
    assert found.decision == ((), image, ())


def test_a_leader_that_was_being_added_hands_over_when_the_move_is_taken_back() -> None:
    image = cluster(ALL, t=[state((4, 1, 2), adding=(4,), removing=(1, 2), leader=4, isr=(4, 2))])
    after = only(moved(image, None).decision.image)
    assert (after.replicas, after.leader, after.leader_epoch, after.isr) == ((1, 2), 2, 6, (2,))


def test_a_move_is_turned_to_another_aim_and_forgets_the_first() -> None:
    begun = with_isr(moved(cluster(ALL, t=[state()]), (2, 3, 4)).decision.image, 1, 2, 3, 4)
    turned = moved(begun, (2, 3, 5)).decision.image
    assert shape(only(turned)) == ((2, 3, 5, 1), (5,), (1,))
    assert set(only(turned).isr) == {1, 2, 3}


def test_fewer_replicas_and_another_order_need_no_waiting() -> None:
    image = cluster(ALL, t=[state()])
    fewer = only(moved(image, (2, 1)).decision.image)
    assert (shape(fewer), fewer.leader, set(fewer.isr)) == (((2, 1), (), ()), 1, {1, 2})
    order = moved(image, (3, 2, 1)).decision
    assert shape(only(order.image)) == ((3, 2, 1), (), ())
    assert paths_of(order.operations) == ["/brokers/topics/t"]
    assert moved(image, (1, 2, 3)).decision.operations == ()


def test_replicas_that_are_dropped_are_waited_for_while_only_they_are_in_sync() -> None:
    image = moved(cluster(ALL, t=[state(leader=3, isr=(3,))]), (1, 2), ONE).decision.image
    assert shape(only(image)) == ((1, 2, 3), (), (3,))
    done = only(complete_reassignments(with_isr(image, 3, 2), [T], ONE).image)
    assert (shape(done), done.leader, done.isr) == (((1, 2), (), ()), 2, (2,))


def test_a_move_is_not_finished_with_fewer_in_sync_than_must_be() -> None:
    image = cluster(ALL, t=[state((4, 2, 1, 3), adding=(4,), removing=(1, 3), leader=1, isr=(1, 3, 4))])
    assert complete_reassignments(image, [T], TWO).operations == ()
    assert complete_reassignments(image, [T], ONE).operations != ()


def test_who_was_eligible_and_is_no_replica_any_more_is_not_eligible() -> None:
    image = cluster(ALL, t=[state((1, 2), isr=(1,), elr=(2,))])
    begun = moved(image, (1, 3)).decision.image
    assert only(begun).elr == (2,)
    assert only(complete_reassignments(with_isr(begun, 1, 3), [T], TWO).image).elr == ()
    single = only(moved(image, (1,)).decision.image)
    assert (single.replicas, single.elr) == ((1,), ())


@pytest.mark.parametrize(
    ("key", "replicas", "refusal"),
    [
        (("other", 0), (1,), UnknownTopic),
        (("t", 1), (1,), UnknownTopic),
        (T, (), InvalidReplicaAssignment),
        (T, (1, 1), InvalidReplicaAssignment),
        (T, (1, 9), InvalidReplicaAssignment),
        (T, (-1,), InvalidReplicaAssignment),
        (T, None, NoReassignmentInProgress),
    ],
)
def test_a_move_that_makes_no_sense_is_refused_and_changes_nothing(
    key: tuple[str, int], replicas: Sequence[int] | None, refusal: type[ApiException]
) -> None:
    image = cluster(ALL, t=[state()])
    found = alter_reassignments(image, {key: replicas}, TWO)
    assert isinstance(found.refusals[key], refusal)
    assert found.decision == ((), image, ())


def test_a_dead_broker_that_holds_the_partition_may_keep_it() -> None:
    image = cluster((1, 2, 4), t=[state(isr=(1, 2))])
    assert moved(image, (3, 4, 1)).refusals == {}


def test_many_partitions_of_a_topic_are_one_document() -> None:
    image = cluster(ALL, t=[state(), state(), state()])
    found = alter_reassignments(image, {("t", index): (3, 4, 5) for index in range(3)}, TWO)
    assert paths_of(found.decision.operations) == ["/brokers/topics/t"]


def test_the_document_of_old_tools_shrinks_and_goes() -> None:
    requested = {T: (2, 3, 4), ("t", 1): (1, 2, 3), ("gone", 0): (1,)}
    assert decode_reassignment(encode_reassignment(requested)) == requested
    image = moved(cluster(ALL, t=[state(), state()]), (2, 3, 4)).decision.image
    left = remaining_request(image, requested)
    assert isinstance(left, Set)
    assert decode_reassignment(left.data) == {T: (2, 3, 4)}
    assert remaining_request(image, {T: (2, 3, 4)}) is None
    done = complete_reassignments(with_isr(image, 1, 2, 3, 4), [T], TWO).image
    assert remaining_request(done, {T: (2, 3, 4)}) == Delete("/admin/reassign_partitions")


def test_documents_of_old_tools_are_read_as_kafka_writes_them() -> None:
    moves = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any","any"]}]}'
    assert decode_reassignment(moves) == {T: (1, 2)}
    assert decode_preferred_election(b'{"version":1,"partitions":[{"topic":"t","partition":0}]}') == [T]
    assert decode_preferred_election(encode_preferred_election([T])) == [T]


@pytest.mark.parametrize("data", [b"", b"{}", b'{"version":1,"partitions":[{"topic":"t"}]}', b"[" * 100_000, b"\xff"])
def test_documents_that_make_no_sense_are_refused_with_their_path(data: bytes) -> None:
    with pytest.raises(LayoutError, match="/admin/reassign_partitions"):
        decode_reassignment(data)
    with pytest.raises(LayoutError, match="/admin/preferred_replica_election"):
        decode_preferred_election(data)


def test_a_partition_that_is_listed_twice_is_refused() -> None:
    twice = b'{"version":1,"partitions":[%s,%s]}' % ((b'{"topic":"t","partition":0,"replicas":[1]}',) * 2)
    with pytest.raises(LayoutError, match="twice"):
        decode_reassignment(twice)
    with pytest.raises(LayoutError, match="twice"):
        decode_preferred_election(twice)
