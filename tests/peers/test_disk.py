"""A partition's folder, between our log and Apache Kafka's: each reads what the other wrote.

Both logs get the same steps: plain and compressed batches, an idempotent producer, transactions committed, aborted
and left open, three leader epochs, enough of it for several segments.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.cli.logs import run
from tests.peers.java_process import FLAGS, JavaProcess, classpath
from tests.peers.provision import Found

from penstock.log import group_commit
from penstock.log.compaction.job import compact
from penstock.log.log_loader import open_log
from penstock.log.partition_log import PartitionLog, offset_for_time
from penstock.log.producer_state import snapshot_name
from penstock.log.settings import COMPACT, LogSettings
from penstock.records import Codec, encode_batch, scan
from penstock.records.batch import EndMarker, encode_marker
from penstock.runtime.files import PosixFiles

pytestmark = pytest.mark.peer("java")

NOW = 1_700_000_000_000
SETTINGS = LogSettings(segment_bytes=16_384, index_interval_bytes=1024)
DUMP_S = 60
IDEMPOTENT, COMMITTING, ABORTING, OPEN = 7001, 7002, 7003, 7004


class Step(NamedTuple):
    """One append."""

    batch: bytes
    epoch: int
    marker: bool = False


def story() -> list[Step]:
    steps = []
    for number in range(120):
        epoch = number // 40 * 3
        rows = [(NOW + number * 10 + i * 3 % 7, b"k%d" % (number % 5), b"v%d " % number * 25, ()) for i in range(5)]
        codec = (Codec.NONE, Codec.LZ4, Codec.NONE, Codec.ZSTD, Codec.SNAPPY, Codec.GZIP)[number % 6]
        steps.append(Step(bytes(encode_batch(rows, codec=codec)), epoch))
        for producer, every in ((IDEMPOTENT, 3), (COMMITTING, 4), (ABORTING, 5)):
            if number % every == 0:
                batch = encode_batch(
                    rows,
                    producer_id=producer,
                    producer_epoch=1,
                    base_sequence=number // every * 5,
                    transactional=producer != IDEMPOTENT,
                )
                steps.append(Step(bytes(batch), epoch))
        if number % 20 == 19:
            steps += [
                Step(marker_of(COMMITTING, is_commit=True, number=number), epoch, marker=True),
                Step(marker_of(ABORTING, is_commit=False, number=number), epoch, marker=True),
            ]
    rows = [(NOW + 5000, b"left", b"open", ())]
    opened = encode_batch(rows, transactional=True, producer_id=OPEN, producer_epoch=0, base_sequence=0)
    return [*steps, Step(bytes(opened), 6)]


def marker_of(producer: int, *, is_commit: bool, number: int, epoch: int = 1) -> bytes:
    marker = EndMarker(is_commit, coordinator_epoch=2)
    return bytes(encode_marker(marker, timestamp_ms=NOW + number * 10, producer_id=producer, producer_epoch=epoch))


def plain_steps(epoch: int) -> list[Step]:
    return [Step(bytes(encode_batch([(NOW + 6000 + at, b"k", b"v" * 700, ())])), epoch) for at in range(40)]


STORY = story()
TIMES = [NOW - 1, NOW, *range(NOW + 3, NOW + 1300, 77), NOW + 5000, NOW + 5001]


def write_with_ours(folder: Path, settings: LogSettings = SETTINGS, *, mark_every: int = 0) -> PartitionLog:
    log = open_log(PosixFiles(), str(folder), settings, clean=True, now_ms=NOW).log
    for number, step in enumerate(STORY):
        log.append(step.batch, leader_epoch=step.epoch, now_ms=NOW, from_client=not step.marker)
        log.advance_high_watermark(log.log_end_offset)
        if mark_every and number % mark_every == 0:
            flush = log.prepare_flush(mark=True)
            if flush is not None:
                flush.run()
                log.complete_flush(flush)
                log.checkpointed_offset = log.flushed_offset
    return log


def ask_kafka(
    kafka: JavaProcess, about: str, folder: Path, *, clean: bool, recovery_point: int = 0, **more: Any
) -> dict[str, Any]:
    answer: dict[str, Any] = kafka.ask(
        about, folder=str(folder), clean=clean, recovery_point=recovery_point, now_ms=NOW + 6000, times=TIMES,
        segment_bytes=SETTINGS.segment_bytes, index_interval_bytes=SETTINGS.index_interval_bytes, **more,
    )  # fmt: skip
    return answer


def write_with_kafka(kafka: JavaProcess, folder: Path, steps: Sequence[Step] = STORY) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    asked = [{"hex": step.batch.hex(), "epoch": step.epoch, "marker": step.marker} for step in steps]
    return ask_kafka(kafka, "write", folder, clean=True, steps=asked)


def state_of(log: PartitionLog) -> dict[str, Any]:
    """What is to be said of a log, in the words of java/DiskOracle.java."""
    log.advance_high_watermark(log.log_end_offset)
    times = [offset_for_time(log, stamp) for stamp in TIMES]
    return {
        "start": log.log_start_offset,
        "end": log.log_end_offset,
        "last_stable": log.last_stable_offset,
        "segments": [*log.table.bases, log.active.base_offset],
        "epochs": [list(entry) for entry in log.epochs.entries],
        "producers": sorted(
            [entry.producer_id, entry.epoch, entry.last_sequence, entry.transaction_first_offset]
            for entry in log.producers.snapshot().entries
        ),
        "aborted": [list(each) for each in log.aborted_between(0, log.log_end_offset)],
        "times": [-1 if found is None else found.offset for found in times],
        "hex": contents(log).hex(),
    }


def contents(log: PartitionLog) -> bytes:
    parts, offset = [], log.log_start_offset
    while (region := log.read(offset, 5000)) is not None:
        parts.append(region.read())
        offset = scan(parts[-1]).headers[-1].next_offset
    return b"".join(parts)


def sorted_producers(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"producers": sorted(state["producers"])}


@pytest.fixture
def kafka_log(start_java: Callable[..., JavaProcess]) -> JavaProcess:
    return start_java("kafka-4.3", "DiskOracle")


@pytest.mark.peer("kafka-4.3")
@pytest.mark.parametrize("stopped", ["cleanly", "by a kill"])
def test_kafkas_log_opens_our_folder_and_sees_the_same(kafka_log: JavaProcess, tmp_path: Path, stopped: str) -> None:
    folder = tmp_path / "clicks-0"
    log = write_with_ours(folder)
    ours = state_of(log)
    if stopped == "cleanly":
        log.close()
    else:
        log.release()
    theirs = ask_kafka(kafka_log, "read", folder, clean=stopped == "cleanly")
    assert len(ours["segments"]) > 5
    assert len(ours["aborted"]) == 6
    assert sorted_producers(theirs) == ours


@pytest.mark.peer("kafka-4.3")
@pytest.mark.parametrize("stopped", ["cleanly", "by a kill"])
@pytest.mark.parametrize("known", [False, True])
def test_kafkas_log_opens_our_folder_with_marks_inside_of_its_segments(
    kafka_log: JavaProcess, tmp_path: Path, stopped: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "LEAST_MARKED_BYTES", 1)
    folder = tmp_path / "clicks-0"
    log = write_with_ours(folder, mark_every=4)
    ours = state_of(log)
    inside = log.marks.offsets
    assert inside
    assert all((folder / snapshot_name(offset)).exists() for offset in inside)
    recovery_point = log.flushed_offset if known else 0
    if stopped == "cleanly":
        log.close()
    else:
        log.release()
        again = open_log(PosixFiles(), str(folder), SETTINGS, clean=False, recovery_point=recovery_point, now_ms=NOW)
        assert state_of(again.log) == ours
        assert (again.walked_bytes < again.log.active.size) is known
        again.log.release()
    theirs = ask_kafka(kafka_log, "read", folder, clean=stopped == "cleanly", recovery_point=recovery_point)
    assert sorted_producers(theirs) == ours
    # And back: whatever Kafka did to the snapshots, ours is the same log again.
    back = open_log(PosixFiles(), str(folder), SETTINGS, clean=False, recovery_point=recovery_point, now_ms=NOW).log
    assert state_of(back) == ours


@pytest.mark.peer("kafka-4.3")
@pytest.mark.parametrize("stopped", ["cleanly", "by a kill"])
def test_our_log_opens_kafkas_folder_and_sees_the_same(kafka_log: JavaProcess, tmp_path: Path, stopped: str) -> None:
    folder = tmp_path / "clicks-0"
    theirs = write_with_kafka(kafka_log, folder)
    opened = open_log(PosixFiles(), str(folder), SETTINGS, clean=stopped == "cleanly", now_ms=NOW)
    assert opened.damages == []
    assert state_of(opened.log) == sorted_producers(theirs)
    opened.log.release()


@pytest.mark.peer("kafka-4.3")
def test_both_logs_leave_the_same_files(kafka_log: JavaProcess, tmp_path: Path) -> None:
    write_with_ours(tmp_path / "ours-0").close()
    write_with_kafka(kafka_log, tmp_path / "kafkas-0")
    # Not the time indexes: an entry of Kafka's takes the batch at which it is made into account, ours ends before it.
    for suffix in (".log", ".index", ".txnindex", "leader-epoch-checkpoint"):
        ours = {path.name: path.read_bytes() for path in (tmp_path / "ours-0").glob(f"*{suffix}")}
        theirs = {path.name: path.read_bytes() for path in (tmp_path / "kafkas-0").glob(f"*{suffix}")}
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if ours[name] != theirs[name]] == []


@pytest.mark.peer("kafka-4.3")
def test_each_log_continues_where_the_other_stopped(kafka_log: JavaProcess, tmp_path: Path) -> None:
    folder = tmp_path / "clicks-0"
    write_with_ours(folder).close()
    more = [Step(marker_of(OPEN, is_commit=False, number=600, epoch=0), 9, marker=True), *plain_steps(9)]
    theirs = write_with_kafka(kafka_log, folder, more)
    log = open_log(PosixFiles(), str(folder), SETTINGS, clean=True, now_ms=NOW).log
    assert state_of(log) == sorted_producers(theirs)
    assert log.last_stable_offset == log.log_end_offset
    # The producer's last batch, sent once more: still known, whichever log wrote it.
    retry = next(step for step in reversed(STORY) if scan(step.batch).headers[0].producer_id == IDEMPOTENT)
    assert log.append(retry.batch, leader_epoch=9, now_ms=NOW).is_duplicate
    log.close()


@pytest.mark.peer("kafka-4.3")
@pytest.mark.parametrize("stopped", ["cleanly", "by a kill"])
def test_kafkas_log_opens_a_folder_that_we_compacted(kafka_log: JavaProcess, tmp_path: Path, stopped: str) -> None:
    folder = tmp_path / "clicks-0"
    log = write_with_ours(folder, replace(SETTINGS, cleanup_policy=frozenset({COMPACT})))
    log.flush()
    log.checkpointed_offset = log.flushed_offset
    before = log.size
    compact(log, None, NOW, only_if_due=False)
    assert log.size < before / 2
    ours = state_of(log)
    if stopped == "cleanly":
        log.close()
    else:
        log.release()
    # Only what is durable is compacted, so recovery has nothing to do with it.
    theirs = ask_kafka(kafka_log, "read", folder, clean=stopped == "cleanly", recovery_point=log.flushed_offset)
    assert sorted_producers(theirs) == ours


@pytest.mark.peer("kafka-4.3")
def test_our_tool_finds_kafkas_folder_sound(kafka_log: JavaProcess, tmp_path: Path) -> None:
    folder = tmp_path / "clicks-0"
    write_with_kafka(kafka_log, folder)
    result = run("log", "verify", folder, "--deep", "--format", "json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["sound"]) == (0, True)
    assert report["reports"][0]["batches"] == len(STORY)


# --- as Kafka's own tool for it shows the files


class Dump:
    """Runs DumpLogSegments; its complaints go to the other stream than what it shows."""

    def __init__(self, java: Found, kafka: Found) -> None:
        self._command = [str(java.path), *FLAGS, "-cp", classpath(kafka), "kafka.tools.DumpLogSegments"]

    def __call__(self, paths: list[Path], *options: str) -> str:
        files = ",".join(map(str, paths))
        done = subprocess.run(
            [*self._command, *options, "--files", files], capture_output=True, text=True, timeout=DUMP_S
        )
        complaints = [line for line in done.stderr.splitlines() if not line.startswith("SLF4J")]
        assert (complaints, done.returncode) == ([], 0)
        return done.stdout


@pytest.fixture(scope="module")
def dump(peer: Callable[[str], Found]) -> Dump:
    return Dump(peer("java"), peer("kafka-3.9"))


def files_of(folder: Path, suffix: str) -> list[Path]:
    found = sorted(folder.glob(f"*{suffix}"))
    assert len(found) > 2
    return found


@pytest.fixture(scope="module")
def our_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "clicks-0"
    write_with_ours(folder).close()
    return folder


@pytest.mark.peer("kafka-3.9")
def test_kafkas_tool_shows_every_record_of_our_segments(dump: Dump, our_folder: Path) -> None:
    shown = dump(files_of(our_folder, ".log"), "--deep-iteration")
    headers = [header for path in files_of(our_folder, ".log") for header in scan(path.read_bytes()).headers]
    batches = [line for line in shown.splitlines() if line.startswith("baseOffset:")]
    assert len(batches) == len(headers) == len(STORY)
    assert all("isvalid: true" in line for line in batches)
    offsets = [int(line.split()[2]) for line in shown.splitlines() if line.startswith("| offset:")]
    assert offsets == [offset for header in headers for offset in range(header.base_offset, header.next_offset)]
    assert shown.count("endTxnMarker: ABORT") == 6


@pytest.mark.peer("kafka-3.9")
def test_kafkas_tool_finds_our_indexes_sane_and_true(dump: Dump, our_folder: Path) -> None:
    paths = [*files_of(our_folder, ".index"), *files_of(our_folder, ".timeindex")]
    assert dump(paths, "--index-sanity-check").count("passed sanity check") == len(paths)
    entries = sum(path.stat().st_size // (8 if path.suffix == ".index" else 12) for path in paths)
    shown = dump(paths)
    assert len([line for line in shown.splitlines() if line.startswith(("offset:", "timestamp:"))]) == entries


@pytest.mark.peer("kafka-3.9")
def test_kafkas_tool_reads_our_producers_and_aborted_transactions(dump: Dump, our_folder: Path) -> None:
    shown = dump([files_of(our_folder, ".snapshot")[-1], *files_of(our_folder, ".txnindex")])
    producers = {line.split()[1]: line for line in shown.splitlines() if line.startswith("producerId:")}
    assert producers.keys() == {str(producer) for producer in (IDEMPOTENT, COMMITTING, ABORTING, OPEN)}
    assert "producerEpoch: 1" in producers[str(IDEMPOTENT)]
    assert "lastSequence: 199" in producers[str(IDEMPOTENT)]
    assert "coordinatorEpoch: 2" in producers[str(ABORTING)]
    assert "currentTxnFirstOffset: OptionalLong[1082]" in producers[str(OPEN)]
    assert shown.count(f"version: 0 producerId: {ABORTING}") == 6


@pytest.mark.peer("kafka-3.9")
def test_kafkas_tool_would_say_what_is_wrong(dump: Dump, tmp_path: Path) -> None:
    folder = tmp_path / "clicks-0"
    write_with_ours(folder).close()
    index = files_of(folder, ".index")[0]
    damaged = bytearray(index.read_bytes())
    damaged[3] ^= 1
    index.write_bytes(damaged)
    with pytest.raises(AssertionError, match="Mismatches in"):
        dump([index])
