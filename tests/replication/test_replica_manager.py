"""What a broker makes of an image, and stories of brokers that copy from each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.replication.replica_stories import LEDGER, TOPIC, Host, TopicRules, cluster, with_epoch

from penstock.cluster.image import ClusterImage
from penstock.log.errors import DamagedLog
from penstock.log.settings import LogSettings
from penstock.records import CorruptBatch
from penstock.replication.fetch_state import Append, Hold, Truncate, TruncateFully
from penstock.replication.isr import THE_LEADER, nearest_replica
from penstock.testing.simulated_disk import LOSE_UNSYNCED
from penstock.testing.simulated_faults import Fault

UNSYNCED = TopicRules(LogSettings(sync_before_ack=False))


def three(rules: TopicRules | None = None) -> list[Host]:
    hosts = [Host(broker, rules=rules) for broker in (1, 2, 3)]
    for host in hosts:
        host.take(cluster(1, 5))
    return hosts


def settle(leader: Host, *followers: Host) -> None:
    """Let the followers ask until nothing is new to any of them."""
    for _ in range(8):
        for follower in followers:
            follower.fetch_from(leader)


# --- from image to roles


def test_image_decides_leaders_followers_and_removed_partitions() -> None:
    host = Host(1)
    host.take(cluster(1, 5))
    assert ([each.index for each in host.changed.leaders], host.changed.followers, host.changed.removed) == (
        [0],
        [],
        [],
    )
    host.take(cluster(2, 6, version=1))
    assert ([each.leader for each in host.changed.followers], host.changed.leaders) == ([2], [])
    host.take(cluster(2, 6, isr=(2, 3), version=2))
    assert (host.changed.followers, host.changed.leaders, host.changed.removed) == ([], [], []), "a state gives no role"
    host.take(cluster(-1, 7, isr=(2,), version=3))
    assert [each.leader for each in host.changed.followers] == [-1]
    host.take(cluster(2, 8, isr=(2,), replicas=(2, 3), version=4))
    assert host.changed.removed == [(TOPIC, 0)]
    assert host.replicas.get(TOPIC, 0) is None
    assert not host.logs.holds(TOPIC, 0)


def test_partitions_of_other_brokers_are_ignored() -> None:
    host = Host(1)
    host.take(cluster(2, 0, isr=(2, 3), replicas=(2, 3)))
    assert list(host.replicas) == []
    assert not host.logs.holds(TOPIC, 0)


def test_topic_that_is_marked_for_deletion_goes_at_once_and_does_not_come_back() -> None:
    host = Host(1)
    image = cluster(1, 5)
    host.take(image)
    host.take(image.with_deleting([TOPIC]))
    assert host.changed.removed == [(TOPIC, 0)]
    host.take(cluster(1, 6, version=1).with_deleting([TOPIC]))
    assert list(host.replicas) == []
    assert not host.logs.holds(TOPIC, 0)


def test_topic_deleted_and_recreated_in_one_image_begins_empty() -> None:
    host = Host(1)
    image = cluster(1, 5, replicas=(1,), isr=(1,))
    host.take(image)
    host.append(b"old")
    again = replace(image.topics[TOPIC], topic_id=bytes(reversed(range(16))))
    host.take(image.without_topic(TOPIC).with_topic(again))
    assert (host.changed.removed, [each.topic_id for each in host.changed.leaders]) == ([(TOPIC, 0)], [again.topic_id])
    assert host.values() == []


def test_topic_that_was_recreated_while_its_broker_started_begins_empty(caplog: pytest.LogCaptureFixture) -> None:
    """The broker had opened the log of the deleted topic, and then got an image without the topic."""
    host = Host(1)
    image = cluster(1, 5, replicas=(1,), isr=(1,))
    host.take(image)
    host.append(b"old")
    again = replace(image.topics[TOPIC], topic_id=bytes(reversed(range(16))))
    for between in ([image.without_topic(TOPIC)], []):
        host = host.restart()
        for each in between:
            host.take(each)
        assert host.logs.holds(TOPIC, 0)
        host.take(image.without_topic(TOPIC).with_topic(again))
        assert host.changed.leaders[0].topic_id == again.topic_id
        assert host.values() == []
        assert "log of a deleted topic removed: partition=t-0" in caplog.text.replace(TOPIC, "t")
        host.append(b"old")
        again = replace(again, topic_id=bytes(range(16, 32)))


def test_log_that_cannot_be_created_leaves_out_only_its_partition(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(1)
    host.take(ClusterImage(cluster_id="c"))
    host.files.operations.fail("make_folder", 28)
    host.take(cluster(1, 5))
    assert host.replicas.get(TOPIC, 0) is None
    assert "partition offline: partition=t-0" in caplog.text


def test_partition_for_which_there_was_no_room_is_taken_up_when_there_is() -> None:
    host = Host(1)
    host.take(ClusterImage(cluster_id="c"))
    host.files.operations.fail("make_folder", 28)
    host.take(cluster(1, 5))
    host.files.operations.fail("make_folder", 28)
    assert host.replicas.retry(host.image).leaders == []
    assert [each.index for each in host.replicas.retry(host.image).leaders] == [0]
    host.append(b"late")
    assert host.values() == [b"late"]
    assert host.replicas.retry(host.image).leaders == []


def test_partition_that_could_not_be_opened_for_lack_of_room_is_opened_when_there_is() -> None:
    host = Host(1)
    host.take(cluster(1, 5, replicas=(1,), isr=(1,)))
    host.append(b"a")
    for name in host.files.list_folder("/data/t-0"):
        if name.endswith(".timeindex"):
            host.files.remove(f"/data/t-0/{name}")  # has to be built again
    host.files.operations.hook = lambda operation: (
        Fault(OSError(28, "full")) if operation.kind == "create" and "/t-0/" in operation.path else None
    )
    again = host.restart()
    again.take(cluster(1, 6, replicas=(1,), isr=(1,), version=1))
    assert again.replicas.retry(again.image).leaders == []
    assert list(again.replicas.not_created) == [(TOPIC, 0)]
    again.files.operations.hook = None
    again.replicas.retry(again.image)
    assert again.values(committed_only=True) == [b"a"]
    assert not again.replicas.not_created
    again.append(b"b")
    assert again.values() == [b"a", b"b"]


def test_partition_that_is_gone_is_not_retried() -> None:
    host = Host(1)
    host.take(ClusterImage(cluster_id="c"))
    host.files.operations.fail("make_folder", 28)
    host.take(cluster(1, 5))
    host.take(cluster(2, 6, isr=(2,), replicas=(2, 3), version=1))
    assert host.replicas.retry(host.image).leaders == []
    assert not host.logs.holds(TOPIC, 0)


def test_restarted_single_replica_shows_durable_records_first() -> None:
    host = Host(1)
    image = cluster(1, 5, replicas=(1,), isr=(1,))
    host.take(image)
    host.append(b"a")
    host.workers.is_held = True
    lost = host.append(b"b")
    assert not lost.is_answered
    again = host.restart()
    again.workers.is_held = True
    again.take(cluster(1, 6, replicas=(1,), isr=(1,), version=1))
    assert again.values() == [b"a", b"b"], "the page cache survived"
    again.workers.release()
    assert again.values(committed_only=True) == [b"a", b"b"]
    assert again.partition.is_settled


def test_end_that_only_this_broker_answers_for_is_waited_for() -> None:
    alone, leader = Host(1), Host(1)
    alone.take(cluster(1, 5, replicas=(1,), isr=(1,)))
    leader.take(cluster(1, 5))
    heard: list[str] = []
    for name, host in (("alone", alone), ("leader", leader)):
        host.workers.is_held = True
        host.append(b"a")
        host.replicas.when_settled([host.partition, host.partition], lambda name=name: heard.append(name))  # type: ignore[misc]
    assert heard == ["leader"]
    alone.workers.release()
    assert heard == ["leader", "alone"]


def test_records_without_acks_are_visible_at_once_but_never_before_records_that_are_waited_for() -> None:
    host = Host(1)
    host.take(cluster(1, 5, replicas=(1,), isr=(1,)))
    host.workers.is_held = True
    host.append(b"a", acks_all=False)
    assert host.values(committed_only=True) == [b"a"]
    waited = host.append(b"b")
    host.append(b"c", acks_all=False)
    assert host.values(committed_only=True) == [b"a"]
    assert not waited.is_answered
    host.workers.release()
    assert host.values(committed_only=True) == [b"a", b"b", b"c"]
    assert waited.is_answered


# --- copying


def test_followers_copy_and_the_watermark_follows_the_slowest_in_sync() -> None:
    leader, second, third = three()
    leader.append(b"a")
    leader.append(b"b")
    settle(leader, second)
    assert leader.partition.log.high_watermark == 0
    settle(leader, second, third)
    assert [host.values(committed_only=True) for host in (leader, second, third)] == [[b"a", b"b"]] * 3


def test_committed_data_survive_a_follower_that_is_behind_the_watermark_and_becomes_the_leader() -> None:
    """KIP-101: it truncates by epoch; cut at its own watermark it would lose what was acknowledged."""
    leader, second, third = three()
    waiting = leader.append(b"a")
    for _ in range(2):
        second.fetch_from(leader)
    for _ in range(2):
        third.fetch_from(leader)
    assert waiting.is_good
    assert second.partition.log.high_watermark == 0, "it has not heard yet"
    second = second.restart()
    for host in (second, third):
        host.take(cluster(2, 6, isr=(2, 3), version=1))
    settle(second, third)
    assert second.values(committed_only=True) == third.values(committed_only=True) == [b"a"]


def test_two_fast_failovers_and_the_logs_are_one_again() -> None:
    """KIP-279: what the first leader wrote alone, and what the second wrote alone, has one winner everywhere."""
    first, second, third = three(UNSYNCED)
    first.append(b"common")
    settle(first, second, third)
    first.append(b"first, alone")
    for host in (second, third):
        host.take(cluster(2, 6, isr=(2, 3), version=1))
    second.append(b"second, alone")
    third.take(cluster(3, 7, isr=(3,), version=2))
    third.append(b"third")
    for host in (first, second):
        host.take(cluster(3, 7, isr=(3,), version=2))
    steps = [first.fetch_from(third), second.fetch_from(third)]
    assert all(isinstance(step, Truncate) for step in steps)
    settle(third, first, second)
    assert first.values() == second.values() == third.values() == [b"common", b"third"]
    assert [each.log.epochs.entries for each in (first.partition, second.partition)] == [
        third.partition.log.epochs.entries
    ] * 2


def test_epoch_without_records_does_not_block_its_leader() -> None:
    """KAFKA-10706: its last epoch is unknown to the next leader, though their logs are the same."""
    first, second, third = three(UNSYNCED)
    first.append(b"a")
    settle(first, second, third)
    second.take(cluster(2, 6, isr=(1, 2, 3), version=1))
    for host in (first, second, third):
        host.take(cluster(3, 7, isr=(1, 2, 3), version=2))
    third.append(b"b")
    settle(third, first, second)
    assert first.values() == second.values() == [b"a", b"b"]
    assert second.partition.log.epochs.entries == third.partition.log.epochs.entries


def test_leader_that_wrote_nothing_copies_earlier_records_as_a_follower() -> None:
    """Its log is empty, and its epoch is later than the records that it gets."""
    first, second, _ = three(UNSYNCED)
    second.take(cluster(2, 6, version=1))
    second.append(b"of epoch 6")
    first.take(cluster(1, 7, version=2))
    for host in (first, second):
        host.take(cluster(2, 8, version=3))
    settle(second, first)
    assert first.values() == [b"of epoch 6"]


def test_follower_that_lost_its_tail_with_the_power_gets_it_again() -> None:
    leader, second, third = three(UNSYNCED)
    for number in range(5):
        leader.append(b"%d" % number)
    settle(leader, second, third)
    second = second.restart(LOSE_UNSYNCED)
    image = with_epoch(cluster(1, 6, isr=(1, 3), version=1), 2, 202)
    for host in (leader, second, third):
        host.take(image)
    assert second.values() == []
    for _ in range(3):
        second.fetch_from(leader, broker_epoch=202)
    assert second.values() == leader.values()


def test_follower_too_far_behind_starts_over_where_the_leader_begins() -> None:
    leader, second, third = three(UNSYNCED)
    leader.take(cluster(1, 5, isr=(1, 3), version=1))
    for number in range(5):
        leader.append(b"%d" % number)
    settle(leader, third)
    leader.logs.advance_start(TOPIC, 0, 3)
    assert isinstance(second.fetch_from(leader), TruncateFully)
    settle(leader, second)
    assert second.partition.log.log_start_offset == 3
    assert second.values() == leader.values() == [b"3", b"4"]


def test_bit_flipped_at_the_leader_is_not_replicated() -> None:
    leader, second, _ = three(UNSYNCED)
    leader.append(b"a" * 100)
    path = leader.partition.log.active.path
    leader.files.corrupt(path, 100)
    with pytest.raises((CorruptBatch, DamagedLog)):
        second.fetch_from(leader)
    assert second.values() == []


def test_follower_in_another_epoch_is_not_served() -> None:
    leader, second, third = three()
    second.take(cluster(3, 6, version=1))
    assert isinstance(second.fetch_from(leader), Hold)
    leader.take(cluster(1, 7, version=2))
    assert isinstance(third.fetch_from(leader), Hold)


def test_late_fetch_response_is_not_appended_to_a_leader() -> None:
    leader, second, _ = three(UNSYNCED)
    leader.append(b"a")
    region = leader.partition.log.read(0, 1 << 20)
    assert region is not None
    second.take(cluster(2, 6, version=1))
    with pytest.raises(Exception, match="cannot be appended to as a follower"):
        second.partition.append_as_follower(region.read())
    assert isinstance(leader.partition.log.log_end_offset, int)


# --- reading nearby


def test_consumer_is_sent_to_the_replica_in_its_rack_that_has_the_offset() -> None:
    leader, second, third = three()
    leader.append(b"a")
    settle(leader, second)
    leadership, brokers = leader.partition.leadership, leader.image.brokers
    assert leadership is not None
    assert nearest_replica(leadership, "r2", 1, 0, brokers) == 2
    assert nearest_replica(leadership, "r3", 1, 0, brokers) == THE_LEADER, "it has nothing yet"
    assert nearest_replica(leadership, "r1", 0, 0, brokers) == THE_LEADER, "which is in the rack itself"
    assert nearest_replica(leadership, "elsewhere", 0, 0, brokers) == THE_LEADER
    leader.take(cluster(1, 5, isr=(1, 3), version=1))
    assert nearest_replica(leadership, "r2", 1, 0, brokers) == THE_LEADER, "it is not in sync"
    settle(leader, third)
    assert isinstance(third.fetch_from(leader), Append)
    assert LEDGER[3] == leader.replicas.brokers[3]
