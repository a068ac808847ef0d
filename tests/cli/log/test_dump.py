"""`penstock log dump`: the facts of batches, records and index entries, as they stand."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from tests.cli.logs import (
    FIRST,
    START_MS,
    cut,
    flip,
    headers,
    lines,
    one_segment,
    opened,
    partition,
    patch,
    run,
    segments,
    transactional,
)

from penstock.log.producer_state import AppendedBatch, ProducerEntry, ProducerSnapshot, encode_snapshot
from penstock.records import encode_batch
from penstock.records.kernel import write_header
from penstock.records.legacy import LegacyMessage, encode_message_set


def test_a_batch_is_one_line_with_kafkas_facts(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    log.append(
        encode_batch([(START_MS, b"k", b"v", ())] * 3, producer_id=7, producer_epoch=1, base_sequence=5),
        leader_epoch=4,
        now_ms=START_MS,
    )
    log.close()
    result = run("log", "dump", tmp_path / "t-0")
    assert result.exit_code == 0
    path = tmp_path / "t-0" / f"{FIRST}.log"
    (header,) = headers(path)
    assert result.stdout == (
        f"Dumping {path}\n"
        "baseOffset: 0 lastOffset: 2 count: 3 baseSequence: 5 lastSequence: 7 producerId: 7 producerEpoch: 1 "
        "partitionLeaderEpoch: 4 isTransactional: false isControl: false deleteHorizonMs: null position: 0 "
        f"CreateTime: {START_MS} size: {header.size} magic: 2 codec: none crc: {header.crc} isvalid: true\n"
    )


def test_a_partition_is_dumped_segment_by_segment(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    batches = lines(run("log", "dump", folder, "--format", "json"))
    assert len(segments(folder)) > 2
    assert list(dict.fromkeys(batch["file"] for batch in batches)) == [str(path) for path in segments(folder)]
    assert [batch["baseOffset"] for batch in batches] == list(range(0, 240, 4))


def test_text_and_json_show_the_same(tmp_path: Path) -> None:
    folder = transactional(tmp_path / "t-0")
    as_json = lines(run("log", "dump", folder, "--records", "--format", "json"))
    as_text = [line for line in run("log", "dump", folder, "--records").stdout.splitlines() if line[:7] != "Dumping"]
    assert len(as_json) == len(as_text)
    for facts, text in zip(as_json, as_text, strict=True):
        shown = dict(re.findall(r"(\w+): (\S+)", text))
        for name in ("baseOffset", "offset", "position", "size", "codec", "crc", "producerId", "sequence", "keySize"):
            assert shown.get(name) == (str(facts[name]) if name in facts else None)
        assert shown[facts["timestampType"]] == str(facts["timestamp"])


def test_compressed_transactional_and_control_batches_are_distinguished(tmp_path: Path) -> None:
    entries = lines(run("log", "dump", transactional(tmp_path / "t-0"), "--records", "--format", "json"))
    batches = [entry for entry in entries if entry["type"] == "batch"]
    assert [batch["codec"] for batch in batches[:5]] == ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [batch["isTransactional"] for batch in batches] == [False] * 5 + [True] * 4
    assert [batch["isControl"] for batch in batches] == [False] * 5 + [False, True, False, True]
    markers = [entry for entry in entries if "endTxnMarker" in entry]
    assert [(marker["endTxnMarker"], marker["coordinatorEpoch"]) for marker in markers] == [("COMMIT", 3), ("ABORT", 3)]
    values = [entry["value"] for entry in entries if entry["type"] == "record" and "value" in entry]
    assert values[:20] == [f"value {number}.{n}" for number in range(5) for n in range(4)]
    sequences = [entry["sequence"] for entry in entries if entry["type"] == "record"]
    assert sequences[20:30] == [0, 1, 2, 3, -1, 4, 5, 6, 7, -1]


def test_a_delete_horizon_is_shown(tmp_path: Path) -> None:
    batch = encode_batch([(START_MS, b"k", None, ())])
    write_header(batch, 0, 0, 64, 0, START_MS, START_MS, -1, -1, -1, 1)
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(batch)
    (entry,) = lines(run("log", "dump", path, "--format", "json"))
    assert (entry["deleteHorizonMs"], entry["isvalid"]) == (START_MS, True)


def test_log_append_time_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(encode_batch([(START_MS, None, b"v", ())], timestamp_type=1))
    text = run("log", "dump", path, "--records").stdout
    assert text.count(f"LogAppendTime: {START_MS}") == 2


@pytest.mark.parametrize(
    ("value_format", "key", "value"),
    [
        ("text", "ключ", "a\\xff\\x1b[0mb"),
        ("hex", "ключ".encode().hex(), b"a\xff\x1b[0mb".hex()),
        ("base64", base64.b64encode("ключ".encode()).decode(), base64.b64encode(b"a\xff\x1b[0mb").decode()),
    ],
)
def test_values_are_shown_as_asked(tmp_path: Path, value_format: str, key: str, value: str) -> None:
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(encode_batch([(0, "ключ".encode(), b"a\xff\x1b[0mb", (("h", b"1"), ("n", None)))]))
    text = run("log", "dump", path, "--records", "--value-format", value_format).stdout
    assert text.endswith(f" key: {key} value: {value}\n")
    assert "n=null]" in text


def test_values_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(encode_batch([(0, b"secret", None, (("h", b"secret"),))]))
    text = run("log", "dump", path, "--records", "--value-format", "none").stdout
    assert "secret" not in text
    assert "keySize: 6 valueSize: -1 headerKeys: [h]" in text


def test_a_value_does_not_break_its_line(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(encode_batch([(0, b"k", b"one\ntwo\r\x07", ())]))
    assert run("log", "dump", path, "--records").stdout.splitlines()[-1].endswith("value: one\\ntwo\\r\\x07")
    assert lines(run("log", "dump", path, "--records", "--format", "json"))[-1]["value"] == "one\ntwo\r\x07"


def test_null_and_empty_differ(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(encode_batch([(0, None, b"", ())]))
    record = lines(run("log", "dump", path, "--records", "--format", "json"))[-1]
    assert (record["key"], record["value"], record["keySize"], record["valueSize"]) == (None, "", -1, 0)


def test_max_records_stops_and_implies_records(tmp_path: Path) -> None:
    entries = lines(run("log", "dump", partition(tmp_path / "t-0"), "--max-records", "6", "--format", "json"))
    assert [entry["offset"] for entry in entries if entry["type"] == "record"] == [0, 1, 2, 3, 4, 5]
    assert entries[-1]["type"] == "record"


def test_an_offset_range_skips_segments_batches_and_records(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    entries = lines(
        run("log", "dump", folder, "--records", "--from-offset", "101", "--to-offset", "106", "--format", "json")
    )
    assert [entry["offset"] for entry in entries if entry["type"] == "record"] == [101, 102, 103, 104, 105]
    assert [entry["baseOffset"] for entry in entries if entry["type"] == "batch"] == [100, 104]


def test_an_offset_beyond_the_end_shows_nothing(tmp_path: Path) -> None:
    result = run("log", "dump", partition(tmp_path / "t-0"), "--from-offset", "9999", "--format", "json")
    assert (result.exit_code, result.stdout) == (0, "")


def test_indexes_are_shown_with_absolute_offsets(tmp_path: Path) -> None:
    folder = partition(tmp_path / "t-0")
    path = segments(folder)[1]
    starts = {header.position: header.last_offset for header in headers(path)}
    entries = lines(run("log", "dump", path.with_suffix(".index"), "--format", "json"))
    assert len(entries) > 3
    assert all(starts[entry["position"]] == entry["offset"] for entry in entries)
    times = lines(run("log", "dump", path.with_suffix(".timeindex"), "--format", "json"))
    assert times[-1]["offset"] == headers(path)[-1].last_offset
    assert times[-1]["timestamp"] == headers(path)[-1].max_timestamp
    assert run("log", "dump", path.with_suffix(".index")).stdout.splitlines()[1] == (
        f"offset: {entries[0]['offset']} position: {entries[0]['position']}"
    )


def test_a_torn_index_shows_its_whole_entries(tmp_path: Path) -> None:
    index = one_segment(tmp_path / "t-0").with_suffix(".index")
    cut(index, 19)
    result = run("log", "dump", index, "--format", "json")
    assert result.exit_code == 1
    assert [entry["type"] for entry in lines(result)] == ["offsetIndexEntry", "offsetIndexEntry", "damage"]


def test_aborted_transactions_are_shown(tmp_path: Path) -> None:
    folder = transactional(tmp_path / "t-0")
    (entry,) = lines(run("log", "dump", folder / f"{FIRST}.txnindex", "--format", "json"))
    assert (entry["producerId"], entry["firstOffset"], entry["lastOffset"], entry["lastStableOffset"]) == (
        7,
        25,
        29,
        30,
    )


def test_a_transaction_index_of_an_unknown_version_is_damaged(tmp_path: Path) -> None:
    index = transactional(tmp_path / "t-0") / f"{FIRST}.txnindex"
    patch(index, 0, b"\x00\x09")
    result = run("log", "dump", index)
    assert result.exit_code == 1
    assert "unknown entry version 9" in result.stdout


def test_a_snapshot_shows_its_producers(tmp_path: Path) -> None:
    entry = ProducerEntry(7, 2, (AppendedBatch(9, 99, 4, START_MS),), 3, 95, START_MS, START_MS)
    path = tmp_path / f"{100:020d}.snapshot"
    path.write_bytes(encode_snapshot(ProducerSnapshot((entry,))))
    (shown,) = lines(run("log", "dump", path, "--format", "json"))
    assert (shown["producerId"], shown["lastSequence"], shown["currentTxnFirstOffset"]) == (7, 9, 95)
    assert shown["batches"][0]["baseOffset"] == 95


def test_a_damaged_snapshot_says_so(tmp_path: Path) -> None:
    path = tmp_path / f"{100:020d}.snapshot"
    path.write_bytes(b"\0" * 20)
    result = run("log", "dump", path)
    assert result.exit_code == 1
    assert "isvalid: false reason: unknown version 0" in result.stdout


def test_a_damaged_batch_is_shown_where_it_is_and_the_rest_too(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    third = headers(path)[2]
    flip(path, third.position + 100)
    result = run("log", "dump", path, "--format", "json")
    assert result.exit_code == 1
    entries = lines(result)
    assert [entry["baseOffset"] for entry in entries] == list(range(0, 80, 4))
    assert [entry["isvalid"] for entry in entries] == [True, True, False] + [True] * 17
    assert entries[2]["reason"] == "checksum does not match"


def test_a_torn_tail_is_shown_last(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    last = headers(path)[-1]
    cut(path, last.position + 90)
    entries = lines(run("log", "dump", path, "--format", "json"))
    assert entries[-1] == {
        "type": "damage",
        "file": str(path),
        "position": last.position,
        "size": 90,
        "offset": last.base_offset,
        "isvalid": False,
        "reason": f"batch of {last.size} bytes exceeds the 90 left in the file",
    }


def test_records_that_do_not_decode_are_reported_behind_their_batch(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.log"
    path.write_bytes(lying_batch())
    entries = lines(run("log", "dump", path, "--records", "--format", "json"))
    assert [(entry["type"], entry["isvalid"]) for entry in entries] == [("batch", True), ("damage", False)]
    assert "does not parse" in entries[1]["reason"]


def lying_batch() -> bytes:
    """A batch whose checksum is right and whose records are not."""
    batch = encode_batch([(START_MS, b"key", b"value", ())])
    batch[61] ^= 0x7E
    write_header(batch, 0, 0, 0, 0, START_MS, START_MS, -1, -1, -1, 1)
    return bytes(batch)


def test_an_empty_log_is_empty(tmp_path: Path) -> None:
    path = tmp_path / f"{FIRST}.log"
    path.touch()
    result = run("log", "dump", path)
    assert (result.exit_code, result.stdout) == (0, f"Dumping {path}\n")


def test_a_data_folder_is_too_much_to_dump(tmp_path: Path) -> None:
    partition(tmp_path / "t-0")
    result = run("log", "dump", tmp_path)
    assert result.exit_code == 2
    assert "is a data folder" in result.stderr


def test_a_segment_under_compaction_can_be_read(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    swap = path.rename(path.with_name(path.name + ".swap"))
    assert len(lines(run("log", "dump", swap, "--format", "json"))) == 20


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 3])
def test_message_sets_of_old_kafka_are_dumped(tmp_path: Path, magic: int, codec: int) -> None:
    stamp = START_MS if magic else -1
    messages = [LegacyMessage(40 + n, stamp, 0, b"k%d" % n, b"v%d" % n) for n in range(3)]
    path = tmp_path / f"{40:020d}.log"
    path.write_bytes(encode_message_set(messages, magic, codec=codec))
    result = run("log", "dump", path, "--records", "--format", "json")
    assert result.exit_code == 0
    entries = lines(result)
    batches = [entry for entry in entries if entry["type"] == "batch"]
    assert all((batch["magic"], batch["isvalid"]) == (magic, True) for batch in batches)
    assert (batches[0]["baseOffset"], batches[-1]["lastOffset"]) == (40, 42)
    assert sum(batch["count"] for batch in batches) == 3
    shown = [(entry["offset"], entry["timestamp"], entry["key"], entry["value"]) for entry in entries if "key" in entry]
    assert shown == [(40 + n, stamp, f"k{n}", f"v{n}") for n in range(3)]
