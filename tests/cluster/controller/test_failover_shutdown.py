"""Brokers that stop in good order."""

from __future__ import annotations

import pytest
from tests.cluster.controller.decision_stories import ONE, TWO, cluster, only, registered, state

from penstock.cluster.controller.election import (
    AlterPartitionError,
    IsrRequest,
    PartitionRules,
    PartitionsByBroker,
    alter_isr,
)
from penstock.cluster.controller.failover import shut_down
from penstock.cluster.errors import StaleBrokerEpoch
from penstock.cluster.tree.tree import Set


def test_leaders_move_first_and_the_broker_leaves_every_isr() -> None:
    image = cluster((1, 2, 3), a=[state((2, 1, 3))], t=[state()])
    decision, remaining = shut_down(PartitionsByBroker(image), 1, 101, TWO)
    assert remaining == ()
    assert [operation.path.split("/")[3] for operation in decision.operations] == ["t", "a"]
    assert all(isinstance(operation, Set) and operation.version == 7 for operation in decision.operations)
    led, followed = only(decision.image), decision.image.topics["a"].partitions[0]
    assert (led.leader, led.leader_epoch, led.isr) == (2, 6, (2, 3))
    assert (followed.leader, followed.leader_epoch, followed.isr) == (2, 5, (2, 3))
    assert decision.image.leaving == {1}


def test_asking_again_changes_nothing() -> None:
    partitions_by_broker = PartitionsByBroker(cluster((1, 2, 3), t=[state()]))
    first = shut_down(partitions_by_broker, 1, 101, TWO)
    partitions_by_broker.follow(first.decision.image)
    assert shut_down(partitions_by_broker, 1, 101, TWO).decision == ((), first.decision.image, ())


def test_a_broker_that_others_need_stays_until_the_one_restarted_before_it_is_back_in_sync() -> None:
    partitions_by_broker = PartitionsByBroker(cluster((1, 2, 3), t=[state(isr=(1, 2))]))
    first = shut_down(partitions_by_broker, 1, 101, TWO)
    assert first.remaining == (("t", 0),)
    assert only(first.decision.image) is only(partitions_by_broker.image)
    partitions_by_broker.follow(first.decision.image)
    request = IsrRequest("t", 0, 1, 101, 5, 7, (1, 2, 3), (101, 102, 103))
    grown = alter_isr(partitions_by_broker.image, request, {1: 101, 2: 102, 3: 103}, PartitionRules(2))
    assert not isinstance(grown, AlterPartitionError)
    partitions_by_broker.follow(grown.image)
    second = shut_down(partitions_by_broker, 1, 101, TWO)
    assert second.remaining == ()
    assert (only(second.decision.image).leader, only(second.decision.image).isr) == (2, (2, 3))


def test_at_any_price_it_leaves_and_stays_eligible() -> None:
    partitions_by_broker = PartitionsByBroker(cluster((1, 2, 3), t=[state(isr=(1, 2))]))
    found = shut_down(partitions_by_broker, 1, 101, TWO, force=True)
    after = only(found.decision.image)
    assert (after.leader, after.isr, after.elr, found.remaining) == (2, (2,), (1,), ())


def test_the_last_in_sync_is_named_and_a_partition_without_a_second_replica_is_not() -> None:
    partitions_by_broker = PartitionsByBroker(cluster((1, 2, 3), t=[state(isr=(1,))], single=[state((1,))]))
    found = shut_down(partitions_by_broker, 1, 101, ONE, force=True)
    assert found.remaining == (("t", 0),)
    assert found.decision.operations == ()


def test_another_that_is_about_to_stop_is_not_made_leader() -> None:
    partitions_by_broker = PartitionsByBroker(cluster((1, 2, 3), t=[state()]).with_leaving(2))
    assert only(shut_down(partitions_by_broker, 1, 101, ONE).decision.image).leader == 3


def test_kip_841_who_is_about_to_stop_does_not_join_an_isr_again_until_it_is_registered_anew() -> None:
    image = cluster((1, 2, 3), t=[state((2, 1, 3), isr=(2, 3))]).with_leaving(1)
    request = IsrRequest("t", 0, 2, 102, 5, 7, (2, 1, 3), (102, 101, 103))
    epochs = {1: 101, 2: 102, 3: 103}
    assert alter_isr(image, request, epochs, PartitionRules()) is AlterPartitionError.INELIGIBLE_REPLICA
    back = image.with_broker(registered(1))
    assert not isinstance(alter_isr(back, request, epochs, PartitionRules()), AlterPartitionError)
    assert image.without_broker(1).leaving == set()


@pytest.mark.parametrize(("broker", "epoch"), [(1, 100), (4, 104)])
def test_a_broker_of_another_life_stops_nothing(broker: int, epoch: int) -> None:
    with pytest.raises(StaleBrokerEpoch):
        shut_down(PartitionsByBroker(cluster((1, 2, 3), t=[state()])), broker, epoch, ONE)
