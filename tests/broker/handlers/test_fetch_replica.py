"""Fetch as brokers of a cluster serve it: to followers, by topic ids, from replicas nearby, to those gone astray."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.broker.handlers.services import services_for
from tests.replication.replica_stories import LEDGER, NOW_MS, TOPIC, TOPIC_ID, Host, TopicRules, cluster, with_epoch

from penstock.broker.handlers import delete_records, fetch, list_offsets, offset_for_leader_epoch, produce
from penstock.broker.handlers.fetch import WATERMARK_MS
from penstock.broker.request import Disconnection, Request
from penstock.broker.settings import settings_from
from penstock.cluster.image import ClusterImage
from penstock.records import encode_batch
from penstock.replication.follower import Throttle
from penstock.testing.simulated_files import SimulatedFiles
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.wire.schemas.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from penstock.wire.schemas.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from penstock.wire.schemas.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.wire.schemas.produce import PartitionProduceData, ProduceRequest, TopicProduceData

LONG_MS = 60_000
VERSION = 17


class Served:
    """What handlers see of a broker, around a host's partitions."""

    def __init__(self, broker_id: int, image: ClusterImage, *, minimum: int = 1) -> None:
        self.host = Host(broker_id, rules=TopicRules(min_insync_replicas=minimum))
        self.host.take(image)
        self.soon: list[Callable[[], None]] = []
        settings = settings_from({"fetch.max.bytes": str(1 << 30)})
        self.services = services_for(settings, broker_id, clock=self.host.clock, files=SimulatedFiles())
        self.services.replicas = self.host.replicas
        self.services.call_later = self.host.timers
        self._metadata: Any = SimpleNamespace(image=image)
        self.services.cluster = self._metadata
        loop: Any = SimpleNamespace(call_soon=self.soon.append)
        self.services.loop = loop

    def take(self, image: ClusterImage) -> None:
        self._metadata.image = image
        self.host.take(image)

    def ask(self, handler: Any, key: ApiKey, message: Any, version: int) -> list[Any]:
        """The list gets the answer, now or later."""
        answers: list[Any] = []
        request = Request(key, version, "c", "peer:1", message, NOW_MS, Disconnection())
        handler.handle(self.services, request, answers.append)
        return answers

    def turn(self) -> None:
        """The end of a turn of the loop."""
        soon, self.soon[:] = list(self.soon), []
        for work in soon:
            work()


class Follower:
    """Speaks Fetch as a follower does, in a session."""

    def __init__(self, leader: Served, broker: int = 2, epoch: int | None = None) -> None:
        self.leader, self.id = leader, broker
        self.epoch = LEDGER[broker] if epoch is None else epoch
        self.session, self.session_epoch = 0, 0

    def fetch(
        self, offset: int | None, *, last_epoch: int = -1, leader_epoch: int = 5, start: int = 0
    ) -> list[FetchResponse]:
        wanted = FetchPartition(
            partition=0, fetch_offset=offset or 0, current_leader_epoch=leader_epoch, last_fetched_epoch=last_epoch,
            partition_max_bytes=1 << 20, log_start_offset=start,
        )  # fmt: skip
        topics = [] if offset is None else [FetchTopic(topic_id=TOPIC_ID, partitions=[wanted])]
        message = FetchRequest(
            replica_state=ReplicaState(replica_id=self.id, replica_epoch=self.epoch), max_wait_ms=LONG_MS, min_bytes=1,
            session_id=self.session, session_epoch=self.session_epoch, topics=topics,
        )  # fmt: skip
        return _noting(self, self.leader.ask(fetch, ApiKey.FETCH, message, VERSION))

    def take(self, answers: list[FetchResponse]) -> PartitionData | None:
        """The partition's part of the answer that has come; None if there is nothing of it in it."""
        (response,) = answers
        assert response.error_code == ErrorCode.NONE
        self.session, self.session_epoch = response.session_id, self.session_epoch + 1
        if not response.responses:
            return None
        assert response.responses[0].topic_id == TOPIC_ID
        return response.responses[0].partitions[0]


def _noting(follower: Follower, answers: list[FetchResponse]) -> list[FetchResponse]:
    return answers


def only(answers: list[FetchResponse]) -> PartitionData:
    return answers[0].responses[0].partitions[0]


def consume(
    served: Served, offset: int = 0, *, version: int = 12, rack: str = "", topic_id: bytes = TOPIC_ID, epoch: int = -1
) -> list[FetchResponse]:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=epoch)
    topic = FetchTopic(topic=TOPIC, topic_id=topic_id, partitions=[wanted])
    message = FetchRequest(max_wait_ms=LONG_MS, min_bytes=1, rack_id=rack, topics=[topic])
    return served.ask(fetch, ApiKey.FETCH, message, version)


