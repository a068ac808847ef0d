"""Topic deletion, with brokers that are away."""

from __future__ import annotations

import pytest
from tests.cluster.cluster_stories import Rules
from tests.cluster.controller.decision_stories import alter_isr, brokers_changed, cluster, state, topic_id

from penstock.cluster.controller.election import IsrRequest, PartitionsByBroker
from penstock.cluster.controller.topics import (
    Deletions,
    NewTopic,
    Placement,
    add_partitions,
    create_topic,
    mark_deleted,
)
from penstock.cluster.errors import TopicExists, UnknownTopic
from penstock.cluster.image import ClusterImage, TopicImage
from penstock.cluster.tree.tree import Create, Delete
from penstock.runtime.randomness import SeededRandom
from penstock.wire.protocol import ErrorCode

PLACEMENT = Placement(SeededRandom(0))


def marked() -> ClusterImage:
    return mark_deleted(cluster((1, 2), t=[state((1, 2)), state((2, 3))]), "t").image


def test_topic_exists_until_the_broker_that_was_away_reports_its_replicas_deleted() -> None:
    decision = mark_deleted(cluster((1, 2), t=[state((1, 2)), state((2, 3))]), "t")
    assert decision.operations == (Create("/admin/delete_topics/t"),)
    deletions = Deletions(decision.image)
    for partition, broker in [(0, 1), (0, 2), (1, 2)]:
        deletions.reported_gone("t", topic_id("t"), partition, broker)
    assert deletions.finished() == []
    assert deletions.finish(decision.image, "t") is None
    assert deletions.awaited("t") == {(1, 3)}
    deletions.reported_gone("t", topic_id("t"), 1, 3)
    assert deletions.finished() == ["t"]
    end = deletions.finish(decision.image, "t")
    assert end is not None
    assert end.operations[-2:] == (Delete("/brokers/topics/t"), Delete("/admin/delete_topics/t"))
    assert (end.image.topics, end.image.deleting) == ({}, frozenset())
    deletions.follow(end.image)
    assert deletions.finished() == []


def test_kip_570_late_report_about_an_earlier_topic_of_the_name_is_ignored() -> None:
    deletions = Deletions(marked())
    before = deletions.awaited("t")
    deletions.reported_gone("t", topic_id("old"), 0, 1)
    deletions.reported_gone("other", topic_id("t"), 0, 1)
    assert deletions.awaited("t") == before
    again = marked().without_topic("t").with_topic(TopicImage("t", topic_id("new"), (state((1,)),)))
    assert deletions.finish(again, "t") is None
    deletions.follow(again.with_deleting(["t"]))
    assert deletions.awaited("t") == {(0, 1)}


def test_reports_are_kept_across_images_and_a_new_controller_awaits_all_again() -> None:
    image = marked()
    deletions = Deletions(image)
    deletions.reported_gone("t", topic_id("t"), 0, 1)
    deletions.follow(image.without_broker(2))
    assert (0, 1) not in deletions.awaited("t")
    assert (0, 1) in Deletions(image).awaited("t")


def test_replicas_that_a_reassignment_adds_are_awaited() -> None:
    image = cluster((1, 2, 3), t=[state((2, 1), adding=(2,), removing=(1,))])
    assert Deletions(image.with_deleting(["t"])).awaited("t") == {(0, 1), (0, 2)}


def test_marking_twice_changes_nothing_and_an_unknown_topic_is_rejected() -> None:
    assert mark_deleted(marked(), "t").operations == ()
    with pytest.raises(UnknownTopic):
        mark_deleted(marked(), "other")


def test_topic_being_deleted_cannot_be_led_grown_or_created_again() -> None:
    image = marked()
    assert brokers_changed(PartitionsByBroker(image), image.without_broker(1), left=(1,)).operations == ()
    request = IsrRequest("t", 0, 1, 101, 5, 7, (1,), (101,))
    assert alter_isr(image, request) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(UnknownTopic, match="being deleted"):
        add_partitions(image, "t", 5, PLACEMENT)
    with pytest.raises(TopicExists, match="being deleted"):
        create_topic(image, NewTopic("t"), topic_id("new"), PLACEMENT, Rules())
