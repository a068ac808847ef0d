"""What can go wrong for a consumer only; the rest of the tree is in `penstock.client.errors`."""

from __future__ import annotations

from penstock.client.consumer.positions import Truncation
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import PenstockError
from penstock.wire.error_codes import ErrorCode


class NoOffset(PenstockError):
    """There is no committed offset to begin with, and auto_offset_reset is "none"."""

    def __init__(self, partitions: list[TopicPartition], group_id: str | None) -> None:
        who = f"group {group_id} has no committed offset" if group_id else "there is no offset"
        super().__init__(
            f"{who} for {', '.join(map(str, partitions))}, and auto_offset_reset is none",
            hint="Seek to where reading shall begin, or set auto_offset_reset to earliest or latest",
        )
        self.partitions = tuple(partitions)
        self.unsought = set(partitions)
        """Those for which nobody has said since where to begin."""


class PositionOutOfRange(PenstockError):
    """The position does not exist (any more), and auto_offset_reset is "none"."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{partition} holds no record at offset {offset}, neither yet nor any more, and auto_offset_reset is none",
            hint="Seek to an offset that exists, or set auto_offset_reset to earliest or latest",
        )
        self.partition = partition
        self.offset = offset


class LogTruncated(PenstockError):
    """Records that were read are gone: the log was cut after its leader changed uncleanly."""

    def __init__(self, truncation: Truncation) -> None:
        partition, position, end_offset = truncation
        super().__init__(
            f"{partition} was read up to offset {position}, but its new leader agrees only up to {end_offset}",
            hint=f"What was read from {end_offset} on is no longer in the log: undo it, then seek to {end_offset}",
        )
        self.partition = partition
        self.position = position
        self.end_offset = end_offset


class RecordUnreadable(PenstockError):
    """The bytes of a partition are damaged, or larger than any fetch may be."""

    def __init__(self, partition: TopicPartition, offset: int, reason: str, hint: str) -> None:
        super().__init__(f"{partition} cannot be read at offset {offset}: {reason}", hint=hint)
        self.partition = partition
        self.offset = offset


class CommitFailed(PenstockError):
    """The group has moved on: the partitions may be read by another member by now."""

    def __init__(self, group_id: str, reason: str, code: ErrorCode | None) -> None:
        super().__init__(
            f"offsets of group {group_id} were not committed: {reason}",
            code=code,
            hint="Go on polling to take part in the group again; what was not committed is read again by whoever "
            "has the partitions now. If this happens often, handle fewer records at once (max_poll_records) or raise "
            "max_poll_interval_ms",
        )
