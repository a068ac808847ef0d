"""`penstock log verify` on damaged indexes: no record is lost, but lookups may go astray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.logs import (
    FIRST,
    START_MS,
    cut,
    finding,
    headers,
    one_segment,
    partition,
    patch,
    segments,
    transactional,
)

from penstock.log.index import OFFSET_ENTRY, TIME_ENTRY
from penstock.records import encode_batch


def rewrite(path: Path, number: int, key: int | None = None, value: int | None = None) -> None:
    entry = OFFSET_ENTRY if path.suffix == ".index" else TIME_ENTRY
    entries = [list(pair) for pair in entry.iter_unpack(path.read_bytes())]
    entries[number] = [entries[number][0] if key is None else key, entries[number][1] if value is None else value]
    path.write_bytes(b"".join(entry.pack(*pair) for pair in entries))


def index_finding(path: Path, suffix: str) -> dict[str, Any]:
    found = finding(path.parent)
    assert found["file"] == str(path.with_suffix(suffix))
    assert "No record is lost" in found["advice"]
    return found


@pytest.mark.parametrize(("suffix", "left"), [(".index", 21), (".timeindex", 29)])
def test_a_torn_index(tmp_path: Path, suffix: str, left: int) -> None:
    path = one_segment(tmp_path / "t-0")
    cut(path.with_suffix(suffix), left)
    assert "not a multiple of" in index_finding(path, suffix)["reason"]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_of_zeros_in_a_sealed_segment(tmp_path: Path, suffix: str) -> None:
    path = segments(partition(tmp_path / "t-0"))[0]
    index = path.with_suffix(suffix)
    index.write_bytes(bytes(index.stat().st_size))
    assert "entries of zeros" in index_finding(path, suffix)["reason"]


def test_zeros_in_the_middle_of_an_index(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    patch(path.with_suffix(".index"), 16, bytes(16))
    found = index_finding(path, ".index")
    assert (found["position"], "follows entries of zeros" in found["reason"]) == (32, True)


def test_an_index_that_names_a_place_inside_a_batch(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    index = path.with_suffix(".index")
    value = OFFSET_ENTRY.unpack_from(index.read_bytes(), 16)[1]
    rewrite(index, 2, value=value + 5)
    found = index_finding(path, ".index")
    assert (found["position"], found["reason"]) == (
        16,
        f"entry 2 names byte {value + 5} of the log, where no batch starts",
    )


def test_an_index_that_names_too_small_an_offset(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    index = path.with_suffix(".index")
    key, value = OFFSET_ENTRY.unpack_from(index.read_bytes(), 16)
    rewrite(index, 2, key=key - 4)
    assert index_finding(path, ".index")["reason"] == (
        f"entry 2 names offset {key - 4} for the batch at {value}, which starts at {key - 3}"
    )


def test_an_index_that_names_too_large_an_offset(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    index = path.with_suffix(".index")
    key = OFFSET_ENTRY.unpack_from(index.read_bytes(), 16)[0]
    rewrite(index, 2, key=key + 1)
    found = index_finding(path, ".index")
    assert (found["position"], found["reason"]) == (16, f"entry 2 names offset {key + 1}, which no batch ends with")


def test_an_index_that_is_too_long(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    size = path.stat().st_size
    with path.with_suffix(".index").open("ab") as index:
        index.write(OFFSET_ENTRY.pack(5000, size + 10) + OFFSET_ENTRY.pack(5004, size + 300))
    found = index_finding(path, ".index")
    assert found["reason"].endswith(f"names byte {size + 10} of a log of {size} (1 more wrong entries)")


def test_an_index_that_does_not_ascend(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    rewrite(path.with_suffix(".index"), 3, key=1)
    assert "does not follow" in index_finding(path, ".index")["reason"]


def test_a_time_index_with_a_wrong_time(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    index = path.with_suffix(".timeindex")
    stamp, offset = TIME_ENTRY.unpack_from(index.read_bytes(), 24)
    rewrite(index, 2, key=stamp + 1)
    found = index_finding(path, ".timeindex")
    assert (found["offset"], found["reason"]) == (
        offset,
        f"entry 2 names time {stamp + 1} for offset {offset}, but its batch has {stamp}",
    )


def test_a_time_index_that_hides_an_earlier_record(tmp_path: Path) -> None:
    path = tmp_path / "t-0" / f"{FIRST}.log"
    path.parent.mkdir()
    stamps = (10, 90, 20, 30)
    path.write_bytes(
        b"".join(
            encode_batch([(stamp, b"k", b"v", ())], base_offset=base, leader_epoch=0)
            for base, stamp in enumerate(stamps)
        )
    )
    path.with_suffix(".index").touch()
    path.with_suffix(".timeindex").write_bytes(TIME_ENTRY.pack(30, 3))
    assert index_finding(path, ".timeindex")["reason"] == "entry 0 names time 30, but 90 comes before offset 3"


def test_a_time_index_beyond_the_log(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    with path.with_suffix(".timeindex").open("ab") as index:
        index.write(TIME_ENTRY.pack(START_MS * 2, 4000))
    assert "names offset 4000, but the segment ends before 80" in index_finding(path, ".timeindex")["reason"]


def test_entries_that_point_into_damage_are_not_reported(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    found = headers(path)
    patch(path, found[4].position, b"\xee" * (found[12].position - found[4].position))
    assert finding(path.parent)["kind"] == "batch"


def test_an_index_verified_alone_reports_only_itself(tmp_path: Path) -> None:
    path = one_segment(tmp_path / "t-0")
    rewrite(path.with_suffix(".index"), 3, key=1)
    cut(path.with_suffix(".timeindex"), 7)
    assert finding(path.with_suffix(".index"))["kind"] == "offset-index"
    assert finding(path.with_suffix(".timeindex"))["kind"] == "time-index"


@pytest.mark.parametrize(
    ("position", "data", "reason"),
    [
        (0, b"\x00\x07", "unknown entry version 7"),
        (2, b"\xff", "impossible values"),
        (18, b"\x00" * 8, "impossible values"),
        (26, b"\x7f", "is after the marker"),
    ],
)
def test_a_damaged_transaction_index(tmp_path: Path, position: int, data: bytes, reason: str) -> None:
    folder = transactional(tmp_path / "t-0")
    patch(folder / f"{FIRST}.txnindex", position, data)
    found = finding(folder)
    assert (found["kind"], found["position"]) == ("transaction-index", 0)
    assert reason in found["reason"]
    assert "may see aborted ones" in found["advice"]


def test_a_torn_transaction_index(tmp_path: Path) -> None:
    folder = transactional(tmp_path / "t-0")
    with (folder / f"{FIRST}.txnindex").open("ab") as index:
        index.write(b"\0" * 10)
    found = finding(folder)
    assert (found["position"], found["reason"]) == (34, "10 bytes follow the last complete entry")


def test_aborted_transactions_out_of_order(tmp_path: Path) -> None:
    folder = transactional(tmp_path / "t-0")
    index = folder / f"{FIRST}.txnindex"
    index.write_bytes(index.read_bytes() * 2)
    assert "does not follow the one at 29" in finding(folder)["reason"]
