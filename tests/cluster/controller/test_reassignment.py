"""Moving partitions (KIP-455)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.cluster.controller.decision_stories import alter_isr, cluster, min_isr, only, state

from penstock.cluster.controller.election import IsrRequest, PartitionsByBroker
from penstock.cluster.controller.reassignment import (
    MoveProgress,
    Reassignment,
    alter_reassignments,
    complete_reassignments,
    progress,
    remaining_moves,
    store_requested_moves,
)
from penstock.cluster.controller.transaction import Decision
from penstock.cluster.errors import (
    ApiException,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    UnknownTopic,
)
from penstock.cluster.image import ClusterImage, PartitionImage
from penstock.cluster.tree.layout import decode_reassignment, decode_topic
from penstock.cluster.tree.tree import Delete, Operation, Set
from penstock.wire.protocol import ErrorCode

T = ("t", 0)
ALL = (1, 2, 3, 4, 5)


def moved(image: ClusterImage, replicas: Sequence[int] | None, least: int = 2) -> Reassignment:
    return alter_reassignments(min_isr(image, least), {T: replicas})


def completed(image: ClusterImage, least: int = 2) -> Decision:
    return complete_reassignments(min_isr(image, least), [T])


def shape(partition: PartitionImage) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    return partition.replicas, partition.adding, partition.removing


def with_isr(image: ClusterImage, *isr: int) -> ClusterImage:
    now = only(image)
    epochs = {broker: 100 + broker for broker in ALL}
    members = tuple(epochs[broker] for broker in isr)
    request = IsrRequest("t", 0, now.leader, epochs[now.leader], now.leader_epoch, now.state_version, isr, members)
    decision = alter_isr(min_isr(image, 2), request)
    assert not isinstance(decision, ErrorCode)
    return decision.image


def paths_of(operations: Sequence[Operation]) -> list[str]:
    return [operation.path for operation in operations]


def test_move_is_under_way_until_added_replicas_are_in_sync() -> None:
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
    assert completed(begun.image).operations == ()
    caught_up = with_isr(begun.image, 1, 2, 3, 4)
    assert progress(caught_up, [T])[0].behind == ()
    done = completed(caught_up)
    after = only(done.image)
    assert shape(after) == ((2, 3, 4), (), ())
    assert (after.leader, after.leader_epoch, set(after.isr)) == (2, 6, {2, 3, 4})
    # The state first: it must name only replicas, even if nothing more is written.
    assert paths_of(done.operations) == ["/brokers/topics/t/partitions/0/state", "/brokers/topics/t"]
    document = done.operations[1]
    assert isinstance(document, Set)
    assert decode_topic("t", document.data).partitions[0] == ((2, 3, 4), (), ())
    assert completed(done.image).operations == ()
    partitions_by_broker.follow(done.image)
    assert partitions_by_broker.moving() == []
    assert list(partitions_by_broker.of([1])) == []


def test_move_is_cancelled() -> None:
    begun = with_isr(moved(cluster(ALL, t=[state()]), (4, 5)).decision.image, 1, 2, 3, 4)
    back = moved(begun, None).decision
    assert set(only(back.image).replicas) == {1, 2, 3}
    assert (shape(only(back.image))[1:], only(back.image).isr) == (((), ()), (1, 2, 3))
    again = moved(back.image, None)
    assert isinstance(again.errors[T], NoReassignmentInProgress)


def test_move_is_not_cancelled_if_no_original_replica_is_in_sync() -> None:
    image = cluster(ALL, t=[state((4, 1), adding=(4,), removing=(1,), leader=4, isr=(4,))])
    found = moved(image, None)
    assert isinstance(found.errors[T], InvalidReplicaAssignment)
    assert found.decision.operations == ()


def test_added_leader_is_replaced_when_its_move_is_cancelled() -> None:
    image = cluster(ALL, t=[state((4, 1, 2), adding=(4,), removing=(1, 2), leader=4, isr=(4, 2))])
    after = only(moved(image, None).decision.image)
    assert (after.replicas, after.leader, after.leader_epoch, after.isr) == ((1, 2), 2, 6, (2,))


def test_move_is_redirected() -> None:
    begun = with_isr(moved(cluster(ALL, t=[state()]), (2, 3, 4)).decision.image, 1, 2, 3, 4)
    turned = moved(begun, (2, 3, 5)).decision.image
    assert shape(only(turned)) == ((2, 3, 5, 1), (5,), (1,))
    assert set(only(turned).isr) == {1, 2, 3}


def test_fewer_replicas_or_another_order_complete_at_once() -> None:
    image = cluster(ALL, t=[state()])
    fewer = only(moved(image, (2, 1)).decision.image)
    assert (shape(fewer), fewer.leader, set(fewer.isr)) == (((2, 1), (), ()), 1, {1, 2})
    order = moved(image, (3, 2, 1)).decision
    assert shape(only(order.image)) == ((3, 2, 1), (), ())
    assert paths_of(order.operations) == ["/brokers/topics/t"]
    assert moved(image, (1, 2, 3)).decision.operations == ()


def test_removed_replicas_stay_while_only_they_are_in_sync() -> None:
    image = moved(cluster(ALL, t=[state(leader=3, isr=(3,))]), (1, 2), least=1).decision.image
    assert shape(only(image)) == ((1, 2, 3), (), (3,))
    done = only(completed(with_isr(image, 3, 2), least=1).image)
    assert (shape(done), done.leader, done.isr) == (((1, 2), (), ()), 2, (2,))


def test_move_is_not_completed_below_min_insync_replicas() -> None:
    image = cluster(ALL, t=[state((4, 2, 1, 3), adding=(4,), removing=(1, 3), leader=1, isr=(1, 3, 4))])
    assert completed(image).operations == ()
    assert completed(image, least=1).operations != ()


def test_removed_replica_is_not_eligible() -> None:
    image = cluster(ALL, t=[state((1, 2), isr=(1,), elr=(2,))])
    begun = moved(image, (1, 3)).decision.image
    assert only(begun).elr == (2,)
    assert only(completed(with_isr(begun, 1, 3)).image).elr == ()
    single = only(moved(image, (1,)).decision.image)
    assert (single.replicas, single.elr) == ((1,), ())


@pytest.mark.parametrize(
    ("key", "replicas", "error"),
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
def test_invalid_move_is_rejected_and_changes_nothing(
    key: tuple[str, int], replicas: Sequence[int] | None, error: type[ApiException]
) -> None:
    image = cluster(ALL, t=[state()])
    found = alter_reassignments(image, {key: replicas})
    assert isinstance(found.errors[key], error)
    assert found.decision == ((), image, ())


def test_dead_broker_may_keep_its_replica() -> None:
    image = cluster((1, 2, 4), t=[state(isr=(1, 2))])
    assert moved(image, (3, 4, 1)).errors == {}


def test_many_partitions_of_a_topic_are_one_document() -> None:
    image = cluster(ALL, t=[state(), state(), state()])
    found = alter_reassignments(image, {("t", index): (3, 4, 5) for index in range(3)})
    assert paths_of(found.decision.operations) == ["/brokers/topics/t"]


def test_document_of_old_tools_lists_the_moves_under_way() -> None:
    requested = {T: (2, 3, 4), ("t", 1): (1, 2, 3), ("gone", 0): (1,)}
    image = moved(cluster(ALL, t=[state(), state()]), (2, 3, 4)).decision.image
    assert remaining_moves(image, requested) == {T: (2, 3, 4)}
    stored = store_requested_moves(remaining_moves(image, requested))
    assert isinstance(stored, Set)
    assert (stored.path, decode_reassignment(stored.data)) == ("/admin/reassign_partitions", {T: (2, 3, 4)})
    done = completed(with_isr(image, 1, 2, 3, 4)).image
    assert remaining_moves(done, {T: (2, 3, 4)}) == {}
    assert store_requested_moves({}) == Delete("/admin/reassign_partitions")


def test_move_that_was_redirected_is_no_longer_the_one_requested() -> None:
    image = moved(cluster(ALL, t=[state()]), (2, 3, 4)).decision.image
    assert remaining_moves(moved(image, (2, 3, 5)).decision.image, {T: (2, 3, 4)}) == {}
