"""Power loss at every operation of an append, a roll, a truncation, a retention run and a close.

Whatever the disk then holds, recovery gives a prefix of what was written that holds everything that was synced, and no
damaged byte is served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from penstock.log.log_loader import open_log
from penstock.log.partition_log import PartitionLog
from penstock.log.retention import enforce_retention
from penstock.log.settings import LogSettings
from penstock.log.truncation import truncate_to
from penstock.records import decode_batch, encode_batch, scan
from penstock.runtime.randomness import SeededRandom
from penstock.testing.crash_points import CrashPoint, crash_everywhere
from penstock.testing.simulated_files import SimulatedFiles

FOLDER = "/data/t-0"
NOW = 1_700_000_000_000
SMALL = LogSettings(segment_bytes=3000, index_interval_bytes=256, retention_ms=1000)


def batch_of(number: int, *, records: int = 2, size: int = 150, producer: int = -1) -> bytearray:
    filler = bytes((number * 7 + i) % 251 for i in range(size))
    rows = [(NOW + number, b"%d-%d" % (number, i), filler, ()) for i in range(records)]
    if producer < 0:
        return encode_batch(rows)
    return encode_batch(rows, producer_id=producer, producer_epoch=0, base_sequence=number * records)


@dataclass
class Story:
    """What a scenario wrote, and what it may count on, in the one run that led to a crash."""

    written: list[tuple[int, bytes]] = field(default_factory=list)  # (offset, the batch as it must be on disk)
    before: list[tuple[int, bytes]] = field(default_factory=list)  # what a running truncation may leave as it was
    synced: int = 0
    start: int = 0
    producers: bool = False

    def reset(self) -> None:
        self.written, self.before, self.synced, self.start = [], [], 0, 0

    def append(self, log: PartitionLog, number: int, epoch: int = 0) -> None:
        batch = batch_of(number, producer=9 if self.producers else -1)
        # On disk before the call returns, perhaps; so the story knows it beforehand.
        expected = bytearray(batch)
        base = log.log_end_offset
        expected[0:8] = base.to_bytes(8, "big")
        expected[12:16] = epoch.to_bytes(4, "big")
        self.written.append((base, bytes(expected)))
        log.append(batch, leader_epoch=epoch, now_ms=NOW + number)

    def flush(self, log: PartitionLog) -> None:
        log.flush()
        self.synced = log.flushed_offset
        self.before = []

    def truncate(self, log: PartitionLog, offset: int) -> None:
        self.before = list(self.written)
        # A batch that holds the offset goes whole.
        self.written = [entry for entry in self.written if entry[0] + 2 <= offset]
        self.synced = min(self.synced, offset // 2 * 2)
        truncate_to(log, offset, NOW)
        self.before = []  # it is durable: what was cut off must not come back


def contents(log: PartitionLog) -> list[tuple[int, bytes]]:
    """Every batch, read as a consumer would: by regions, checked again here."""
    found: list[tuple[int, bytes]] = []
    offset = log.log_start_offset
    while True:
        region = log.read(offset, 700)
        if region is None:
            return found
        data = region.read()
        walk = scan(data)
        assert walk.problem is None, f"damaged bytes served at offset {offset}: {walk.problem}"
        for header in walk.headers:
            found.append((header.base_offset, data[header.position : header.position + header.size]))
            decode_batch(data, header.position)
            offset = header.next_offset


def check(point: CrashPoint, story: Story, recovery_point: int) -> None:
    opened = open_log(
        point.files, FOLDER, SMALL, clean=False, recovery_point=recovery_point, log_start_offset=story.start, now_ms=NOW
    )
    log = opened.log
    assert log.log_end_offset >= story.synced, f"{point}: ends at {log.log_end_offset}, {story.synced} was synced"
    found = contents(log)
    timelines = [[e for e in line if e[0] >= log.log_start_offset] for line in (story.written, story.before)]
    assert any(found == line[: len(found)] for line in timelines), f"{point}: not a prefix of what was written"
    assert log.log_start_offset <= max(story.start, story.synced), str(point)
    # It continues from there, and is found again after a clean stop.
    story_end = log.log_end_offset
    log.append(batch_of(99), leader_epoch=7, now_ms=NOW)
    log.close()
    again = open_log(point.files, FOLDER, SMALL, clean=True, log_start_offset=story.start, now_ms=NOW).log
    assert again.log_end_offset == story_end + 2
    assert contents(again)[:-1] == found, str(point)
    again.release()


def durable_folder() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    files.sync_folder("/data")
    files.sync_folder("/")
    return files


def run_everywhere(story: Story, scenario: Callable[[SimulatedFiles], None], *, stride: int = 1) -> int:
    def fresh(files: SimulatedFiles) -> None:
        story.reset()
        scenario(files)

    points = 0
    for point in crash_everywhere(fresh, start=durable_folder(), stride=stride):
        # Whether the checkpoint of the recovery point was written just before or never.
        copy = point.files.fork(SeededRandom(1))
        check(point, story, story.synced)
        check(CrashPoint(copy, point.moment, point.loss), story, 0)
        points += 2
    return points


def open_new(files: SimulatedFiles) -> PartitionLog:
    return open_log(files, FOLDER, SMALL, clean=False, now_ms=NOW).log


@pytest.mark.parametrize("producers", [False, True])
def test_power_loss_at_every_write_of_appends_and_flushes(producers: bool) -> None:
    story = Story(producers=producers)

    def scenario(files: SimulatedFiles) -> None:
        log = open_new(files)
        for number in range(6):
            story.append(log, number)
            if number % 2:
                story.flush(log)

    assert run_everywhere(story, scenario) > 100


def test_power_loss_at_every_write_around_rolls() -> None:
    story = Story(producers=True)

    def scenario(files: SimulatedFiles) -> None:
        log = open_new(files)
        for number in range(18):
            story.append(log, number)
            if number % 5 == 4:
                story.flush(log)

    assert run_everywhere(story, scenario) > 200


@pytest.mark.long
def test_power_loss_when_several_segments_were_never_synced() -> None:
    story = Story()

    def scenario(files: SimulatedFiles) -> None:
        log = open_new(files)
        for number in range(26):
            story.append(log, number)
        story.flush(log)

    run_everywhere(story, scenario)


@pytest.mark.parametrize("cut", [*(pytest.param(cut, marks=pytest.mark.long) for cut in (44, 30, 17)), 2])
def test_power_loss_at_every_write_of_a_truncation_and_what_follows(cut: int) -> None:
    story = Story(producers=True)

    def scenario(files: SimulatedFiles) -> None:
        log = open_new(files)
        for number in range(24):
            story.append(log, number)
        story.flush(log)
        story.truncate(log, cut)
        for number in range(30, 36):
            story.producers = False
            story.append(log, number, epoch=1)
        story.flush(log)
        story.producers = True

    run_everywhere(story, scenario)


@pytest.mark.long
def test_power_loss_at_every_write_of_a_retention_run() -> None:
    story = Story()

    def scenario(files: SimulatedFiles) -> None:
        log = open_new(files)
        for number in range(24):
            story.append(log, number)
        story.flush(log)
        log.advance_high_watermark(log.log_end_offset)
        for path in enforce_retention(log, NOW + 1015):
            files.remove(path)
        assert log.log_start_offset > 0
        story.append(log, 24)
        story.flush(log)

    run_everywhere(story, scenario)


def test_power_loss_at_every_write_of_a_clean_stop() -> None:
    story = Story(producers=True)

    def scenario(files: SimulatedFiles) -> None:
        log = open_new(files)
        for number in range(14):
            story.append(log, number)
        log.close()
        story.synced = log.log_end_offset

    run_everywhere(story, scenario)


@pytest.mark.long
def test_power_loss_during_recovery_itself() -> None:
    story = Story(producers=True)

    def scenario(files: SimulatedFiles) -> None:
        story.reset()
        log = open_new(files)
        for number in range(18):
            story.append(log, number)
            if number == 9:
                story.flush(log)

    seen = 0
    for point in crash_everywhere(scenario, start=durable_folder(), stride=7):
        expected = Story(list(story.written), [], story.synced, 0, producers=True)

        def recover(files: SimulatedFiles, synced: int = expected.synced) -> None:
            open_log(files, FOLDER, SMALL, clean=False, recovery_point=synced, now_ms=NOW)

        for second in crash_everywhere(recover, start=point.files):
            check(second, expected, expected.synced)
            seen += 1
    assert seen > 500


def test_idempotence_survives_power_loss_for_what_was_synced() -> None:
    story = Story(producers=True)

    def scenario(files: SimulatedFiles) -> None:
        story.reset()
        log = open_new(files)
        for number in range(14):
            story.append(log, number)
            story.flush(log)

    for point in crash_everywhere(scenario, start=durable_folder()):
        log = open_log(point.files, FOLDER, SMALL, clean=False, recovery_point=story.synced, now_ms=NOW).log
        last = log.log_end_offset // 2 - 1
        for number in range(max(0, last - 4), last + 1):
            retry = log.append(batch_of(number, producer=9), leader_epoch=0, now_ms=NOW)
            assert retry.is_duplicate, str(point)
            assert retry.base_offset == number * 2, str(point)
        assert not log.append(batch_of(last + 1, producer=9), leader_epoch=0, now_ms=NOW).is_duplicate


def test_the_process_killed_at_every_write_loses_nothing_that_was_appended() -> None:
    story = Story()
    appended = 0

    def scenario(files: SimulatedFiles) -> None:
        nonlocal appended
        story.reset()
        appended = 0
        log = open_new(files)
        for number in range(18):
            story.append(log, number)
            appended = log.log_end_offset

    whole = durable_folder()
    before = whole.operations.count
    scenario(whole)
    for number in range(whole.operations.count - before):
        files = durable_folder()
        files.operations.lose_power_at(files.operations.count + number)
        try:
            scenario(files)
        except Exception:
            if files.powered:
                raise
        files.kill()
        log = open_log(files, FOLDER, SMALL, clean=False, now_ms=NOW).log
        assert log.log_end_offset >= appended
        assert contents(log) == story.written[: log.log_end_offset // 2]
