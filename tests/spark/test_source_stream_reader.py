"""The stream reader as Spark's driver calls it, without Spark: every call crosses JSON, as it does there."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows
from tests.spark.source_stories import at, fill, offsets_json, recreate, remove_before, source_options

from penstock.client.admin import Admin
from penstock.client.cluster_metadata import ClusterView, TopicPartition
from penstock.client.errors import ConfigError, UnknownTopic
from penstock.client.leader_requests import Found
from penstock.spark.errors import CheckpointMismatch, DataLost, TopicRecreated
from penstock.spark.offsets import OffsetRange, StreamOffset
from penstock.spark.options import LATEST, parse_source
from penstock.spark.source import OffsetReader, RangePartition, StreamReader
from penstock.testing import Broker
from penstock.testing.pytest_plugin import topic_name

Json = dict[str, Any]


class Driver:
    """Calls a reader as a query does."""

    def __init__(self, broker: Broker, topic: str, **options: object) -> None:
        given = source_options(broker, topic, **{"startingOffsets": "earliest", **options})
        self.reader = StreamReader(parse_source(given, streaming=True), None)

    def initial(self) -> Json:
        return through_json(self.reader.initialOffset())

    def latest(self, start: Json, limit: ReadLimit | None = None) -> Json:
        return through_json(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit()))

    def plans(self, start: Json, end: Json) -> list[OffsetRange]:
        return [plan_of(one) for one in self.reader.partitions(start, end)]

    def ranges(self, start: Json, end: Json) -> list[tuple[int, int, int]]:
        return [(plan.partition, plan.start, plan.end) for plan in self.plans(start, end)]


def through_json(value: Json) -> Json:
    found: Json = json.loads(json.dumps(value))
    return found


def plan_of(partition: InputPartition) -> OffsetRange:
    assert isinstance(partition, RangePartition)
    return partition.plan


def test_batches_follow_each_other_without_gap_or_overlap(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(30))
    driver = Driver(broker, topic)
    start = driver.initial()
    first = driver.latest(start)
    assert driver.ranges(start, first) == [(0, 0, 30)]
    assert driver.latest(first) == first, "nothing new: Spark compares the text"
    fill(broker, topic, range(5))
    fill(broker, topic, range(3), partition=1)
    second = driver.latest(first)
    assert driver.ranges(first, second) == [(0, 30, 35), (1, 0, 3)]


def test_the_first_batch_is_planned_even_if_it_is_empty_so_that_the_start_is_in_the_checkpoint(
    broker: Broker, topic: str
) -> None:
    fill(broker, topic, range(30))
    driver = Driver(broker, topic, startingOffsets="latest")
    start = driver.initial()
    first = driver.latest(start)
    assert first != start
    assert driver.ranges(start, first) == []
    assert driver.latest(first) == first


def test_a_limit_is_shared_by_the_partitions(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(90))
    fill(broker, topic, range(10), partition=1)
    driver = Driver(broker, topic, maxOffsetsPerTrigger=20)
    assert driver.reader.getDefaultReadLimit() == ReadMaxRows(20)
    start = driver.initial()
    end = driver.latest(start)
    assert driver.ranges(start, end) == [(0, 0, 18), (1, 0, 2)]
    assert driver.ranges(start, driver.latest(start, ReadAllAvailable())) == [(0, 0, 90), (1, 0, 10)]


def test_a_batch_waits_for_its_minimum(broker: Broker, topic: str) -> None:
    driver = Driver(broker, topic, minOffsetsPerTrigger=50)
    assert driver.reader.getDefaultReadLimit() == ReadMinRows(50)
    start = driver.latest(driver.initial())
    fill(broker, topic, range(49))
    assert driver.latest(start) == start
    fill(broker, topic, range(1))
    assert driver.ranges(start, driver.latest(start)) == [(0, 0, 50)]


def test_a_batch_waits_no_longer_than_its_delay(broker: Broker, topic: str) -> None:
    driver = Driver(broker, topic, minOffsetsPerTrigger=50, maxTriggerDelay="0ms")
    start = driver.latest(driver.initial())
    fill(broker, topic, range(1))
    assert driver.ranges(start, driver.latest(start)) == [(0, 0, 1)]


def test_trap_9_least_and_most_together_though_spark_accepts_one_limit_only(broker: Broker, topic: str) -> None:
    driver = Driver(broker, topic, minOffsetsPerTrigger=10, maxOffsetsPerTrigger=20)
    start = driver.latest(driver.initial())
    fill(broker, topic, range(9))
    assert driver.latest(start) == start
    fill(broker, topic, range(91))
    assert driver.ranges(start, driver.latest(start)) == [(0, 0, 20)]


def test_available_now_ends_where_the_log_ended_when_it_began(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(30))
    driver = Driver(broker, topic, maxOffsetsPerTrigger=20, minOffsetsPerTrigger=15)
    driver.reader.prepareForTriggerAvailableNow()
    fill(broker, topic, range(30))
    with Admin(broker.address) as admin:
        admin.create_partitions(topic, 3)
    start = driver.initial()
    first = driver.latest(start)
    second = driver.latest(first)
    assert driver.ranges(start, first) + driver.ranges(first, second) == [(0, 0, 20), (0, 20, 30)]
    assert driver.latest(second) == second
    assert StreamOffset.from_json(second).offsets == at(topic, 30, 0), "a newer partition comes next time"


def test_new_partitions_are_read_from_their_beginning(broker: Broker, topic: str) -> None:
    driver = Driver(broker, topic, startingOffsets="latest")
    start = driver.latest(driver.initial())
    with Admin(broker.address) as admin:
        admin.create_partitions(topic, 3)
    fill(broker, topic, range(7), partition=2)
    end = driver.latest(start)
    assert driver.ranges(start, end) == [(2, 0, 7)]
    assert StreamOffset.from_json(end).starts == {(topic, 2): 0}


def test_new_topics_of_a_pattern_are_read_from_their_beginning(broker: Broker) -> None:
    stem = topic_name("pattern")
    broker.create_topic(f"{stem}-a", 1)
    driver = Driver(broker, f"{stem}-a", subscribe=None, subscribePattern=f"{stem}-.*", startingOffsets="latest")
    start = driver.latest(driver.initial())
    broker.create_topic(f"{stem}-b", 1)
    broker.create_topic(f"other-{stem}-c", 1)
    fill(broker, f"{stem}-b", range(4))
    plans = driver.plans(start, driver.latest(start))
    assert [(plan.topic, plan.start, plan.end) for plan in plans] == [(f"{stem}-b", 0, 4)]


def test_a_pattern_without_topics_waits_for_some(broker: Broker) -> None:
    stem = topic_name("nothing-yet")
    driver = Driver(broker, "", subscribe=None, subscribePattern=f"{stem}.*")
    start = driver.initial()
    assert driver.ranges(start, driver.latest(start)) == []


def test_recreated_topic_is_rejected_with_what_to_do(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(10))
    driver = Driver(broker, topic)
    start = driver.latest(driver.initial())
    recreate(broker, topic)
    fill(broker, topic, range(50))
    with pytest.raises(TopicRecreated, match=r"recreated.*new checkpointLocation") as raised:
        Driver(broker, topic).latest(start)
    assert "\n" not in str(raised.value)
    with pytest.raises(TopicRecreated):
        driver.latest(start)


def test_ends_that_were_reported_before_the_topic_was_recreated_are_asked_for_again(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata and ends are asked for at once, so that a topic may be made again between the two answers."""
    fill(broker, topic, range(10))
    offset_reader = OffsetReader(parse_source(source_options(broker, topic), streaming=True))
    assert list(offset_reader.available().bounds.values()) == [(0, 10), (0, 0)]
    refreshed, ends, reported = offset_reader._refreshed, offset_reader._ends, asyncio.Event()

    async def ends_first(partitions: Iterable[TopicPartition], end: int) -> Found:
        found = await ends(partitions, end)
        if end == LATEST:
            reported.set()
        return found

    async def made_again_meanwhile() -> ClusterView:
        await reported.wait()
        await asyncio.to_thread(recreate, broker, topic)
        await asyncio.to_thread(fill, broker, topic, range(3))
        return await refreshed()

    monkeypatch.setattr(offset_reader, "_ends", ends_first)
    monkeypatch.setattr(offset_reader, "_refreshed", made_again_meanwhile)
    assert list(offset_reader.available().bounds.values()) == [(0, 3), (0, 0)]


