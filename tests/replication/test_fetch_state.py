"""What a follower does with its leader's responses."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.leader_epochs import LeaderEpochs
from penstock.replication.fetch_state import (
    Append,
    Hold,
    Position,
    Truncate,
    TruncateFully,
    divergence,
    next_step,
    position_of,
)
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.fetch import EpochEndOffset, PartitionData


def answer(
    error: ErrorCode = ErrorCode.NONE, *, watermark: int = 5, start: int = 0, diverging: tuple[int, int] = (-1, -1)
) -> PartitionData:
    return PartitionData(
        error_code=error,
        high_watermark=watermark,
        log_start_offset=start,
        diverging_epoch=EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]),
    )


def test_records_are_appended_and_the_watermark_may_follow() -> None:
    assert next_step(answer(watermark=7, start=2), 10, LeaderEpochs([(1, 0)])) == Append(7, 2)


def test_kip_101_a_log_is_cut_where_the_epoch_ended_and_not_at_the_watermark() -> None:
    follower = LeaderEpochs([(1, 0)])
    assert next_step(answer(watermark=3, diverging=(1, 8)), 10, follower) == Truncate(8)


def test_kip_279_two_fast_failovers_are_unwound_epoch_by_epoch() -> None:
    """The follower has an epoch that the leader never had, and less of the one before than the leader has."""
    follower = LeaderEpochs([(1, 0), (2, 5)])
    assert next_step(answer(diverging=(1, 7)), 10, follower) == Truncate(5)


def test_epoch_that_the_follower_lacks_sends_it_back_to_the_one_before() -> None:
    follower = LeaderEpochs([(1, 0), (4, 6)])
    assert next_step(answer(diverging=(3, 9)), 10, follower) == Truncate(6)


def test_kafka_15510_an_empty_log_is_not_cut_by_the_epoch_of_its_leader() -> None:
    epochs = LeaderEpochs([(3, 10)])
    assert position_of(10, 10, epochs) == Position(10, -1)
    assert divergence(Position(10, -1), 20, LeaderEpochs([(5, 10)])) is None


def test_kafka_10706_an_epoch_that_wrote_nothing_is_not_asked_about() -> None:
    """It led in epoch 5 and wrote nothing; the leader of epoch 6 never heard of 5, and both have the same records."""
    follower, leader = LeaderEpochs([(4, 0), (5, 10)]), LeaderEpochs([(4, 0), (6, 10)])
    assert position_of(10, 0, follower) == Position(10, 4)
    assert divergence(position_of(10, 0, follower), 20, leader) is None


def test_prefix_does_not_diverge() -> None:
    leader = LeaderEpochs([(1, 0), (3, 7)])
    assert divergence(Position(7, 1), 20, leader) is None
    assert divergence(Position(9, 3), 20, leader) is None


def test_longer_epoch_and_an_unknown_epoch_diverge() -> None:
    leader = LeaderEpochs([(1, 0), (3, 7)])
    longer = divergence(Position(9, 1), 20, leader)
    assert longer is not None
    assert (longer.epoch, longer.end_offset) == (1, 7)
    unknown = divergence(Position(9, 2), 20, leader)
    assert unknown is not None
    assert (unknown.epoch, unknown.end_offset) == (1, 7)


def test_follower_of_deleted_records_starts_again_where_the_leader_starts() -> None:
    behind = answer(ErrorCode.OFFSET_OUT_OF_RANGE, watermark=90, start=50)
    assert next_step(behind, 10, LeaderEpochs([(1, 0)])) == TruncateFully(50)


def test_leader_that_does_not_lead_is_fetched_from_again_when_metadata_changes() -> None:
    for error in (
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ):
        assert next_step(answer(error), 10, LeaderEpochs()) == Hold(error, until_metadata=True)


def test_other_errors_are_retried_after_a_backoff() -> None:
    for error in (ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.STALE_BROKER_EPOCH):
        assert next_step(answer(error), 10, LeaderEpochs()) == Hold(error, until_metadata=False)


HISTORIES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12), st.integers(0, 4)), min_size=1, max_size=7)


def _histories(elections: list[tuple[int, int, int]]) -> list[list[int]]:
    """The log of each epoch's leader, as the epoch of each offset: part of an older leader's log, then its own."""
    logs: list[list[int]] = [[]]
    for epoch, (older, kept, written) in enumerate(elections):
        logs.append([*logs[older % len(logs)][:kept], *[epoch] * written])
    return logs


def _epochs(log: list[int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for offset, epoch in enumerate(log):
        epochs.assign(epoch, offset)
    return epochs


@settings(max_examples=300, deadline=None)
@given(HISTORIES, st.integers(0, 9), st.integers(0, 12))
def test_follower_always_ends_as_a_prefix_and_keeps_what_is_common(
    elections: list[tuple[int, int, int]], which: int, length: int
) -> None:
    logs = _histories(elections)
    follower = logs[which % len(logs)][:length]
    leader, leader_epochs = logs[-1], _epochs(logs[-1])
    leader_epochs.assign(len(elections), len(leader))  # noted when it was elected, before its first record
    common = 0
    while common < min(len(leader), len(follower)) and leader[common] == follower[common]:
        common += 1
    for _ in range(20):
        position = position_of(len(follower), 0, _epochs(follower))
        found = divergence(position, len(leader), leader_epochs)
        if found is None:
            break
        step = next_step(answer(diverging=(found.epoch, found.end_offset)), len(follower), _epochs(follower))
        assert isinstance(step, Truncate)
        assert step.offset < len(follower), "it gets somewhere"
        del follower[step.offset :]
    assert follower == leader[: len(follower)]
    assert len(follower) >= common
