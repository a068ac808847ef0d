"""What all brokers of a cluster agree on comes from the image alone."""

from __future__ import annotations

from penstock.broker.dynamic_config import ClusterWideRules, cluster_wide_from_file, overridden
from penstock.broker.settings import settings_from, topic_settings
from penstock.cluster.controller.election import PartitionRules
from penstock.cluster.image import ClusterImage
from penstock.cluster.tree.layout import DEFAULT_BROKER


def test_a_topic_says_it_then_all_brokers_then_the_defaults() -> None:
    rules = ClusterWideRules()
    image = ClusterImage()
    assert rules.rules(image, "t") == PartitionRules(1, unclean_election=False, syncs_before_ack=True)
    image = image.with_broker_config(DEFAULT_BROKER, {"min.insync.replicas": "2"})
    assert rules.rules(image, "t").min_insync_replicas == 2
    image = image.with_topic_config("t", {"min.insync.replicas": "3", "flush.messages": "1000"})
    assert rules.rules(image, "t") == PartitionRules(3, unclean_election=False, syncs_before_ack=False)
    assert rules.rules(image, "other") == PartitionRules(2, unclean_election=False, syncs_before_ack=True)


def test_what_one_broker_has_for_itself_does_not_count() -> None:
    rules = ClusterWideRules()
    own = settings_from({"min.insync.replicas": "3", "log.flush.interval.messages": "5"})
    image = ClusterImage().with_broker_config("1", {"min.insync.replicas": "3"})
    bound = rules.bound(topic_settings(own, {}), image, "t")
    assert (bound.min_insync_replicas, bound.log.sync_before_ack) == (1, True)


def test_a_broker_whose_file_differs_is_told_of_it() -> None:
    own = settings_from({"min.insync.replicas": "3"})
    assert cluster_wide_from_file(own) == {"min.insync.replicas": "3"}
    agreed = ClusterImage().with_broker_config(DEFAULT_BROKER, {"min.insync.replicas": "2"})
    assert overridden(own, agreed) == {"min.insync.replicas": "3"}
    assert overridden(settings_from({"min.insync.replicas": "2"}), agreed) == {}


def test_settings_that_some_other_version_stored_spoil_nothing() -> None:
    rules = ClusterWideRules()
    image = ClusterImage().with_broker_config(DEFAULT_BROKER, {"min.insync.replicas": "many"})
    image = image.with_topic_config("t", {"unclean.leader.election.enable": "perhaps"})
    assert rules.rules(image, "t") == PartitionRules(1, unclean_election=False, syncs_before_ack=True)