def test_recreated_topic_can_be_read_from_its_beginning(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(10))
    driver = Driver(broker, topic, failOnDataLoss=False)
    start = driver.latest(driver.initial())
    recreate(broker, topic)
    fill(broker, topic, range(50))
    end = driver.latest(start)
    assert driver.ranges(start, end) == [(0, 0, 50)]
    assert driver.latest(end) == end


def test_records_lost_to_retention_are_rejected_or_skipped(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(10))
    driver = Driver(broker, topic)
    start = driver.latest(driver.initial())
    fill(broker, topic, range(20))
    remove_before(broker, topic, 15)
    with pytest.raises(DataLost, match="offsets 10 to 14 were removed"):
        driver.latest(start)
    forgiving = Driver(broker, topic, failOnDataLoss=False)
    assert forgiving.ranges(start, forgiving.latest(start)) == [(0, 15, 30)]


def test_a_deleted_topic_is_rejected_or_left_out(broker: Broker, topic: str) -> None:
    from tests.broker.wire_client import delete_topic

    driver = Driver(broker, topic)
    start = driver.latest(driver.initial())
    delete_topic(broker.broker, topic)
    with pytest.raises(DataLost, match=f"cannot find {topic}-0, {topic}-1"):
        driver.latest(start)
    forgiving = Driver(broker, topic, failOnDataLoss=False)
    assert StreamOffset.from_json(forgiving.latest(start)).offsets == {}


