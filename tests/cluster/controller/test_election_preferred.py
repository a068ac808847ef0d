"""Elections on request."""

from __future__ import annotations

import pytest
from tests.cluster.controller.decision_stories import cluster, min_isr, only, state

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


def test_preferred_leader_takes_over_in_a_new_epoch_and_the_isr_stays() -> None:
    found = elect_leaders(cluster((1, 2, 3), t=[state(leader=2)]), [T], PREFERRED)
    after = only(found.decision.image)
    assert (after.leader, after.leader_epoch, after.isr, after.state_version) == (1, 6, (1, 2, 3), 8)
    assert len(found.decision.operations) == 1
    assert found.errors == {}
    assert found.decision.unclean == ()


@pytest.mark.parametrize(
    ("image", "error"),
    [
        (cluster((1, 2, 3), t=[state()]), ElectionNotNeeded),
        (cluster((2, 3), t=[state(leader=2)]), PreferredLeaderNotAvailable),
        (cluster((1, 2, 3), t=[state(leader=2, isr=(2, 3))]), PreferredLeaderNotAvailable),
        (cluster((1, 2, 3), t=[state(leader=2)]).with_shutting_down(1), PreferredLeaderNotAvailable),
        # Its disk is new: the last member of the ISR is remembered, and has nothing.
        (cluster((1, 2, 3), t=[state(leader=NO_LEADER, isr=(1,), recovering=True)]), PreferredLeaderNotAvailable),
        (cluster((1, 2, 3), u=[state(leader=2)]), UnknownTopic),
        (cluster((1, 2, 3), t=[state(leader=2)]).with_deleting(["t"]), UnknownTopic),
    ],
)
def test_preferred_leader_that_cannot_or_need_not_lead_changes_nothing(
    image: ClusterImage, error: type[ApiException]
) -> None:
    found = elect_leaders(image, [T], PREFERRED)
    assert isinstance(found.errors[T], error)
    assert found.decision.operations == ()
    assert found.decision.image is image


def test_one_failed_election_does_not_affect_the_others() -> None:
    image = cluster((1, 2, 3), t=[state(), state(leader=3)])
    found = elect_leaders(image, [("t", 0), ("t", 1), ("t", 2)], PREFERRED)
    assert set(found.errors) == {("t", 0), ("t", 2)}
    assert found.decision.image.topics["t"].partitions[1].leader == 1


def test_unclean_election_on_request_is_reported_as_unclean() -> None:
    image = min_isr(cluster((2, 3), t=[state(leader=NO_LEADER, isr=(1,))]), 2)
    found = elect_leaders(image, [T], UNCLEAN)
    after = only(found.decision.image)
    assert (after.leader, after.isr, after.leader_epoch) == (2, (2,), 6)
    assert found.decision.unclean == (T,)


def test_unclean_election_prefers_an_eligible_replica() -> None:
    image = min_isr(cluster((2, 3), t=[state(leader=NO_LEADER, isr=(1,), elr=(3,))]), 2)
    found = elect_leaders(image, [T], UNCLEAN)
    assert only(found.decision.image).leader == 3
    assert found.decision.unclean == ()


def test_unclean_election_needs_a_partition_without_a_leader_and_a_live_replica() -> None:
    led = elect_leaders(cluster((1, 2, 3), t=[state()]), [T], UNCLEAN)
    assert isinstance(led.errors[T], ElectionNotNeeded)
    alone = elect_leaders(cluster((9,), t=[state(leader=NO_LEADER, isr=(1,))]), [T], UNCLEAN)
    assert isinstance(alone.errors[T], EligibleLeadersNotAvailable)


def test_imbalance_counts_partitions_that_a_broker_could_lead() -> None:
    image = cluster((1, 2, 3), t=[state(), state(leader=2), state(leader=2, isr=(2, 3)), state((2, 1, 3))])
    found = preferred_leaders(PartitionsByBroker(image), 1)
    assert found == (3, [("t", 1)])
    assert round(found.imbalance_percent) == 33
    assert preferred_leaders(PartitionsByBroker(image), 9).imbalance_percent == 0
