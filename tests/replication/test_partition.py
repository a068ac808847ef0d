from __future__ import annotations

import pytest

from penstock.log.opening import open_log
from penstock.log.settings import LogSettings
from penstock.records import encode_batch
from penstock.replication.partition import Partition
from penstock.testing.simulated_files import SimulatedFiles
from penstock.wire.error_codes import ErrorCode


def led_in_epoch(epoch: int) -> Partition:
    log = open_log(SimulatedFiles(), "/data/t-0", LogSettings(), clean=False).log
    return Partition("t", 0, log, leader_epoch=epoch)


class Reader:
    """Somebody who waits, and notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def grown(self, partition: Partition, size: int) -> None:
        self.heard.append(("grown", partition.log.high_watermark))

    def gone(self, partition: Partition) -> None:
        self.heard.append(("gone", 0))


@pytest.mark.parametrize(
    ("believed", "answer"),
    [
        (-1, ErrorCode.NONE),
        (5, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_who_believes_in_another_leader_is_told_which_way_he_errs(believed: int, answer: ErrorCode) -> None:
    assert led_in_epoch(5).check_epoch(believed) == answer


def test_readers_hear_of_records_when_they_may_read_them() -> None:
    partition, reader = led_in_epoch(0), Reader()
    partition.watch(reader)
    partition.append(encode_batch([(1, b"k", b"v", ()), (2, b"k", b"w", ())]), now_ms=5)
    assert reader.heard == [("grown", 2)]
    partition.unwatch(reader)
    partition.append(encode_batch([(3, b"k", b"x", ())]), now_ms=6)
    assert len(reader.heard) == 1


def test_a_retry_wakes_nobody() -> None:
    partition, reader = led_in_epoch(0), Reader()
    batch = encode_batch([(1, b"k", b"v", ())], producer_id=7, producer_epoch=0, base_sequence=0)
    first = partition.append(bytes(batch), now_ms=5)
    partition.watch(reader)
    again = partition.append(bytes(batch), now_ms=6)
    assert again.is_duplicate
    assert again.base_offset == first.base_offset
    assert reader.heard == []


def test_a_partition_that_goes_tells_whoever_waits_for_it() -> None:
    partition, reader = led_in_epoch(0), Reader()
    partition.watch(reader)
    partition.drop()
    assert reader.heard == [("gone", 0)]
