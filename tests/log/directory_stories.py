"""Shared by the tests of log directories: a broker's directories, records to append, and their contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.log.log_dirs.log_directory import LogDirectory
from penstock.log.log_dirs.log_manager import LogManager, OnOffline
from penstock.log.partition_log import PartitionLog
from penstock.log.settings import LogSettings
from penstock.records import decode_batch, encode_batch, scan
from penstock.runtime.files import Files
from penstock.runtime.randomness import SeededRandom
from penstock.runtime.threads import InlineWorkers, Workers

NOW = 1_700_000_000_000
SMALL = LogSettings(segment_bytes=1500, index_interval_bytes=256, retention_ms=10_000, file_delete_delay_ms=1000)
TOPIC_ID = bytes(range(16))
CLUSTER = "a-cluster_id=="


def open_directory(
    files: Files,
    path: str = "/data",
    *,
    load: bool = True,
    settings: LogSettings = SMALL,
    node_id: int = 1,
    cluster_id: str = CLUSTER,
    seed: int = 0,
) -> LogDirectory:
    random = SeededRandom(seed)
    directory = LogDirectory.open(files, path, node_id=node_id, cluster_id=cluster_id, random=random)
    if load:
        directory.load(lambda topic: settings, NOW)
    return directory


def open_manager(
    files: Files,
    paths: Sequence[str] = ("/one", "/two"),
    *,
    load: bool = True,
    settings: LogSettings = SMALL,
    workers: Workers | None = None,
    on_offline: OnOffline | None = None,
    topic_ids: Mapping[str, bytes] | None = None,
    outdated: Sequence[str] = (),
) -> LogManager:
    manager = LogManager.open(
        files, paths, node_id=1, cluster_id=CLUSTER, random=SeededRandom(0),
        workers=InlineWorkers() if workers is None else workers, on_offline=on_offline,
        topic_ids=topic_ids or {}, outdated=outdated,
    )  # fmt: skip
    if load:
        manager.load(lambda topic: settings, NOW)
    return manager


def put(log: PartitionLog, *values: bytes, stamp: int = NOW) -> None:
    """A batch of its own for each value."""
    for value in values:
        log.append(encode_batch([(stamp, b"key", value, ())]), leader_epoch=0, now_ms=NOW)


def put_durably(log: PartitionLog, *values: bytes) -> None:
    put(log, *values)
    log.flush()


def values_in(log: PartitionLog) -> list[bytes]:
    """All values from the log's start to its end, as a consumer reads them."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while (region := log.read(offset, 1 << 20)) is not None:
        data = region.read()
        for header in scan(data).headers:
            records = decode_batch(data, header.position)
            found += [record.value or b"" for record in records if record.offset >= offset]
            offset = header.next_offset
    return found


def numbered(count: int, size: int = 100) -> list[bytes]:
    return [b"%05d" % number + bytes(size - 5) for number in range(count)]


def write_file(files: Files, path: str, data: bytes) -> None:
    file = files.open(path, create=True)
    file.truncate(0)
    file.write_at(0, data)
    file.sync()
    file.close()
    files.sync_folder(path.rpartition("/")[0])


def read_file(files: Files, path: str) -> bytes:
    file = files.open(path, writable=False)
    return file.read_at(0, file.size())
