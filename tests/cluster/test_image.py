"""Images of a cluster, and what is different between two."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from tests.cluster.cluster_stories import broker, image_with

from penstock.cluster.image import NO_ID, ClusterImage, ImageDraft, PartitionImage, TopicImage, diff
from penstock.cluster.tree.layout import NO_LEADER, TopicReplicas


def topic(name: str, number: int = 1, partitions: int = 1) -> TopicImage:
    return TopicImage(name, bytes([number]) * 16, tuple(PartitionImage((0,), 0, 0, (0,)) for _ in range(partitions)))


def test_image_cannot_be_changed_only_succeeded() -> None:
    before = ClusterImage()
    after = before.with_topic(topic("t"))
    assert before.topics == {}
    assert after.topic("t") == topic("t")
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.controller_id = 1  # type: ignore[misc]


def test_topics_are_found_by_name_and_by_id() -> None:
    image = ClusterImage().with_topics([topic("a", 1), topic("b", 2, partitions=2)])
    found = image.topic_by_id(bytes([2]) * 16)
    assert found is not None
    assert found.name == "b"
    assert image.topic_by_id(bytes([3]) * 16) is None
    assert image.topic("c") is None
    assert image.partition("b", 1) is not None
    assert image.partition("b", 2) is None
    assert image.partition("b", -1) is None
    assert image.partition("c", 0) is None


def test_removed_topic_is_not_found() -> None:
    image = ClusterImage().with_topic(topic("a.b")).with_topic_config("a.b", {"k": "v"}).without_topic("a.b")
    assert (image.topics, image.names_by_id, image.names_by_metric, image.topic_configs) == ({}, {}, {}, {})
    assert image.without_topic("a.b") is image


def test_recreated_topic_is_not_found_by_its_old_id() -> None:
    image = ClusterImage().with_topic(topic("t", 1)).with_topic(topic("t", 2))
    assert image.topic_by_id(bytes([1]) * 16) is None
    assert image.topic_by_id(bytes([2]) * 16) is not None


def test_topics_without_an_id_are_not_found_by_it() -> None:
    image = ClusterImage().with_topic(TopicImage("old", NO_ID, ()))
    assert image.topic_by_id(NO_ID) is None
    assert image.without_topic("old").topics == {}


def test_colliding_topic_name_is_found() -> None:
    image = ClusterImage().with_topic(topic("a.b"))
    assert image.colliding_topic("a_b") == "a.b"
    assert image.colliding_topic("a.b") is None
    assert image.colliding_topic("ab") is None


def test_partitions_are_added_and_replaced() -> None:
    grown = topic("t").with_partitions([PartitionImage((1, 2))])
    assert [partition.replicas for partition in grown.partitions] == [(0,), (1, 2)]
    assert grown.replication_factor == 1
    assert TopicImage("t", NO_ID, ()).replication_factor == 0


def test_replicas_on_brokers_that_are_not_there_are_offline() -> None:
    image = image_with(broker(0), broker(2))
    partition = PartitionImage((0, 1, 2), leader=1)
    views = TopicImage("views", b"i" * 16, (partition, partition))
    assert image.offline_replicas(views, 0) == (1,)
    assert image.live_leader(partition) == NO_LEADER
    assert image.without_broker(0).offline_replicas(views, 0) == (0, 1)
    endpoint = image.endpoint(2, "PLAINTEXT")
    assert endpoint is not None
    assert endpoint.host == "host2"
    assert image.endpoint(2, "SSL") is None
    assert image.endpoint(1, "PLAINTEXT") is None


def test_replicas_in_failed_data_folders_are_offline() -> None:
    partition = PartitionImage((0, 1, 2), leader=1)
    views = TopicImage("views", b"i" * 16, (partition, partition))
    failed = {"views": TopicReplicas(b"i" * 16, frozenset({1}))}
    image = image_with(broker(0), replace(broker(1), offline=failed), broker(2))
    assert (image.offline_replicas(views, 0), image.offline_replicas(views, 1)) == ((), (1,))
    assert (set(image.online(views, 0)), set(image.online(views, 1))) == ({0, 1, 2}, {0, 2})
    again = replace(views, topic_id=b"j" * 16)
    assert image.offline_replicas(again, 1) == (), "another topic of the same name is not in the folder"
    assert set(diff(image_with(broker(0), broker(1), broker(2)), image).brokers_changed) == {1}


def test_diff_contains_exactly_what_changed() -> None:
    old = image_with(broker(0), broker(1)).with_topics([topic("stays", 1), topic("grows", 2), topic("goes", 3)])
    old = old.with_topic(topic("again", 4)).with_topic_config("stays", {"k": "v"}).with_topic_config("goes", {})
    new = old.with_topic(topic("grows", 2, partitions=2)).without_topic("goes").with_topic(topic("comes", 5))
    new = new.with_topic(topic("again", 6)).with_topic_config("stays", {"k": "w"}).with_broker_config("0", {"a": "b"})
    new = new.without_broker(1).with_broker(broker(2)).with_broker(broker(0, "rack")).with_controller(0, 2)
    found = diff(old, new)
    assert set(found.topics_added) == {"comes", "again"}
    assert set(found.topics_removed) == {"goes", "again"}
    assert found.topics_removed["again"].topic_id != found.topics_added["again"].topic_id
    assert found.topics_changed == {"grows": (topic("grows", 2), topic("grows", 2, partitions=2))}
    assert found.topic_configs_changed == {"stays", "goes"}
    assert found.broker_configs_changed == {"0"}
    assert [set(found.brokers_added), set(found.brokers_removed), set(found.brokers_changed)] == [{2}, {1}, {0}]
    assert found.controller_changed
    assert found


def test_equal_images_have_no_difference_though_made_apart() -> None:
    one = image_with(broker(0)).with_topic(topic("t")).with_topic_config("t", {"k": "v"})
    two = image_with(broker(0)).with_topic(topic("t")).with_topic_config("t", {"k": "v"})
    assert not diff(one, two)
    assert not diff(one, one)


def test_the_same_two_images_are_compared_once_and_a_draft_every_time() -> None:
    """Five parts of a broker ask for the difference that each group of new topics makes."""
    old = image_with(broker(0)).with_topic(topic("t"))
    new = old.with_topic(topic("u"))
    assert diff(old, new) is diff(old, new)
    draft = ImageDraft(new)
    assert not diff(new, draft).topics_added
    draft.with_topics([topic("v", 2)])
    assert set(diff(new, draft).topics_added) == {"v"}
    assert set(diff(new, old).topics_removed) == {"u"}


# --- drafts


def test_draft_becomes_the_image_that_the_same_changes_one_by_one_give() -> None:
    base = ClusterImage().with_topics([topic("kept", 1), topic("a.b", 2)])
    base = base.with_topic_config("a.b", {"k": "v"}).with_deleting(["a.b"]).with_broker(broker(0))

    def change(image: ClusterImage) -> ClusterImage:
        image = image.with_topic(topic("new", 3)).with_topic_config("new", {"k": "w"})
        image = image.with_topic(topic("new", 3, partitions=4)).with_topic(topic("gone", 4))
        image = image.without_topics(["a.b", "gone", "never"]).with_topic(topic("a_b", 5))
        return image.with_topic(topic("kept", 6)).with_deleting(["kept", "never"])

    draft = ImageDraft(base)
    assert change(draft) is draft
    made, wanted = draft.finish(), change(base)
    assert made == wanted
    assert type(made) is ClusterImage
    assert (made.names_by_id, made.names_by_metric) == (wanted.names_by_id, wanted.names_by_metric)
    assert made.brokers is base.brokers
    # The image before is as it was.
    assert set(base.topics) == {"kept", "a.b"}
    assert base.topic_configs == {"a.b": {"k": "v"}}
    assert base.deleting == {"a.b"}
    assert base.topic_by_id(bytes([1]) * 16) == topic("kept", 1)


def test_draft_that_nothing_was_changed_in_is_the_image_itself() -> None:
    base = ClusterImage().with_topic(topic("t"))
    assert ImageDraft(base).finish() is base
    changed = ImageDraft(base).with_topic(topic("u", 2)).with_topic_config("u", {})
    assert isinstance(changed, ImageDraft)
    assert changed.finish().brokers is base.brokers
