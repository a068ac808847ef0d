"""Offsets as pure decisions: the JSON of checkpoints, losses, limits, splitting."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.source_stories import at

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import ConfigError
from penstock.spark.errors import CheckpointMismatch, DataLost, TopicRecreated
from penstock.spark.offsets import (
    AvailableOffsets,
    Gate,
    LagTarget,
    OffsetRange,
    StreamOffset,
    batch_start,
    plan_ranges,
    pro_rata,
)
from penstock.spark.options import (
    EARLIEST,
    LATEST,
    AtEnd,
    AtOffsets,
    AtTimes,
    Bounds,
    TaskSplit,
    Topics,
    resolve_position,
    timestamps_to_look_up,
)

VIEWS = Topics(names=("views",))


def holding(*bounds: tuple[int, int], topic: str = "views", topic_id: str = "a1") -> AvailableOffsets:
    return AvailableOffsets({TopicPartition(topic, n): Bounds(*one) for n, one in enumerate(bounds)}, {topic: topic_id})


def read_to(*offsets: int, topic_id: str | None = "a1", initial: bool = False) -> StreamOffset:
    return StreamOffset(at("views", *offsets), {"views": topic_id} if topic_id else {}, is_initial=initial)


# ---------------------------------------------------------------------------------------------- JSON

TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=8)
PARTITIONS = st.builds(TopicPartition, TOPICS, st.integers(0, 40))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 2**62), max_size=5)


@settings(max_examples=60)
@given(
    OFFSETS,
    st.dictionaries(TOPICS, st.text("0123456789abcdef", min_size=1, max_size=32), max_size=3),
    OFFSETS,
    st.booleans(),
    st.none() | st.builds(LagTarget, st.text(max_size=8), st.text("abc.:,0123", max_size=12)),
)
def test_an_offset_survives_a_checkpoint(
    offsets: dict[TopicPartition, int],
    ids: dict[str, str],
    starts: dict[TopicPartition, int],
    initial: bool,
    lag: LagTarget | None,
) -> None:
    written = StreamOffset(offsets, ids, starts, initial, lag)
    assert StreamOffset.from_json(json.loads(json.dumps(written.to_json()))) == written


def test_the_stock_connector_can_read_ours() -> None:
    """It takes a map of topics to maps of whole numbers to whole numbers, and empty maps name no partition."""
    written = StreamOffset(
        at("views", 5, 7), {"views": "a1"}, at("views", 0, 0), is_initial=True, lag=LagTarget("g", "h:1")
    )
    for topic, partitions in written.to_json().items():
        assert all(number.isdecimal() for number in partitions)
        if topic != "views":
            assert partitions == {}
            assert "@" in topic  # which no topic's name can have


def test_a_checkpoint_of_the_stock_connector_is_read() -> None:
    assert StreamOffset.from_json({"views": {"0": 5, "1": 7}}) == StreamOffset(at("views", 5, 7))


@pytest.mark.parametrize(
    "value", [[], 3, {"views": 3}, {"views": {"x": 1}}, {"seconds": {"offset": 5}}, {"views@start=0": {}}]
)
def test_an_offset_of_another_source_is_reported_as_such(value: object) -> None:
    with pytest.raises(CheckpointMismatch, match="separate checkpointLocation"):
        StreamOffset.from_json(value)


# ---------------------------------------------------------------------------------------------- where to continue


def begun(start: StreamOffset, available: AvailableOffsets, *, fail: bool = True) -> tuple[list[int], list[int]]:
    found = batch_start(start, available, VIEWS, fail_on_data_loss=fail)
    return list(found.offsets.values()), [one.partition for one in found.moved]


def test_a_batch_begins_where_the_last_one_ended() -> None:
    assert begun(read_to(5, 7), holding((0, 10), (0, 10))) == ([5, 7], [])


def test_the_first_batch_writes_down_where_it_begins() -> None:
    assert begun(read_to(5, 7, initial=True), holding((0, 10), (0, 10))) == ([5, 7], [0, 1])


def test_a_new_partition_begins_at_its_beginning() -> None:
    assert begun(read_to(5), holding((0, 10), (3, 10))) == ([5, 3], [1])


def test_records_removed_before_they_were_read_are_a_loss() -> None:
    available = holding((8, 20))
    with pytest.raises(DataLost, match="offsets 5 to 7 were removed"):
        begun(read_to(5), available)
    assert begun(read_to(5), available, fail=False) == ([8], [0])


def test_a_log_that_was_cut_is_a_loss() -> None:
    available = holding((0, 4))
    with pytest.raises(DataLost, match="its log ends at 4"):
        begun(read_to(5), available)
    assert begun(read_to(5), available, fail=False) == ([4], [0])


def test_recreated_topic_is_detected_by_its_id_even_if_the_offset_exists() -> None:
    available = holding((0, 100), topic_id="b2")
    with pytest.raises(TopicRecreated, match=r"recreated.*new checkpointLocation"):
        begun(read_to(5), available)
    assert begun(read_to(5), available, fail=False) == ([0], [0])


def test_without_ids_a_topic_recreated_is_not_suspected() -> None:
    assert begun(read_to(5, topic_id=None), holding((0, 10), topic_id="b2")) == ([5], [])


def test_a_topic_that_is_gone_is_a_loss() -> None:
    available = AvailableOffsets({}, {}, frozenset({"views"}))
    with pytest.raises(DataLost, match="cannot find views-0, views-1"):
        begun(read_to(5, 7), available)
    assert begun(read_to(5, 7), available, fail=False) == ([], [])


def test_a_checkpoint_of_another_topic_is_rejected() -> None:
    with pytest.raises(CheckpointMismatch, match=r"over clicks, but this query reads topic views.*checkpointLocation"):
        batch_start(StreamOffset(at("clicks", 5)), holding((0, 10)), VIEWS, fail_on_data_loss=False)


def test_a_topic_that_is_no_longer_subscribed_to_is_a_loss() -> None:
    start = StreamOffset({**at("views", 5), **at("clicks", 5)})
    with pytest.raises(DataLost, match="clicks-0, which this query no longer reads"):
        batch_start(start, holding((0, 10)), VIEWS, fail_on_data_loss=True)


# ---------------------------------------------------------------------------------------------- limits


def test_a_limit_is_shared_by_backlog() -> None:
    assert pro_rata(at("v", 0, 10, 0), at("v", 900, 100, 10), 100) == at("v", 90, 19, 1)


def test_a_small_backlog_is_not_left_out_forever() -> None:
    assert pro_rata(at("v", 0, 0), at("v", 1_000_000, 1), 10) == at("v", 9, 1)


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)), min_size=1, max_size=8), st.integers(1, 10**6)
)
def test_a_limit_is_kept_and_something_is_read(sizes: list[tuple[int, int]], most: int) -> None:
    begin = {TopicPartition("v", n): start for n, (start, _) in enumerate(sizes)}
    latest = {TopicPartition("v", n): start + size for n, (start, size) in enumerate(sizes)}
    ends = pro_rata(begin, latest, most)
    taken = sum(ends[one] - begin[one] for one in ends)
    assert all(begin[one] <= ends[one] <= latest[one] for one in ends)
    assert taken <= most + len(sizes)
    assert taken > 0 or begin == latest


def test_a_batch_waits_for_enough_but_not_forever() -> None:
    gate = Gate(min_offsets=100, max_delay_ms=1000)
    assert gate.opens(1, 0.0), "the first one does not wait"
    assert not gate.opens(99, 999.0)
    assert gate.opens(100, 999.5)
    assert not gate.opens(99, 1999.0)
    assert gate.opens(1, 1999.5)


# ---------------------------------------------------------------------------------------------- splitting


def sizes(*counts: int, least: int | None = None, most: int | None = None) -> list[int]:
    begin = at("v", *[0] * len(counts))
    return [one.size for one in plan_ranges(begin, at("v", *counts), {}, TaskSplit(least, most))]


def test_a_task_a_partition_and_none_for_nothing() -> None:
    plans = plan_ranges(at("v", 3, 5), at("v", 9, 5), {"v": "a1"}, TaskSplit())
    assert plans == [OffsetRange("v", 0, 3, 9, "a1")]


def test_more_tasks_are_made_of_the_largest_partitions() -> None:
    assert sizes(100, 10, least=4) == [33, 33, 34, 10]
    assert sizes(5, 5, least=1) == [5, 5]
    assert sizes(2, least=10) == [1, 1], "no task is empty"


def test_no_task_exceeds_what_one_may_have() -> None:
    assert sizes(10, 3, most=4) == [3, 3, 4, 3]
    assert sizes(10, most=4, least=5) == [2, 2, 2, 2, 2]


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=6),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 50),
)
def test_tasks_cover_everything_once(counts: list[int], least: int | None, most: int | None) -> None:
    begin = at("v", *range(len(counts)))
    end = at("v", *(n + count for n, count in enumerate(counts)))
    plans = plan_ranges(begin, end, {}, TaskSplit(least, most))
    covered = [(plan.partition, n) for plan in plans for n in range(plan.start, plan.end)]
    assert covered == [(p.partition, n) for p in begin for n in range(begin[p], end[p])]
    if most is not None:
        assert all(plan.size <= most for plan in plans)
    if least is not None:
        assert len(plans) >= min(least, sum(counts))


# ---------------------------------------------------------------------------------------------- positions

BOUNDS = {TopicPartition("v", 0): Bounds(10, 50), TopicPartition("v", 1): Bounds(0, 0)}


def test_ends_are_where_the_log_begins_and_ends() -> None:
    assert resolve_position(AtEnd(EARLIEST), BOUNDS, {}) == at("v", 10, 0)
    assert resolve_position(AtEnd(LATEST), BOUNDS, {}) == at("v", 50, 0)
    assert resolve_position(AtOffsets(at("v", EARLIEST, LATEST)), BOUNDS, {}) == at("v", 10, 0)


def test_every_partition_must_have_an_offset_and_no_other() -> None:
    with pytest.raises(ConfigError, match=r"no offset is given for v-1.*-2 stands for earliest"):
        resolve_position(AtOffsets(at("v", 20)), BOUNDS, {})
    with pytest.raises(ConfigError, match="v-2, which the query does not read"):
        resolve_position(AtOffsets(at("v", 20, 0, 0)), BOUNDS, {})
    with pytest.raises(ConfigError, match="no timestamp is given for v-1"):
        timestamps_to_look_up(AtTimes(None, at("v", 20)), BOUNDS)


@pytest.mark.parametrize(("asked", "taken"), [(5, 10), (60, 50)])
def test_an_offset_outside_of_the_log_is_a_loss(asked: int, taken: int) -> None:
    position = AtOffsets(at("v", asked, 0))
    with pytest.raises(DataLost, match=f"v-0 has no offset {asked}; it has 10 to 50"):
        resolve_position(position, BOUNDS, {})
    assert resolve_position(position, BOUNDS, {}, fail_on_data_loss=False) == at("v", taken, 0)


def test_a_time_after_the_last_record_is_an_error_or_the_end() -> None:
    assert timestamps_to_look_up(AtTimes(9, {}), BOUNDS) == at("v", 9, 9)
    with pytest.raises(ConfigError, match=r"v-1 has no record at or after 9.*Strategy=latest"):
        resolve_position(AtTimes(9, {}), BOUNDS, at("v", 20, -1))
    assert resolve_position(AtTimes(9, {}, or_latest=True), BOUNDS, at("v", 20, -1)) == at("v", 20, 0)
