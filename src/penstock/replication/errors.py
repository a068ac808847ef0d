"""Errors of replication. The broker turns them into protocol error codes."""

from __future__ import annotations

from penstock.log.errors import LogError


class NotLeaderError(LogError):
    """Another broker leads the partition, or none does."""

    def __init__(self, topic: str, index: int) -> None:
        super().__init__(f"this broker does not lead {topic}-{index}; refresh the metadata to find its leader")


class NotEnoughReplicas(LogError):
    """Fewer replicas are in sync than min.insync.replicas; nothing was appended."""

    def __init__(self, demanded: int, insync: int) -> None:
        super().__init__(f"min.insync.replicas={demanded}, in-sync replicas: {insync}")


class NotEnoughReplicasAfterAppend(LogError):
    """Replicas fell out of sync after the append: the records are in the log and may be committed later, or never."""

    def __init__(self, demanded: int, insync: int) -> None:
        super().__init__(f"appended, but min.insync.replicas={demanded}, in-sync replicas: {insync}")


class CommitTimedOut(LogError):
    """In-sync replicas did not fetch the records in time; they are in the log and may be committed later."""

    def __init__(self, end_offset: int) -> None:
        super().__init__(f"in-sync replicas did not reach offset {end_offset} in time")
