"""Walking a segment past its damage: nothing raises, nothing is skipped, memory stays bounded."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.logs import START_MS, records

from penstock.log.inspection.log_files import Damaged, Item, Message, ReadOnlyFiles, Run, scan_past_damage
from penstock.records import encode_batch
from penstock.records.legacy import LegacyMessage, encode_message_set
from penstock.runtime.files import Buffer, PosixFiles
from penstock.testing.simulated_files import SimulatedFiles

BATCHES = [bytes(encode_batch(records(number), base_offset=number * 4, leader_epoch=0)) for number in range(12)]
WHOLE = b"".join(BATCHES)
STARTS = [sum(map(len, BATCHES[:number])) for number in range(len(BATCHES))]


class MemoryFile:
    """A file of bytes; `sizes` are the sizes that it reports, one after the other, then the true one."""

    path = "memory"
    closed = False

    def __init__(self, data: bytes, sizes: list[int] | None = None) -> None:
        self.data = data
        self.sizes = sizes or []

    def size(self) -> int:
        return self.sizes.pop(0) if self.sizes else len(self.data)

    def read_at(self, position: int, length: int) -> bytes:
        return self.data[position : position + length]

    def write_at(self, position: int, data: Buffer) -> None:
        raise OSError("read only")

    def truncate(self, size: int) -> None:
        raise OSError("read only")

    def sync(self) -> None:
        raise OSError("read only")

    def fileno(self) -> int:
        raise OSError("none")

    def close(self) -> None: ...


def walked(data: bytes, base_offset: int = 0) -> list[Item]:
    items = list(scan_past_damage(MemoryFile(data), base_offset))
    position = 0
    for item in items:
        assert item.position == position
        position += sum(header.size for header in item.headers) if isinstance(item, Run) else item.size
    assert position == len(data)
    return items


def sound_offsets(items: list[Item]) -> list[int]:
    return [header.base_offset for item in items if isinstance(item, Run) for header in item.headers]


def damages(items: list[Item]) -> list[Damaged]:
    return [item for item in items if isinstance(item, Damaged)]


def test_a_sound_file_is_one_run() -> None:
    items = walked(WHOLE)
    assert len(items) == 1
    assert sound_offsets(items) == [number * 4 for number in range(12)]


@pytest.mark.parametrize("position", [8, 9, 11, 16, 23, 57, 61, 100])
def test_a_flipped_byte_costs_one_batch(position: int) -> None:
    data = bytearray(WHOLE)
    data[STARTS[5] + position] ^= 0x41
    items = walked(bytes(data))
    assert sound_offsets(items) == [number * 4 for number in range(12) if number != 5]
    (damaged,) = damages(items)
    assert (damaged.position, damaged.end, damaged.at_end) == (STARTS[5], STARTS[6], False)


def test_zeros_are_called_zeros() -> None:
    data = bytearray(WHOLE)
    data[STARTS[3] : STARTS[6]] = bytes(STARTS[6] - STARTS[3])
    (damaged,) = damages(walked(bytes(data)))
    assert damaged.is_empty
    assert "zero bytes" in damaged.reason
    assert damaged.end == STARTS[6]


def test_zeros_behind_the_last_batch_reach_to_the_end() -> None:
    (damaged,) = damages(walked(WHOLE + bytes(5000)))
    assert (damaged.position, damaged.size, damaged.at_end, damaged.is_empty) == (len(WHOLE), 5000, True, True)


@pytest.mark.parametrize("left", [1, 11, 12, 16, 17, 60, 61, 62, 100])
def test_a_torn_batch_is_the_last_item(left: int) -> None:
    items = walked(WHOLE[: STARTS[7] + left])
    assert sound_offsets(items) == [number * 4 for number in range(7)]
    (damaged,) = damages(items)
    assert (damaged.position, damaged.size, damaged.at_end) == (STARTS[7], left, True)


def test_two_damaged_neighbours_are_distinguished() -> None:
    data = bytearray(WHOLE)
    data[STARTS[4] + 70] ^= 1
    data[STARTS[5] + 70] ^= 1
    assert [(found.position, found.end) for found in damages(walked(bytes(data)))] == [
        (STARTS[4], STARTS[5]),
        (STARTS[5], STARTS[6]),
    ]


def test_a_length_beyond_the_file_does_not_hide_what_follows() -> None:
    data = bytearray(WHOLE)
    struct.pack_into(">i", data, STARTS[2] + 8, 2**31 - 1)
    items = walked(bytes(data))
    assert sound_offsets(items) == [number * 4 for number in range(12) if number != 2]


def test_a_batch_inside_a_damaged_record_is_not_a_batch_of_the_log() -> None:
    # Its offset lies before those that may come next.
    inner = bytes(encode_batch(records(0), base_offset=3))
    outer = encode_batch([(START_MS, b"k", inner, ())], base_offset=48)
    outer[16] = 9
    behind = bytes(encode_batch(records(1), base_offset=49))
    items = walked(WHOLE + bytes(outer) + behind)
    assert sound_offsets(items)[-2:] == [44, 49]
    assert damages(items)[0].size == len(outer)


def test_a_file_that_grows_while_it_is_read_is_not_damaged() -> None:
    items = list(scan_past_damage(MemoryFile(WHOLE, sizes=[STARTS[8] + 30])))
    assert damages(items) == []
    assert sound_offsets(items) == [number * 4 for number in range(12)]


def test_a_write_that_is_under_way_is_waited_for() -> None:
    file = MemoryFile(WHOLE[: STARTS[8] + 30])
    ends = [STARTS[8] + 61, STARTS[9] - 1, STARTS[9]]

    def grow() -> None:
        if ends:
            file.data = WHOLE[: ends.pop(0)]

    items = list(scan_past_damage(file, pause=grow))
    assert damages(items) == []
    assert sound_offsets(items) == [number * 4 for number in range(9)]


def test_a_batch_that_stays_cut_off_is_damage_after_one_pause() -> None:
    pauses: list[int] = []
    items = list(scan_past_damage(MemoryFile(WHOLE[: STARTS[8] + 30]), pause=lambda: pauses.append(1)))
    assert [(found.position, found.size) for found in damages(items)] == [(STARTS[8], 30)]
    assert len(pauses) <= 2


def test_damage_in_the_middle_is_reported_without_a_pause() -> None:
    data = bytearray(WHOLE)
    data[STARTS[5] + 70] ^= 1
    pauses: list[int] = []
    assert len(damages(list(scan_past_damage(MemoryFile(bytes(data)), pause=lambda: pauses.append(1))))) == 1
    assert pauses == []


def test_a_file_that_never_stops_growing_does_not_hold_the_walk() -> None:
    file = MemoryFile(WHOLE + BATCHES[0][:40])

    def grow() -> None:
        file.data += b"\x00"

    assert damages(list(scan_past_damage(file, pause=grow)))[0].position == len(WHOLE)


def test_a_file_that_is_cut_while_it_is_read_is_not_damaged() -> None:
    items = list(scan_past_damage(MemoryFile(WHOLE[: STARTS[8]], sizes=[len(WHOLE)])))
    assert damages(items) == []
    assert sound_offsets(items) == [number * 4 for number in range(8)]


def test_old_messages_and_batches_may_share_a_file() -> None:
    old = encode_message_set([LegacyMessage(n, START_MS, 0, b"k", b"v") for n in range(3)], 1)
    items = walked(old + BATCHES[1])
    assert [(item.magic, item.offset) for item in items if isinstance(item, Message)] == [(1, 0), (1, 1), (1, 2)]
    assert sound_offsets(items) == [4]


def test_a_damaged_old_message_costs_only_itself() -> None:
    messages = [encode_message_set([LegacyMessage(n, -1, 0, b"k", b"value")], 0) for n in range(5)]
    data = bytearray(b"".join(messages))
    data[len(messages[0]) * 2 + 25] ^= 1
    items = walked(bytes(data))
    assert [item.offset for item in items if isinstance(item, Message)] == [0, 1, 3, 4]
    assert damages(items)[0].reason == "magic 0: neither a batch nor a valid message of that format"


def test_a_batch_longer_than_a_piece_is_checked_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / "large.log"
    batch = encode_batch([(START_MS, b"k", os.urandom(1024) * 20_000, ())])
    path.write_bytes(bytes(batch) + BATCHES[1])
    tracemalloc.start()
    items = list(scan_past_damage(PosixFiles().open(str(path), writable=False)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sound_offsets(items) == [0, 4]
    assert peak < len(batch) * 3 // 4


def test_a_huge_claimed_length_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse.log"
    head = bytearray(BATCHES[0])
    struct.pack_into(">i", head, 8, 90 * 1024 * 1024)
    path.write_bytes(head)
    os.truncate(path, 100 * 1024 * 1024)
    tracemalloc.start()
    items = list(scan_past_damage(PosixFiles().open(str(path), writable=False)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [type(item) for item in items] == [Damaged]
    assert peak < 16 * 1024 * 1024


def test_a_search_through_hostile_bytes_ends() -> None:
    # Every byte looks like the magic of a batch, and every place like a header that claims all that follows.
    data = BATCHES[0] + bytes(8) + b"\x00\x00\x40\x00" + b"\x02" * 60_000
    assert damages(walked(data))[0].at_end


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_whatever_is_overwritten_what_is_outside_of_it_is_found(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(WHOLE) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=600))
    damaged = bytearray(WHOLE)
    damaged[start : start + len(junk)] = junk[: len(WHOLE) - start]
    end = min(start + len(junk), len(WHOLE))
    offsets = sound_offsets(walked(bytes(damaged)))
    ends = [*STARTS[1:], len(WHOLE)]
    before = [number * 4 for number in range(12) if ends[number] <= start]
    behind = [number * 4 for number in range(12) if STARTS[number] >= end]
    assert offsets[: len(before)] == before
    # No checksum covers a batch's offset: junk there alone does not damage a scan.
    if set(offsets) <= set(range(0, 48, 4)):
        assert set(behind) <= set(offsets)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 2**63 - 1))
def test_random_bytes_are_damage_and_nothing_raises(data: bytes, base_offset: int) -> None:
    walked(data, base_offset)


def test_files_for_inspection_reject_to_change_anything(tmp_path: Path) -> None:
    files = ReadOnlyFiles(PosixFiles())
    path = tmp_path / "file"
    path.write_bytes(b"data")
    name = str(path)
    with pytest.raises(OSError, match="inspection only"):
        files.open(str(tmp_path / "new"), create=True)
    for attempt in (
        lambda: files.rename(name, name + "2"),
        lambda: files.remove(name),
        lambda: files.remove_folder(str(tmp_path)),
        lambda: files.make_folder(name + "3"),
        lambda: files.sync_folder(str(tmp_path)),
        lambda: files.lock(name + ".lock"),
    ):
        with pytest.raises(OSError, match="inspection only"):
            attempt()
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.open(name).write_at(0, b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"data"


def test_files_for_inspection_read_like_the_others() -> None:
    simulated = SimulatedFiles()
    simulated.make_folder("/d")
    simulated.open("/d/f", create=True).write_at(0, b"abc")
    files = ReadOnlyFiles(simulated)
    assert files.is_folder("/d")
    assert files.list_folder("/d") == ["f"]
    assert (files.exists("/d/f"), files.size_of("/d/f"), files.open("/d/f").read_at(1, 9)) == (True, 3, b"bc")
    assert files.modified_ns("/d/f") == simulated.modified_ns("/d/f")
    assert files.space("/d") == simulated.space("/d")
