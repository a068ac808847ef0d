"""Cluster-wide settings come from the image alone."""

from __future__ import annotations

from penstock.broker.dynamic_config import cluster_wide_from_file, overridden, with_cluster_wide
from penstock.broker.settings import settings_from, topic_settings
from penstock.cluster.image import ClusterImage
from penstock.cluster.tree.layout import DEFAULT_BROKER


def test_settings_of_one_broker_do_not_count() -> None:
    own = settings_from({"min.insync.replicas": "3", "log.flush.interval.messages": "5"})
    image = ClusterImage().with_broker_config("1", {"min.insync.replicas": "3"})
    found = with_cluster_wide(topic_settings(own, {}), image, "t")
    assert (found.min_insync_replicas, found.log.sync_before_ack) == (1, True)


def test_settings_of_all_brokers_and_of_the_topic_count() -> None:
    image = ClusterImage().with_broker_config(DEFAULT_BROKER, {"min.insync.replicas": "2"})
    image = image.with_topic_config("t", {"flush.messages": "5", "unclean.leader.election.enable": "true"})
    found = with_cluster_wide(topic_settings(settings_from({}), image.topic_config("t")), image, "t")
    assert (found.min_insync_replicas, found.log.sync_before_ack) == (2, False)
    assert found.unclean_leader_election_enable


def test_settings_in_the_file_that_the_cluster_overrides_are_reported() -> None:
    own = settings_from({"min.insync.replicas": "3"})
    assert cluster_wide_from_file(own) == {"min.insync.replicas": "3"}
    agreed = ClusterImage().with_broker_config(DEFAULT_BROKER, {"min.insync.replicas": "2"})
    assert overridden(own, agreed) == {"min.insync.replicas": "3"}
    assert overridden(settings_from({"min.insync.replicas": "2"}), agreed) == {}