def size_of(data: PartitionData) -> int:
    records = data.records
    assert records is not None
    return len(records) if isinstance(records, (bytes, bytearray, memoryview)) else records.size


# --- followers


def test_a_follower_gets_what_no_consumer_may_see_and_its_next_question_commits_it() -> None:
    leader = Served(1, cluster(1, 5))
    waiting = leader.host.append(b"a")
    consumer = consume(leader)
    assert consumer == [], "nothing is committed"
    second, third = Follower(leader, 2), Follower(leader, 3)
    for follower in (second, third):
        data = follower.take(follower.fetch(0))
        assert data is not None
        assert (size_of(data), data.high_watermark) == (leader.host.partition.log.size, 0)
    second.fetch(1, last_epoch=5)
    assert not waiting.is_answered
    third.fetch(1, last_epoch=5)
    assert waiting.is_good
    assert size_of(only(consumer)) > 0


def test_appends_of_one_turn_go_to_a_waiting_follower_together() -> None:
    leader = Served(1, cluster(1, 5, isr=(1,)))
    waiting = Follower(leader).fetch(0)
    leader.host.append(b"a")
    leader.host.append(b"b")
    assert waiting == []
    leader.turn()
    assert size_of(only(waiting)) == leader.host.partition.log.size


def test_a_waiting_follower_hears_of_the_watermark_soon_and_without_records() -> None:
    leader = Served(1, cluster(1, 5, isr=(1, 2, 3)))
    second, third = Follower(leader, 2), Follower(leader, 3)
    leader.host.append(b"a")
    for follower in (second, third):
        follower.take(follower.fetch(0))
    answers = second.fetch(1, last_epoch=5)
    third.fetch(1, last_epoch=5)
    assert answers == []
    leader.host.timers.pass_time(WATERMARK_MS)
    data = second.take(answers)
    assert data is not None
    assert (data.high_watermark, size_of(data)) == (1, 0)


def test_a_follower_with_nothing_new_waits_for_max_wait_ms() -> None:
    leader = Served(1, cluster(1, 5, isr=(1, 2)))
    second = Follower(leader)
    first = second.fetch(0)
    leader.host.timers.pass_time(WATERMARK_MS)
    second.take(first)
    quiet = second.fetch(None)
    leader.host.timers.pass_time(LONG_MS - 1)
    assert quiet == []
    leader.host.timers.pass_time(1)
    assert quiet[0].responses == []


def test_a_partition_at_rest_wakes_its_follower_by_an_append() -> None:
    leader = Served(1, cluster(1, 5, isr=(1, 2)))
    second = Follower(leader)
    first = second.fetch(0)
    leader.host.timers.pass_time(WATERMARK_MS)
    second.take(first)
    waiting = second.fetch(None)
    produced = leader.host.append(b"a")
    leader.turn()
    assert size_of(only(waiting)) > 0
    second.take(waiting)
    second.fetch(1, last_epoch=5)
    assert produced.is_good


