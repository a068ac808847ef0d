"""Controlled shutdown."""

from __future__ import annotations

import pytest
from tests.cluster.controller.decision_stories import alter_isr, cluster, min_isr, only, registered, state

from penstock.cluster.controller.election import IsrRequest, PartitionsByBroker
from penstock.cluster.controller.failover import shut_down
from penstock.cluster.errors import StaleBrokerEpoch
from penstock.cluster.tree.tree import Set
from penstock.wire.protocol import ErrorCode


def test_leaders_move_first_and_the_broker_leaves_every_isr() -> None:
    image = min_isr(cluster((1, 2, 3), a=[state((2, 1, 3))], t=[state()]), 2)
    decision, remaining = shut_down(PartitionsByBroker(image), 1, 101)
    assert remaining == ()
    assert [operation.path.split("/")[3] for operation in decision.operations] == ["t", "a"]
    assert all(isinstance(operation, Set) and operation.version == 7 for operation in decision.operations)
    led, followed = only(decision.image), decision.image.topics["a"].partitions[0]
    assert (led.leader, led.leader_epoch, led.isr) == (2, 6, (2, 3))
    assert (followed.leader, followed.leader_epoch, followed.isr) == (2, 5, (2, 3))
    assert decision.image.shutting_down == {1}


def test_second_request_changes_nothing() -> None:
    partitions_by_broker = PartitionsByBroker(min_isr(cluster((1, 2, 3), t=[state()]), 2))
    first = shut_down(partitions_by_broker, 1, 101)
    partitions_by_broker.follow(first.decision.image)
    assert shut_down(partitions_by_broker, 1, 101).decision == ((), first.decision.image, ())


def test_broker_that_is_needed_stays_until_another_replica_is_in_sync() -> None:
    partitions_by_broker = PartitionsByBroker(min_isr(cluster((1, 2, 3), t=[state(isr=(1, 2))]), 2))
    first = shut_down(partitions_by_broker, 1, 101)
    assert first.remaining == (("t", 0),)
    assert only(first.decision.image) is only(partitions_by_broker.image)
    partitions_by_broker.follow(first.decision.image)
    request = IsrRequest("t", 0, 1, 101, 5, 7, (1, 2, 3), (101, 102, 103))
    grown = alter_isr(partitions_by_broker.image, request)
    assert not isinstance(grown, ErrorCode)
    partitions_by_broker.follow(grown.image)
    second = shut_down(partitions_by_broker, 1, 101)
    assert second.remaining == ()
    assert (only(second.decision.image).leader, only(second.decision.image).isr) == (2, (2, 3))


def test_forced_shutdown_leaves_the_isr_and_stays_eligible() -> None:
    partitions_by_broker = PartitionsByBroker(min_isr(cluster((1, 2, 3), t=[state(isr=(1, 2))]), 2))
    found = shut_down(partitions_by_broker, 1, 101, force=True)
    after = only(found.decision.image)
    assert (after.leader, after.isr, after.elr, found.remaining) == (2, (2,), (1,), ())


def test_last_in_sync_replica_is_reported_and_a_partition_without_a_second_replica_is_not() -> None:
    partitions_by_broker = PartitionsByBroker(cluster((1, 2, 3), t=[state(isr=(1,))], single=[state((1,))]))
    found = shut_down(partitions_by_broker, 1, 101, force=True)
    assert found.remaining == (("t", 0),)
    assert found.decision.operations == ()


def test_another_broker_that_shuts_down_is_not_elected() -> None:
    partitions_by_broker = PartitionsByBroker(cluster((1, 2, 3), t=[state()]).with_shutting_down(2))
    assert only(shut_down(partitions_by_broker, 1, 101).decision.image).leader == 3


def test_kip_841_broker_that_shuts_down_joins_no_isr_until_it_registers_again() -> None:
    image = cluster((1, 2, 3), t=[state((2, 1, 3), isr=(2, 3))]).with_shutting_down(1)
    request = IsrRequest("t", 0, 2, 102, 5, 7, (2, 1, 3), (102, 101, 103))
    assert alter_isr(image, request) is ErrorCode.INELIGIBLE_REPLICA
    back = image.with_broker(registered(1))
    assert not isinstance(alter_isr(back, request), ErrorCode)
    assert image.without_broker(1).shutting_down == set()


@pytest.mark.parametrize(("broker", "epoch"), [(1, 100), (4, 104)])
def test_shutdown_of_another_broker_epoch_is_rejected(broker: int, epoch: int) -> None:
    with pytest.raises(StaleBrokerEpoch):
        shut_down(PartitionsByBroker(cluster((1, 2, 3), t=[state()])), broker, epoch)
