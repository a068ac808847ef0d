"""Logs on disk for the tests of the command, made by the log itself, and ways to damage them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from penstock.cli.main import cli
from penstock.log.log_loader import open_log
from penstock.log.partition_log import PartitionLog
from penstock.log.settings import LogSettings
from penstock.records import BatchHeader, encode_batch, scan
from penstock.records.batch import EndMarker, encode_marker
from penstock.runtime.files import PosixFiles

START_MS = 1_700_000_000_000
SETTINGS = LogSettings(segment_bytes=4000, index_interval_bytes=300)
FIRST = "00000000000000000000"


def run(*args: str | Path) -> Result:
    """The command's result; what it raised, if it was not an exit."""
    result = CliRunner().invoke(cli, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def document(result: Result) -> Any:
    return json.loads(result.stdout)


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def records(number: int, count: int = 4) -> list[tuple[int, bytes, bytes, tuple[tuple[str, bytes], ...]]]:
    return [(START_MS + number * 10 + n, b"key-%d" % n, b"value %d.%d" % (number, n), ()) for n in range(count)]


def opened(folder: Path, settings: LogSettings = SETTINGS) -> PartitionLog:
    return open_log(PosixFiles(), str(folder), settings, clean=False, recovery_point=None).log


def fill(log: PartitionLog, batches: int, *, epoch: int = 0) -> None:
    for number in range(batches):
        log.append(encode_batch(records(number)), leader_epoch=epoch, now_ms=START_MS)


def partition(folder: Path, batches: int = 60, settings: LogSettings = SETTINGS) -> Path:
    """A partition of several segments, closed properly."""
    log = opened(folder, settings)
    fill(log, batches)
    log.close()
    return folder


def one_segment(folder: Path, batches: int = 20) -> Path:
    """The `.log` file of a partition that has no other."""
    partition(folder, batches, LogSettings(index_interval_bytes=300))
    return folder / f"{FIRST}.log"


def transactional(folder: Path) -> Path:
    """A partition with every codec, a transaction that was committed and one that was aborted."""
    log = opened(folder)
    for codec in range(5):
        log.append(encode_batch(records(codec), codec=codec), leader_epoch=1, now_ms=START_MS)
    for sequence, is_commit in ((0, True), (4, False)):
        batch = encode_batch(
            records(sequence), codec=4, producer_id=7, producer_epoch=2, base_sequence=sequence, transactional=True
        )
        log.append(batch, leader_epoch=1, now_ms=START_MS)
        marker = encode_marker(EndMarker(is_commit, 3), timestamp_ms=START_MS, producer_id=7, producer_epoch=2)
        log.append(marker, leader_epoch=1, now_ms=START_MS, from_client=False)
    log.close()
    return folder


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def headers(path: Path) -> list[BatchHeader]:
    found = scan(path.read_bytes())
    assert found.problem is None
    return found.headers


def patch(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int) -> None:
    patch(path, position, bytes([path.read_bytes()[position] ^ 0x55]))


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def findings(path: Path, *options: str) -> list[dict[str, Any]]:
    """What is found in a partition or file that is not sound."""
    result = run("log", "verify", path, "--format", "json", *options)
    assert result.exit_code == 1
    (report,) = document(result)["reports"]
    assert not report["sound"]
    found: list[dict[str, Any]] = report["findings"]
    return found


def finding(path: Path, *options: str) -> dict[str, Any]:
    (only,) = findings(path, *options)
    return only
