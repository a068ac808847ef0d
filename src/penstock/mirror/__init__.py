"""Mirroring: topics of one or many source clusters, copied into a target cluster. Both may be any Kafka.

    from penstock.mirror import Mirror, MirrorSettings

    settings = MirrorSettings.of({"source.live.bootstrap.servers": "live:9092",
                                  "target.bootstrap.servers": "offline:9092", "topics": "views.*"})
    async with Mirror(settings) as mirror:
        await mirror.run()

A topic of its own has the same partitions, offsets, timestamps and records as its source. A shared topic takes the
records of several sources, with their origin in a header. docs/mirror.md has the promises, decision 023 the reasons.
"""

from penstock.mirror.errors import MirrorStopped
from penstock.mirror.mirror import Mirror
from penstock.mirror.settings import MirrorSettings, SourceSettings
from penstock.mirror.status import MirrorStatus, PartitionStatus, mirror_status

__all__ = [
    "Mirror",
    "MirrorSettings",
    "MirrorStatus",
    "MirrorStopped",
    "PartitionStatus",
    "SourceSettings",
    "mirror_status",
]
