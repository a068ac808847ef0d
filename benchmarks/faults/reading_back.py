"""All that a cluster has in the end, read back by a client that took no part, and the replicas' files side by side."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
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


def _consumer(bootstrap: Sequence[str]) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": ",".join(bootstrap), "group.id": "read-back", "enable.auto.commit": False,
            "log_level": 0,
        }
    )  # fmt: skip


def different_replicas(cluster: Cluster, topic: str, partitions: int, timeout_s: float = 15.0) -> list[str]:
    """The partitions whose files are not the same bytes on every broker, though nothing is written any more."""
    deadline = time.monotonic() + timeout_s
    while True:
        different = [
            f"{topic}-{partition}"
            for partition in range(partitions)
            if len({fingerprint(node.folder / "data" / f"{topic}-{partition}") for node in cluster.nodes.values()}) > 1
        ]
        if not different or time.monotonic() > deadline:
            return different
        time.sleep(0.2)


def fingerprint(folder: Path) -> str:
    """Of the bytes of a partition's log; segments may end elsewhere."""
    digest = hashlib.sha256()
    for segment in segments(folder):
        digest.update(segment.read_bytes())
    return digest.hexdigest()


def segments(folder: Path) -> Sequence[Path]:
    return sorted(folder.glob("*.log"))
