"""Errors of replication. The broker turns them into protocol error codes."""

from __future__ import annotations

from penstock.log.errors import LogError


class NotLeaderError(LogError):
    """Another broker leads the partition, or nobody does."""

    def __init__(self, topic: str, index: int) -> None:
        super().__init__(f"{topic}-{index} is not led by this broker; ask the cluster who leads it")


class NotEnoughReplicas(LogError):
    """The topic demands more replicas in sync than there are; nothing was appended."""

    def __init__(self, demanded: int, insync: int) -> None:
        super().__init__(f"min.insync.replicas={demanded}, in sync: {insync}")


class NotEnoughReplicasAfterAppend(LogError):
    """Replicas fell out of sync after the append: the records are in the log, and may be committed later or never."""

    def __init__(self, demanded: int, insync: int) -> None:
        super().__init__(f"appended, but min.insync.replicas={demanded}, in sync: {insync}")


class CommitTimedOut(LogError):
    """The replicas in sync did not get the records in time; they are in the log, and may be committed later."""

    def __init__(self, end_offset: int) -> None:
        super().__init__(f"the replicas in sync did not reach offset {end_offset} in time")
