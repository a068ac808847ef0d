"""Folders of Kafka 0.7 brokers: which partitions are found, and what damage does to what is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.records.kafka_0_7 import gzipped, message, write_partition

from penstock.cli.records.log_folder_0_7 import Damage, Entry, OldPartition, find_partitions


def only(tmp_path: Path) -> OldPartition:
    (found,), _ = find_partitions([tmp_path])
    return found


def read(partition: OldPartition, start: int | None = None) -> tuple[list[bytes], list[Damage]]:
    things = list(partition.read(start))
    values = [payload for each in things if isinstance(each, Entry) for payload in each.payloads]
    return values, [each for each in things if isinstance(each, Damage)]


def test_partitions_are_found_by_the_names_of_their_folders(tmp_path: Path) -> None:
    for name in ("views-0", "views-10", "views-2", "my_topic_1", "my-topic-0"):
        write_partition(tmp_path / name, [[message(b"x")]])
    (tmp_path / "empty-0").mkdir()
    (tmp_path / ".lock").write_text("")
    (tmp_path / "lost+found").mkdir()
    found, others = find_partitions([tmp_path])
    assert [(each.topic, each.partition) for each in found] == [
        ("my-topic", 0), ("my_topic", 1), ("views", 0), ("views", 2), ("views", 10),
    ]  # fmt: skip
    assert [path.name for path in others] == ["empty-0", "lost+found"]


def test_positions_are_bytes_over_all_files(tmp_path: Path) -> None:
    files = [[message(b"a"), gzipped([b"b", b"c"])], [message(b"d", magic=0)], [message(b"e")]]
    positions = write_partition(tmp_path / "views-0", files, start=4096)
    partition = only(tmp_path)
    entries = [each for each in partition.read() if isinstance(each, Entry)]
    assert [entry.position for entry in entries] == positions
    assert [entry.next_position for entry in entries] == [*positions[1:], partition.end_position]
    assert [entry.payloads for entry in entries] == [[b"a"], [b"b", b"c"], [b"d"], [b"e"]]
    assert read(partition, positions[1]) == ([b"b", b"c", b"d", b"e"], [])
    assert read(partition, positions[3]) == ([b"e"], [])
    assert read(partition, partition.end_position) == ([], [])


@pytest.mark.parametrize("cut", [1, 3, 5, 11])
def test_a_tail_that_is_cut_short_is_reported_and_what_is_before_it_is_read(tmp_path: Path, cut: int) -> None:
    positions = write_partition(tmp_path / "views-0", [[message(b"a"), message(b"bb")]])
    path = tmp_path / "views-0" / f"{0:020d}.kafka"
    path.write_bytes(path.read_bytes()[:-cut])
    values, (damage,) = read(only(tmp_path))
    assert values == [b"a"]
    assert (damage.position, damage.size_bytes) == (positions[1], 12 - cut)
    assert "cut short" in damage.reason


def test_a_damaged_message_is_skipped_and_reading_continues(tmp_path: Path) -> None:
    entries = [message(b"a"), message(b"b"), message(b"c")]
    positions = write_partition(tmp_path / "views-0", [entries])
    path = tmp_path / "views-0" / f"{0:020d}.kafka"
    data = bytearray(path.read_bytes())
    data[positions[1] + len(entries[1]) - 1] ^= 1
    path.write_bytes(data)
    values, (damage,) = read(only(tmp_path))
    assert values == [b"a", b"c"]
    assert (damage.position, damage.size_bytes) == (positions[1], len(entries[1]))
    assert "checksum" in damage.reason


@pytest.mark.parametrize(("tail", "reason"), [(bytes(100), "zeros"), (b"\xff\xff\xff\xf0" * 3, "a length of -16")])
def test_a_length_that_makes_no_sense_costs_the_rest_of_its_file(tmp_path: Path, tail: bytes, reason: str) -> None:
    write_partition(tmp_path / "views-0", [[message(b"a"), tail], [message(b"b")]])
    values, (damage,) = read(only(tmp_path))
    assert values == [b"a", b"b"]
    assert damage.size_bytes == len(tail)
    assert reason in damage.reason


def test_a_missing_file_is_a_gap(tmp_path: Path) -> None:
    positions = write_partition(tmp_path / "views-0", [[message(b"a")], [message(b"b")], [message(b"c")]])
    (tmp_path / "views-0" / f"{positions[1]:020d}.kafka").unlink()
    values, (damage,) = read(only(tmp_path))
    assert values == [b"a", b"c"]
    assert (damage.position, damage.size_bytes) == (positions[1], 11)
    (tmp_path / "views-0" / f"{0:020d}.kafka").unlink()
    assert read(only(tmp_path), 0)[1][0].reason == "the files that held them were deleted"