def test_a_checkpoint_of_another_topic_is_rejected(broker: Broker, topic: str) -> None:
    with pytest.raises(CheckpointMismatch, match=f"a query over clicks, but this query reads topic {topic}"):
        Driver(broker, topic).latest({"clicks": {"0": 5}})


def test_a_checkpoint_of_the_stock_connector_continues_here(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(30))
    driver = Driver(broker, topic)
    start = {topic: {"0": 10, "1": 0}}
    assert driver.ranges(start, driver.latest(start)) == [(0, 10, 30)]
    assert driver.ranges({topic: {"0": 10}}, {topic: {"0": 30, "1": 0}}) == [(0, 10, 30)]


def test_a_missing_topic_is_reported_with_the_nearest_name(broker: Broker, topic: str) -> None:
    with pytest.raises(UnknownTopic, match=f"does not exist.*Did you mean {topic}\\?") as raised:
        Driver(broker, topic[:-1]).initial()
    assert "\n" not in str(raised.value)


def test_a_partition_that_the_topic_does_not_have_is_reported(broker: Broker, topic: str) -> None:
    with pytest.raises(UnknownTopic, match=f"assign: {topic}-5: the topic has 2 partitions"):
        Driver(broker, topic, subscribe=None, assign=json.dumps({topic: [0, 5]})).initial()


def test_only_assigned_partitions_are_read(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(4))
    fill(broker, topic, range(6), partition=1)
    driver = Driver(broker, topic, subscribe=None, assign=json.dumps({topic: [1]}))
    start = driver.initial()
    assert driver.ranges(start, driver.latest(start)) == [(1, 0, 6)]


def test_a_stream_begins_at_offsets_or_times(broker: Broker, topic: str) -> None:
    from tests.broker.wire_client import BEGIN_MS

    fill(broker, topic, range(30))
    fill(broker, topic, range(30), partition=1)
    by_offset = Driver(broker, topic, startingOffsets=offsets_json(**{topic: [12, -1]}))
    assert StreamOffset.from_json(by_offset.initial()).offsets == at(topic, 12, 30)
    by_time = Driver(broker, topic, startingTimestamp=BEGIN_MS + 9)
    assert StreamOffset.from_json(by_time.initial()).offsets == at(topic, 9, 9)
    with pytest.raises(ConfigError, match="no record at or after"):
        Driver(broker, topic, startingTimestamp=BEGIN_MS + 90).initial()
    forgiving = Driver(broker, topic, startingTimestamp=BEGIN_MS + 90, startingOffsetsByTimestampStrategy="latest")
    assert StreamOffset.from_json(forgiving.initial()).offsets == at(topic, 30, 30)


def test_lag_is_published_unless_that_is_not_wanted(broker: Broker, topic: str) -> None:
    shown = StreamOffset.from_json(Driver(broker, topic, groupIdPrefix="mine").initial())
    assert shown.lag == ("mine", broker.address)
    assert StreamOffset.from_json(Driver(broker, topic, visibleLag=False).initial()).lag is None


def test_the_latest_offset_is_reported_as_it_was_seen(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(30))
    driver = Driver(broker, topic, maxOffsetsPerTrigger=5)
    assert driver.reader.reportLatestOffset() is None
    driver.latest(driver.initial())
    assert driver.reader.reportLatestOffset() == {topic: {"0": 30, "1": 0}}


# ---------------------------------------------------------------------------------------------- traps


def test_traps_4_and_5_nothing_depends_on_stop_or_commit(broker: Broker, topic: str) -> None:
    """`stop` never comes and `commit` misses the last batch: what a reader leaves behind is in its offsets alone."""
    fill(broker, topic, range(30))
    first = Driver(broker, topic, maxOffsetsPerTrigger=20)
    start = first.initial()
    end = first.latest(start)
    second = Driver(broker, topic, maxOffsetsPerTrigger=20)
    assert second.ranges(start, end) == [(0, 0, 20)]
    assert second.ranges(end, second.latest(end)) == [(0, 20, 30)]


def test_a_reader_that_has_asked_brokers_can_still_go_to_a_task(broker: Broker, topic: str) -> None:
    driver = Driver(broker, topic)
    driver.latest(driver.initial())
    copy = pickle.loads(pickle.dumps(driver.reader))
    plan = RangePartition(OffsetRange(topic, 0, 0, 0))
    assert list(copy.read(plan)) == []


def test_trap_1_the_initial_offset_does_not_move_between_its_two_calls(broker: Broker, topic: str) -> None:
    driver = Driver(broker, topic, startingOffsets="latest")
    first = driver.initial()
    fill(broker, topic, range(10))
    assert driver.initial() == first


def test_trap_1_a_restart_of_the_first_batch_reads_what_it_was_to_read(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(10))
    driver = Driver(broker, topic, startingOffsets="latest")
    start = driver.initial()
    fill(broker, topic, range(10))
    end = driver.latest(start)
    restarted = Driver(broker, topic, startingOffsets="latest")
    moved = restarted.initial()
    assert moved != start, "or this story tells nothing"
    assert restarted.ranges(moved, end) == driver.ranges(start, end) == [(0, 10, 20)]
