"""Elections on request."""

from __future__ import annotations

import pytest
from tests.cluster.controller.decision_stories import ONE, TWO, cluster, only, state

from penstock.cluster.controller.election import ElectionKind, PartitionsByBroker, elect_leaders, preferred_leaders
from penstock.cluster.errors import (
    ApiException,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
    UnknownTopic,
)
from penstock.cluster.image import ClusterImage
from penstock.cluster.tree.layout import NO_LEADER

PREFERRED, UNCLEAN = ElectionKind.PREFERRED, ElectionKind.UNCLEAN
T = ("t", 0)


def test_the_preferred_leader_takes_over_in_a_new_epoch_and_the_isr_stays() -> None:
    found = elect_leaders(cluster((1, 2, 3), t=[state(leader=2)]), [T], PREFERRED, ONE)
    after = only(found.decision.image)
    assert (after.leader, after.leader_epoch, after.isr, after.state_version) == (1, 6, (1, 2, 3), 8)
    assert len(found.decision.operations) == 1
    assert found.refusals == {}
    assert found.decision.unclean == ()


@pytest.mark.parametrize(
    ("image", "refusal"),
    [
        (cluster((1, 2, 3), t=[state()]), ElectionNotNeeded),
        (cluster((2, 3), t=[state(leader=2)]), PreferredLeaderNotAvailable),
        (cluster((1, 2, 3), t=[state(leader=2, isr=(2, 3))]), PreferredLeaderNotAvailable),
        (cluster((1, 2, 3), t=[state(leader=2)]).with_leaving(1), PreferredLeaderNotAvailable),
        # Its disk is a new one: who had it last is remembered, and has nothing.
        (cluster((1, 2, 3), t=[state(leader=NO_LEADER, isr=(1,), recovering=True)]), PreferredLeaderNotAvailable),
        (cluster((1, 2, 3), u=[state(leader=2)]), UnknownTopic),
        (cluster((1, 2, 3), t=[state(leader=2)]).with_deleting(["t"]), UnknownTopic),
    ],
)
def test_a_preferred_leader_that_cannot_or_need_not_lead_changes_nothing(
    image: ClusterImage, refusal: type[ApiException]
) -> None:
    found = elect_leaders(image, [T], PREFERRED, ONE)
    assert isinstance(found.refusals[T], refusal)
    assert found.decision.operations == ()
    assert found.decision.image is image


def test_one_that_is_refused_does_not_hinder_the_others() -> None:
    image = cluster((1, 2, 3), t=[state(), state(leader=3)])
    found = elect_leaders(image, [("t", 0), ("t", 1), ("t", 2)], PREFERRED, ONE)
    assert set(found.refusals) == {("t", 0), ("t", 2)}
    assert found.decision.image.topics["t"].partitions[1].leader == 1


def test_an_unclean_election_on_request_is_told_as_such() -> None:
    image = cluster((2, 3), t=[state(leader=NO_LEADER, isr=(1,))])
    found = elect_leaders(image, [T], UNCLEAN, TWO)
    after = only(found.decision.image)
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2,), 6)
    assert found.decision.unclean == (T,)


def test_an_unclean_election_takes_who_lacks_nothing_if_there_is_one() -> None:
    image = cluster((2, 3), t=[state(leader=NO_LEADER, isr=(1,), elr=(3,))])
    found = elect_leaders(image, [T], UNCLEAN, TWO)
    assert only(found.decision.image).leader == 3
    assert found.decision.unclean == ()


def test_an_unclean_election_is_not_for_a_partition_that_is_led_nor_without_brokers() -> None:
    led = elect_leaders(cluster((1, 2, 3), t=[state()]), [T], UNCLEAN, ONE)
    assert isinstance(led.refusals[T], ElectionNotNeeded)
    alone = elect_leaders(cluster((9,), t=[state(leader=NO_LEADER, isr=(1,))]), [T], UNCLEAN, ONE)
    assert isinstance(alone.refusals[T], EligibleLeadersNotAvailable)


def test_imbalance_is_what_a_broker_could_lead_and_does_not() -> None:
    image = cluster((1, 2, 3), t=[state(), state(leader=2), state(leader=2, isr=(2, 3)), state((2, 1, 3))])
    found = preferred_leaders(PartitionsByBroker(image), 1)
    assert found == (3, [("t", 1)])
    assert round(found.imbalance_percent) == 33
    assert preferred_leaders(PartitionsByBroker(image), 9).imbalance_percent == 0
