"""`penstock log verify` on damaged logs: what, where, how far, and what to do."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest
from tests.cli.logs import (
    FIRST,
    START_MS,
    cut,
    document,
    finding,
    findings,
    flip,
    headers,
    one_segment,
    partition,
    patch,
    run,
    segments,
    transactional,
)

from penstock.log.inspection.segment_check import Kind, Options, Severity
from penstock.log.inspection.verification import verify_partition
from penstock.log.log_loader import open_log
from penstock.log.settings import LogSettings
from penstock.records import encode_batch
from penstock.records.kernel import write_header
from penstock.records.legacy import LegacyMessage, encode_message_set
from penstock.runtime.files import PosixFile, PosixFiles

# --- the log


def test_a_flipped_byte_is_reported_with_its_batch(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    path = segments(folder)[1]
    third = headers(path)[2]
    flip(path, third.position + 80)
    found = finding(folder)
    assert (found["severity"], found["kind"], found["file"]) == ("damage", "batch", str(path))
    assert (found["position"], found["size"]) == (third.position, third.size)
    assert (found["offset"], found["resumes"]) == (third.base_offset, third.next_offset)
    assert found["reason"] == "checksum does not match"
    assert f"continue from {third.next_offset}" in found["advice"]


def test_text_shows_the_same(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    path = segments(folder)[1]
    third = headers(path)[2]
    flip(path, third.position + 80)
    text = run("log", "verify", folder).stdout
    assert text.startswith(f"damaged {folder}\n")
    assert (
        f"  damage  {path.name}, byte {third.position}, offset {third.base_offset}: checksum does not match "
        f"({third.size} bytes, sound again from offset {third.next_offset})\n"
    ) in text
    assert "> Reading from offset" in text
    assert "1 finding." in text


def test_a_damaged_log_is_never_wholly_sound(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0", batches=3000)
    flip(path, headers(path)[7].position + 80)
    assert "(99.96 %)" in run("log", "verify", path).stdout


def test_all_damaged_places_are_reported(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    places = []
    for path in segments(folder)[:3]:
        for number in (1, 4):
            header = headers(path)[number]
            places.append((str(path), header.position))
    for name, position in places:
        flip(Path(name), position + 70)
    assert [(found["file"], found["position"]) for found in findings(folder)] == places


def test_a_torn_tail_will_be_cut(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    path = segments(folder)[-1]
    last = headers(path)[-1]
    cut(path, last.position + 70)
    damage = [found for found in findings(folder) if found["kind"] == "batch"]
    assert [(found["position"], found["size"], found["offset"]) for found in damage] == [
        (last.position, 70, last.base_offset)
    ]
    assert "verify again" in damage[0]["advice"]
    assert "cuts the log here at its next unclean start" in damage[0]["advice"]


def test_findings_agree_with_recovery(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    flip(path, headers(path)[9].position + 80)
    reported = finding(tmp_path / "t-0")
    recovered = open_log(PosixFiles(), str(tmp_path / "t-0"), LogSettings(), clean=False)
    assert [(damage.path, damage.position) for damage in recovered.damages] == [
        (reported["file"], reported["position"])
    ]
    assert recovered.log.log_end_offset == reported["offset"]
    recovered.log.close()
    assert run("log", "verify", tmp_path / "t-0").exit_code == 0


def test_a_block_of_zeros_is_called_so(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    third, sixth = headers(path)[2], headers(path)[5]
    patch(path, third.position, bytes(sixth.position - third.position))
    found = finding(path)
    assert (found["position"], found["offset"], found["resumes"]) == (third.position, 8, 20)
    assert "zero bytes: a block that was never written" in found["reason"]


def test_a_log_of_zeros(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(bytes(5000))
    assert finding(path)["reason"] == "5000 zero bytes: a block that was never written"


def test_a_file_that_is_not_a_log_is_asked_about(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("2024-01-01 00:00:00 INFO started the server, all is well\n" * 50)
    found = finding(path)
    assert found["reason"].endswith("the file contains no record batch: is it a log segment?")
    assert found["size"] == path.stat().st_size


def test_a_huge_claimed_length_is_damage(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    third = headers(path)[2]
    patch(path, third.position + 8, struct.pack(">i", 2**31 - 1))
    found = finding(path)
    assert (found["position"], found["resumes"]) == (third.position, third.next_offset)
    assert "left in the file" in found["reason"]


def test_offsets_that_fall_are_damage(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(b"".join(encode_batch([(START_MS, b"k", b"v", ())], base_offset=base) for base in (0, 1, 7, 3, 4)))
    found = finding(path)
    assert (found["kind"], found["offset"]) == ("offsets", 3)
    assert found["reason"] == "offset 3, expected 8 or later"


def test_a_batch_before_its_segment_is_damage(tmp_path: Path) -> None:
    path = tmp_path / f"{100:020d}.log"
    path.write_bytes(encode_batch([(START_MS, b"k", b"v", ())], base_offset=99))
    assert finding(path)["reason"] == "offset 99, expected 100 or later"


def test_an_offset_too_far_for_its_segment_is_damage(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(encode_batch([(START_MS, b"k", b"v", ())], base_offset=2**31))
    assert "too far from the segment's base offset" in finding(path)["reason"]


def test_leader_epochs_that_fall_are_damage(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.log"
    epochs = (1, 3, 2, 2, 3)
    path.write_bytes(
        b"".join(
            encode_batch([(START_MS, b"k", b"v", ())], base_offset=base, leader_epoch=epoch)
            for base, epoch in enumerate(epochs)
        )
    )
    found = finding(path)
    assert (found["kind"], found["offset"], found["reason"]) == ("leader-epoch", 2, "leader epoch 2 follows 3")


def test_leader_epochs_that_fall_between_segments_are_damage(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    for base, epoch in ((0, 5), (1, 4)):
        batch = encode_batch([(START_MS, b"k", b"v", ())], base_offset=base, leader_epoch=epoch)
        (folder / f"{base:020d}.log").write_bytes(batch)
    kinds = [(found["severity"], found["kind"]) for found in findings(folder)]
    assert ("damage", "leader-epoch") in kinds


def test_segments_that_overlap_are_damage(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    second = segments(folder)[1]
    overlapping = folder / f"{int(second.stem) - 2:020d}.log"
    second.rename(overlapping)
    second.with_suffix(".index").unlink()
    second.with_suffix(".timeindex").unlink()
    damage = [found for found in findings(folder) if found["severity"] == "damage"]
    assert [(found["kind"], found["file"]) for found in damage] == [("offsets", str(overlapping))]


def test_a_file_with_nothing_but_damage_is_given_up(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0", batches=300)
    for header in headers(path)[::2]:
        flip(path, header.position + 80)
    found = findings(path)
    assert len(found) == 101
    assert "more than 100 damaged places" in found[-1]["reason"]


# --- records


def test_records_that_do_not_parse_need_a_deep_look(tmp_path: Path) -> None:
    batch = encode_batch([(START_MS, b"key", b"value", ())])
    batch[61] ^= 0x7E
    write_header(batch, 0, 0, 0, 0, START_MS, START_MS, -1, -1, -1, 1)
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(batch)
    assert run("log", "verify", path).exit_code == 0
    found = finding(path, "--deep")
    assert (found["kind"], found["offset"], found["resumes"]) == ("records", 0, 1)
    assert "does not parse" in found["reason"]


def test_a_wrong_record_count_needs_a_deep_look(tmp_path: Path) -> None:
    batch = encode_batch([(START_MS, b"key", b"value", ())] * 3)
    write_header(batch, 0, 0, 0, 2, START_MS, START_MS, -1, -1, -1, 2)
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(batch)
    assert "follow the last record" in finding(path, "--deep")["reason"]


def test_a_record_stamped_later_than_its_batch_is_found(tmp_path: Path) -> None:
    batch = encode_batch([(START_MS, b"key", b"value", ()), (START_MS + 9, b"key", b"value", ())])
    write_header(batch, 0, 0, 0, 1, START_MS, START_MS + 3, -1, -1, -1, 2)
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(batch)
    assert "its batch at most" in finding(path, "--deep")["reason"]


def test_compressed_bytes_that_do_not_decompress_need_a_deep_look(tmp_path: Path) -> None:
    batch = encode_batch([(START_MS, b"key", b"value" * 50, ())], codec=4)
    batch[70:80] = b"\xff" * 10
    write_header(batch, 0, 0, 4, 0, START_MS, START_MS, -1, -1, -1, 1)
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(batch)
    assert run("log", "verify", path).exit_code == 0
    assert finding(path, "--deep")["kind"] == "records"


def test_what_decompresses_to_too_much_is_not_decompressed(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    bomb = encode_batch([(START_MS, b"key", bytes(4 * 1024 * 1024), ())], codec=4)
    (tmp_path / "t-0" / f"{FIRST}.log").write_bytes(bomb)
    report = verify_partition(PosixFiles(), str(tmp_path / "t-0"), Options(deep=True, limit_bytes=1024 * 1024))
    damage = [found for found in report.findings if found.severity is Severity.DAMAGE]
    assert [found.kind for found in damage] == [Kind.RECORDS]
    assert "exceeds the limit" in damage[0].reason


# --- old formats


@pytest.mark.parametrize("magic", [0, 1])
def test_data_of_old_kafka_is_a_format_and_no_damage(tmp_path: Path, magic: int) -> None:
    messages = [LegacyMessage(n, START_MS if magic else -1, 0, b"k", b"v") for n in range(5)]
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(encode_message_set(messages, magic))
    found = finding(path)
    assert (found["severity"], found["kind"]) == ("format", "magic")
    assert found["reason"] == f"format magic {magic}: 5 messages from before Kafka 0.11"
    assert "This is not damage" in found["advice"]
    text = run("log", "verify", path).stdout
    assert text.startswith("format  ")
    assert "1 segment, 5 batches" in text


def test_damage_in_data_of_old_kafka_is_both(tmp_path: Path) -> None:
    messages = [LegacyMessage(n, START_MS, 0, b"k", b"value") for n in range(5)]
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(encode_message_set(messages, 1))
    flip(path, path.stat().st_size // 5 * 2 + 30)
    assert [(found["severity"], found["offset"]) for found in findings(path)] == [("damage", 2), ("format", 0)]


# --- what lies beside


def test_a_damaged_snapshot(tmp_path: Path) -> None:
    folder = transactional(tmp_path / "t-0")
    (snapshot,) = folder.glob("*.snapshot")
    flip(snapshot, 30)
    found = finding(folder)
    assert (found["kind"], found["file"], found["offset"]) == ("snapshot", str(snapshot), 30)


@pytest.mark.parametrize("content", ["0\n2\n1 0\n", "7\n0\n", "0\n1\n1 x\n", "0\n1\n1 0", "0\n2\n2 0\n1 5\n"])
def test_a_damaged_leader_epoch_checkpoint(tmp_path: Path, content: str) -> None:
    folder = partition(tmp_path / "t-0")
    (folder / "leader-epoch-checkpoint").write_text(content)
    assert finding(folder)["kind"] == "checkpoint"


def test_a_damaged_checkpoint_of_the_data_folder(tmp_path: Path) -> None:
    partition(tmp_path / "t-0")
    (tmp_path / "replication-offset-checkpoint").write_bytes(b"\xff\xfe")
    result = run("log", "verify", tmp_path, "--format", "json")
    assert result.exit_code == 1
    sound, damaged = document(result)["reports"]
    assert sound["sound"]
    assert [found["kind"] for found in damaged["findings"]] == ["checkpoint"]
    assert "1 finding in 1 of 2 places" in run("log", "verify", tmp_path).stdout


class FailingFiles(PosixFiles):
    """A disk that cannot read files of some suffix."""

    def __init__(self, suffix: str, error: int) -> None:
        self.suffix = suffix
        self.error = error

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> PosixFile:
        file = super().open(path, create=create, writable=writable)
        if path.endswith(self.suffix):
            file.close()
            raise OSError(self.error, os.strerror(self.error), path)
        return file


@pytest.mark.parametrize("suffix", [f"{FIRST}.log", f"{FIRST}.timeindex", ".snapshot", "leader-epoch-checkpoint"])
def test_what_the_disk_rejects_does_not_hide_the_rest(tmp_path: Path, suffix: str) -> None:
    folder = partition(tmp_path / "t-0")
    flip(segments(folder)[-1], headers(segments(folder)[-1])[1].position + 80)
    report = verify_partition(FailingFiles(suffix, errno.EIO), str(folder), Options())
    kinds = [found.kind for found in report.findings]
    assert Kind.UNREADABLE in kinds
    assert Kind.BATCH in kinds


def test_an_index_that_cannot_be_read_does_not_hide_its_log(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    flip(path, headers(path)[3].position + 80)
    report = verify_partition(FailingFiles(".index", errno.EACCES), str(tmp_path / "t-0"), Options())
    assert [found.kind for found in report.findings] == [Kind.UNREADABLE, Kind.BATCH]
    assert report.findings[0].advice == "Run it as the broker's user."


def test_a_segment_that_retention_took_meanwhile_is_not_damage(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    report = verify_partition(FailingFiles(f"{FIRST}.log", errno.ENOENT), str(folder), Options())
    assert report.is_sound
    assert [found.kind for found in report.findings] == [Kind.CHANGED]


def test_a_partition_that_was_deleted_meanwhile_is_not_damage(tmp_path: Path) -> None:
    report = verify_partition(PosixFiles(), str(tmp_path / "gone-0"), Options())
    assert report.is_sound
    assert [found.kind for found in report.findings] == [Kind.CHANGED]


def test_a_log_that_is_cut_while_it_is_read_is_noted(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    position = headers(path)[5].position

    class CuttingFiles(PosixFiles):
        def open(self, path: str, *, create: bool = False, writable: bool = True) -> PosixFile:
            file = super().open(path, create=create, writable=writable)
            return _CutLater(path, os.dup(file.fileno()), position) if path.endswith(".log") else file

    report = verify_partition(CuttingFiles(), str(tmp_path / "t-0"), Options())
    assert report.is_sound
    assert [found.kind for found in report.findings if found.kind is not Kind.LEFTOVER] == [Kind.CHANGED]


class _CutLater(PosixFile):
    """A file that another process cuts as soon as it was read."""

    __slots__ = ("_cut_at",)

    def __init__(self, path: str, descriptor: int, cut_at: int) -> None:
        super().__init__(path, descriptor)
        self._cut_at = cut_at

    def read_at(self, position: int, length: int) -> bytes:
        data = super().read_at(position, length)
        os.truncate(self.path, self._cut_at)
        return data


def test_progress_adds_up_to_what_is_read(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    flip(segments(folder)[1], 100)
    heard: list[int] = []
    report = verify_partition(PosixFiles(), str(folder), Options(on_bytes=heard.append))
    assert sum(heard) == report.tally.bytes == sum(path.stat().st_size for path in segments(folder))
    assert report.tally.sound_bytes < report.tally.bytes