def test_a_follower_whose_log_diverged_gets_the_divergence_and_does_not_advance_the_watermark() -> None:
    leader = Served(1, cluster(1, 5, isr=(1, 2)))
    leader.host.append(b"a")
    data = only(Follower(leader).fetch(9, last_epoch=3))
    assert (data.error_code, data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (ErrorCode.NONE, 3, 0)
    assert size_of(data) == 0
    assert leader.host.partition.log.high_watermark == 0


def test_a_follower_out_of_range_gets_the_bounds_of_the_log() -> None:
    leader = Served(1, cluster(1, 5, isr=(1,)))
    leader.host.append(b"a")
    leader.host.append(b"b")
    leader.host.logs.advance_start(TOPIC, 0, 1)
    data = only(Follower(leader).fetch(0))
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (data.log_start_offset, data.high_watermark) == (1, 2)


def test_followers_count_only_under_their_registered_epoch_and_the_leaders_epoch() -> None:
    leader = Served(1, cluster(1, 5))
    assert only(Follower(leader, epoch=99).fetch(0)).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert only(Follower(leader).fetch(0, leader_epoch=4)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert only(Follower(leader).fetch(0, leader_epoch=6)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    other = Served(2, cluster(1, 5))
    data = only(Follower(other, 3).fetch(0))
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (1, 5)


def test_a_broker_that_returns_with_a_new_epoch_continues_the_session_of_its_previous_one() -> None:
    """Its session ended, or its registration did and not its connection: what is at rest must be looked at again."""
    leader = Served(1, cluster(1, 5, isr=(1, 2)))
    second = Follower(leader)
    first = second.fetch(0)
    leader.host.timers.pass_time(WATERMARK_MS)
    second.take(first)
    quiet = second.fetch(None)
    leader.take(with_epoch(leader.host.image, 2, 202))
    leader.turn()
    data = second.take(quiet)
    assert data is not None
    assert data.error_code == ErrorCode.STALE_BROKER_EPOCH
    second.epoch = 202
    second.fetch(None)
    leadership = leader.host.partition.leadership
    assert leadership is not None
    assert leadership.log_end_of(2) == 0


def test_a_leader_that_goes_away_answers_the_followers_that_wait() -> None:
    leader = Served(1, cluster(1, 5))
    waiting = Follower(leader).fetch(0)
    leader.take(cluster(2, 6, version=1))
    leader.turn()
    assert only(waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert waiting[0].node_endpoints[0].host == "host2"


# --- deleting records


def delete(leader: Served, offset: int, timeout_ms: int = 1000) -> list[DeleteRecordsResponse]:
    wanted = DeleteRecordsTopic(name=TOPIC, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
    message = DeleteRecordsRequest(topics=[wanted], timeout_ms=timeout_ms)
    return leader.ask(delete_records, ApiKey.DELETE_RECORDS, message, 2)


def outcome(answers: list[DeleteRecordsResponse]) -> tuple[int, int]:
    (answer,) = answers
    result: DeleteRecordsPartitionResult = answer.topics[0].partitions[0]
    return result.error_code, result.low_watermark


def with_two_followers() -> tuple[Served, Follower, Follower]:
    """Three records, committed; both followers wait for more."""
    leader = Served(1, cluster(1, 5))
    for value in (b"a", b"b", b"c"):
        leader.host.append(value)
    followers = Follower(leader, 2), Follower(leader, 3)
    for follower in followers:
        follower.take(follower.fetch(0))
        follower.fetch(3, last_epoch=5)
    assert leader.host.partition.log.high_watermark == 3
    return leader, *followers


def test_records_are_deleted_when_every_live_replica_has_done_so() -> None:
    leader, second, third = with_two_followers()
    deleted = delete(leader, 2)
    second.session_epoch += 1
    third.session_epoch += 1
    second.fetch(3, last_epoch=5, start=2)
    assert deleted == [], "3 has them still"
    third.fetch(3, last_epoch=5, start=2)
    assert outcome(deleted) == (ErrorCode.NONE, 2)
    assert outcome(delete(leader, 1)) == (ErrorCode.NONE, 2), "no replica has records below"


def test_a_follower_that_waits_hears_soon_that_records_are_deleted() -> None:
    leader = Served(1, cluster(1, 5, isr=(1, 2)))
    second = Follower(leader)
    leader.host.append(b"a")
    second.take(second.fetch(0))
    first = second.fetch(1, last_epoch=5)
    leader.host.timers.pass_time(WATERMARK_MS)
    second.take(first)
    waiting = second.fetch(None)
    delete(leader, 1)
    leader.host.timers.pass_time(WATERMARK_MS)
    data = second.take(waiting)
    assert data is not None
    assert (data.log_start_offset, size_of(data)) == (1, 0)


def test_a_replica_that_is_not_done_in_time_is_a_timeout() -> None:
    leader, second, _ = with_two_followers()
    deleted = delete(leader, -1, timeout_ms=300)
    second.session_epoch += 1
    second.fetch(3, last_epoch=5, start=3)
    leader.host.timers.pass_time(250)
    assert deleted == []
    for _ in range(2):
        leader.host.timers.pass_time(100)
    assert outcome(deleted) == (ErrorCode.REQUEST_TIMED_OUT, 0)
    assert leader.host.partition.log.log_start_offset == 3


def test_dead_replicas_are_not_waited_for() -> None:
    leader, second, _ = with_two_followers()
    deleted = delete(leader, 2)
    second.session_epoch += 1
    second.fetch(3, last_epoch=5, start=2)
    assert deleted == []
    leader.take(leader.host.image.without_broker(3))
    assert outcome(deleted) == (ErrorCode.NONE, 2)


def test_a_replica_that_came_back_has_to_say_again_where_its_log_begins() -> None:
    leader, second, third = with_two_followers()
    for follower in (second, third):
        follower.session_epoch += 1
        follower.fetch(3, last_epoch=5, start=2)
    leader.take(with_epoch(leader.host.image, 3, 303))
    assert delete(leader, 2) == []


def test_a_leader_that_resigns_answers_waiting_deletions() -> None:
    leader, _, _ = with_two_followers()
    deleted = delete(leader, 2)
    leader.take(cluster(2, 6, version=1))
    assert outcome(deleted) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


# --- throttles


def throttled(leader: Served, rate_bytes_s: float, topic: str = TOPIC) -> Throttle:
    throttle = leader.host.replicas.throttle = Throttle(rate_bytes_s, lambda name, index: name == topic)
    return throttle


def test_a_replica_not_in_sync_gets_nothing_more_until_the_leaders_debt_is_paid() -> None:
    leader = Served(1, cluster(1, 5, isr=(1,)))
    throttle = throttled(leader, 100)
    leader.host.append(b"a" * 150)
    second = Follower(leader)
    data = second.take(second.fetch(0))
    assert data is not None
    assert size_of(data) == leader.host.partition.log.size, "what was sent is counted afterwards"
    delay_ms = throttle.delay_ms(leader.host.clock.monotonic_ms())
    assert delay_ms > 1000
    waiting = second.fetch(1, last_epoch=5)
    leader.host.append(b"b")
    leader.host.append(b"c")
    leader.turn()
    assert waiting == [], "more records do not wake it"
    leader.host.timers.pass_time(int(delay_ms) + 1)
    data = second.take(waiting)
    assert data is not None
    assert size_of(data) > 0


def test_a_replica_in_sync_is_served_whatever_the_leader_has_sent() -> None:
    leader = Served(1, cluster(1, 5, isr=(1, 2)))
    throttle = throttled(leader, 100)
    second = Follower(leader)
    for offset, value in enumerate((b"a" * 500, b"b" * 500)):
        leader.host.append(value)
        data = second.take(second.fetch(offset, last_epoch=5 if offset else -1))
        assert data is not None
        assert size_of(data) > 500
    assert throttle.delay_ms(leader.host.clock.monotonic_ms()) > 9000, "the rate is of all together"


def test_partitions_that_are_not_listed_are_not_held_back() -> None:
    leader = Served(1, cluster(1, 5, isr=(1,)))
    throttle = throttled(leader, 100, topic="another")
    throttle.add(10_000, leader.host.clock.monotonic_ms())
    leader.host.append(b"a")
    second = Follower(leader)
    data = second.take(second.fetch(0))
    assert data is not None
    assert size_of(data) > 0


# --- topic ids


def test_topics_are_deleted_by_id_and_an_unknown_id_is_reported() -> None:
    leader = Served(1, cluster(1, 5, isr=(1,)))
    leader.host.append(b"a")
    known = consume(leader, version=13)
    assert (known[0].responses[0].topic_id, size_of(only(known)) > 0) == (TOPIC_ID, True)
    unknown = consume(leader, version=13, topic_id=b"x" * 16)
    assert (unknown[0].responses[0].topic_id, only(unknown).error_code) == (b"x" * 16, ErrorCode.UNKNOWN_TOPIC_ID)


def test_a_session_by_id_ends_when_its_topic_is_created_again() -> None:
    leader = Served(1, cluster(1, 5, isr=(1,)))
    leader.host.append(b"a")
    second = Follower(leader)
    second.take(second.fetch(0))
    image = leader.host.image
    again = image.without_topic(TOPIC).with_topic(
        type(image.topics[TOPIC])(TOPIC, b"n" * 16, image.topics[TOPIC].partitions)
    )
    leader.take(again)
    (answer,) = second.fetch(None)
    assert answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    fresh = Follower(leader)
    assert only(fresh.fetch(0)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_waiting_fetch_reads_nothing_of_a_topic_that_was_created_again() -> None:
    leader = Served(1, cluster(1, 5, isr=(1,)))
    waiting = consume(leader, version=13)
    image = leader.host.image
    leader.take(
        image.without_topic(TOPIC).with_topic(
            type(image.topics[TOPIC])(TOPIC, b"n" * 16, image.topics[TOPIC].partitions)
        )
    )
    assert only(waiting).error_code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert waiting[0].responses[0].topic_id == TOPIC_ID


# --- consumers


def test_a_consumer_is_sent_to_the_replica_in_its_rack_and_served_there() -> None:
    leader, follower = Served(1, cluster(1, 5)), Served(2, cluster(1, 5))
    leader.host.append(b"a")
    for broker in (2, 3):
        speaker = Follower(leader, broker)
        speaker.take(speaker.fetch(0))
        speaker.fetch(1, last_epoch=5)
    assert size_of(only(consume(leader))) > 0
    sent_away = only(consume(leader, rack="r2"))
    assert (sent_away.preferred_read_replica, size_of(sent_away)) == (2, 0)
    follower.host.fetch_from(leader.host)
    follower.host.fetch_from(leader.host)
    assert size_of(only(consume(follower, rack="r2"))) > 0
    assert only(consume(follower)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "this one just lost its way"


def test_partitions_led_elsewhere_are_not_unknown() -> None:
    outsider = Served(1, cluster(2, 5, replicas=(2, 3), isr=(2, 3)))
    assert only(consume(outsider)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    outsider.take(ClusterImage(cluster_id="c"))
    assert only(consume(outsider)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_current_leader_is_returned_only_by_versions_with_its_address() -> None:
    """A client that gets a leader without its address, and does not know that broker, cannot connect to it."""
    outsider = Served(1, cluster(2, 5, replicas=(2, 3), isr=(2, 3)))
    for version in (12, 15):
        (answer,) = consume(outsider, version=version)
        assert (only([answer]).current_leader.leader_id, answer.node_endpoints) == (-1, [])
    for version in (16, 17):
        (answer,) = consume(outsider, version=version)
        assert (only([answer]).current_leader.leader_id, answer.node_endpoints[0].host) == (2, "host2")


# --- the others


def produced(served: Served, *, acks: int = -1, timeout_ms: int = 1000) -> list[Any]:
    records = bytes(encode_batch([(NOW_MS, None, b"v", ())]))
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=records)])
    message = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[data])
    return served.ask(produce, ApiKey.PRODUCE, message, 11)


def test_a_producer_at_the_wrong_broker_gets_the_leader_and_its_address() -> None:
    for served in (Served(2, cluster(1, 5)), Served(2, cluster(1, 5, replicas=(1, 3), isr=(1, 3)))):
        (answer,) = produced(served)
        outcome = answer.responses[0].partition_responses[0]
        assert outcome.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (outcome.current_leader.leader_id, outcome.current_leader.leader_epoch) == (1, 5)
        assert [(node.node_id, node.host) for node in answer.node_endpoints] == [(1, "host1")]


def test_a_produce_request_with_slow_replicas_times_out_by_its_own_timeout() -> None:
    leader = Served(1, cluster(1, 5))
    waiting = produced(leader, timeout_ms=300)
    assert produced(leader, acks=1)[0].responses[0].partition_responses[0].error_code == ErrorCode.NONE
    leader.host.timers.pass_time(200)
    assert waiting == []
    leader.host.timers.pass_time(200)
    assert waiting[0].responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT


def test_replicas_lost_before_and_after_the_append_are_distinguished() -> None:
    leader = Served(1, cluster(1, 5), minimum=2)
    waiting = produced(leader)
    leader.take(cluster(1, 5, isr=(1,), version=1))
    code = waiting[0].responses[0].partition_responses[0].error_code
    assert code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert produced(leader)[0].responses[0].partition_responses[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS


def end_of(served: Served, version: int, timestamp: int = -1) -> tuple[int, int]:
    wanted = ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
    (answer,) = served.ask(list_offsets, ApiKey.LIST_OFFSETS, ListOffsetsRequest(topics=[wanted]), version)
    outcome = answer.topics[0].partitions[0]
    return outcome.error_code, outcome.offset


def test_a_new_leader_names_no_end_before_it_knows_how_far_its_predecessor_was() -> None:
    """KIP-207: the end of a partition never goes back."""
    leader = Served(1, cluster(1, 5))
    leader.host.append(b"a")
    leader.take(cluster(1, 6, version=1))
    assert end_of(leader, 5)[0] == ErrorCode.OFFSET_NOT_AVAILABLE
    assert end_of(leader, 4)[0] == ErrorCode.LEADER_NOT_AVAILABLE
    assert end_of(leader, 5, -2) == (ErrorCode.NONE, 0)
    for broker in (2, 3):
        Follower(leader, broker).fetch(1, last_epoch=5, leader_epoch=6)
    assert end_of(leader, 5) == (ErrorCode.NONE, 1)


def test_only_the_leader_returns_offsets_and_ends_of_epochs() -> None:
    follower = Served(2, cluster(1, 5))
    assert end_of(follower, 5)[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    wanted = OffsetForLeaderTopic(topic=TOPIC, partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=5)])
    message = OffsetForLeaderEpochRequest(topics=[wanted])
    (answer,) = follower.ask(offset_for_leader_epoch, ApiKey.OFFSET_FOR_LEADER_EPOCH, message, 4)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
