"""What a cluster has in the end: its records and committed offsets, read by a client that took no part, and the files
of the replicas side by side."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from benchmarks.faults.checking import Stored
from benchmarks.faults.clusters import Cluster, NotInTime
from benchmarks.faults.journal import identity_of

_PATIENCE_S: Final = 60.0
_ANSWER_S: Final = 10.0
_MOST: Final = 10_000


def ends(bootstrap: Sequence[str], topic: str, partitions: int) -> dict[int, int]:
    """Where each partition ends."""
    consumer = _consumer(bootstrap)
    try:
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), _ANSWER_S)[1]
            for partition in range(partitions)
        }
    finally:
        consumer.close()


def contents(bootstrap: Sequence[str], topic: str, partitions: int) -> dict[int, list[Stored]]:
    """Every record, by partition. NotInTime."""
    wanted = ends(bootstrap, topic, partitions)
    found: dict[int, list[Stored]] = {partition: [] for partition in wanted}
    consumer = _consumer(bootstrap)
    deadline = time.monotonic() + _PATIENCE_S
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in wanted])
        while any(not found[at] or found[at][-1].offset < end - 1 for at, end in wanted.items() if end):
            if time.monotonic() > deadline:
                raise NotInTime(f"{topic} cannot be read to its end")
            for message in consumer.consume(_MOST, 0.2):
                error, partition, offset, value = (
                    message.error(), message.partition(), message.offset(), message.value(),
                )  # fmt: skip
                if error is not None or partition is None or offset is None or not isinstance(value, bytes):
                    raise KafkaException(error)
                sender, written_to, number = identity_of(value)
                stray = "" if written_to == partition else f" (for partition {written_to})"
                found[partition].append(Stored(offset, sender + stray, number))
    finally:
        consumer.close()
    return found


def committed(bootstrap: Sequence[str], group: str, topic: str, partitions: int) -> dict[int, int]:
    """What a group has committed, by partition; a partition without a commit is left out."""
    consumer = _consumer(bootstrap, group)
    try:
        wanted = [TopicPartition(topic, partition) for partition in range(partitions)]
        return {each.partition: each.offset for each in consumer.committed(wanted, _ANSWER_S) if each.offset >= 0}
    finally:
        consumer.close()


def _consumer(bootstrap: Sequence[str], group: str = "read-back") -> Consumer:
    return Consumer(
        {"bootstrap.servers": ",".join(bootstrap), "group.id": group, "enable.auto.commit": False, "log_level": 0}
    )


def replica_findings(cluster: Cluster, topic: str, ends: Mapping[int, int], timeout_s: float = 15.0) -> list[str]:
    """What is wrong with the replicas' files once nothing is written any more; `ends` has the end of each partition.

    Every broker that the assignment names has a folder for the partition, with a log in it if there are records, and
    the logs of a partition are the same bytes. Followers have `timeout_s` to take over the last records.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        view = cluster.agreed([topic])
        if view is None:
            found = [f"{topic}: the brokers do not agree on its replicas"]
        else:
            found = [
                f"{topic}-{partition}: {finding}"
                for partition, end in ends.items()
                for finding in compare_replicas(
                    {
                        number: cluster.nodes[number].folder / "data" / f"{topic}-{partition}"
                        for number in view.partitions[topic, partition].replicas
                    },
                    has_records=end > 0,
                )
            ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def compare_replicas(folders: Mapping[int, Path], *, has_records: bool) -> list[str]:
    """What is wrong with the replicas of one partition, by broker."""
    if not folders:
        return ["it has no replicas"]
    found = []
    for number, folder in folders.items():
        if not folder.is_dir():
            found.append(f"broker {number} has no folder")
        elif has_records and not sum(segment.stat().st_size for segment in segments(folder)):
            found.append(f"broker {number} has no log")
    if not found and len({fingerprint(folder) for folder in folders.values()}) > 1:
        found.append(f"brokers {', '.join(map(str, sorted(folders)))} have different logs")
    return found


def fingerprint(folder: Path) -> str:
    """Of the bytes of a partition's log; segments may end elsewhere."""
    digest = hashlib.sha256()
    for segment in segments(folder):
        digest.update(segment.read_bytes())
    return digest.hexdigest()


def segments(folder: Path) -> Sequence[Path]:
    return sorted(folder.glob("*.log"))
