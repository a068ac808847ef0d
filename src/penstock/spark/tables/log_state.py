"""What a driver asks of the cluster: where the topic's partitions begin and end, and which offsets belong to times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.client.errors import PenstockError
from penstock.spark.tables.planning import LogState
from penstock.spark.tables.ranges import Span

if TYPE_CHECKING:
    from penstock.client.admin import Admin


def log_state(admin: Admin, topic: str, isolation: str) -> LogState:
    """Raises UnknownTopic..."""
    described = admin.describe_topic(topic)
    partitions = [(topic, part.index) for part in described.partitions]
    begins = _asked(admin, dict.fromkeys(partitions, "earliest"), "read_uncommitted")
    ends = _asked(admin, dict.fromkeys(partitions, "latest"), isolation)
    return LogState(
        topic,
        described.topic_id.hex() if described.topic_id else "",
        {index: (begins[index], ends[index]) for _, index in partitions},
    )


def offsets_at(admin: Admin, state: LogState, time_ms: int) -> dict[int, int]:
    """The first offset at or after a time, by partition; the end of the log where no record is that late.

    Never outside of the log.
    """
    found = _asked(admin, {(state.topic, index): time_ms for index in state.bounds}, "read_uncommitted")
    offsets: dict[int, int] = {}
    for index, (begin, end) in state.bounds.items():
        offset = found[index]
        offsets[index] = end if offset < 0 else min(end, max(begin, offset))
    return offsets


def offsets_at_all(admin: Admin, state: LogState, times_ms: Iterable[int]) -> dict[int, list[int]]:
    """`offsets_at` for times in order; where timestamps are not in order, offsets are made to be."""
    columns: dict[int, list[int]] = {index: [] for index in state.bounds}
    for time_ms in times_ms:
        for index, offset in offsets_at(admin, state, time_ms).items():
            before = columns[index][-1] if columns[index] else offset
            columns[index].append(max(before, offset))
    return columns


def stored_bytes(admin: Admin, state: LogState, spans: Sequence[Span]) -> int:
    """About how many bytes these offsets take in the log, by the mean of their partitions; 0 where nobody says."""
    try:
        answers = admin.describe_log_dirs()
    except PenstockError:
        return 0
    sizes: dict[int, int] = {}
    for folders in answers.values():
        if isinstance(folders, PenstockError):
            continue
        for folder in folders:
            for (topic, index), size in folder.sizes.items():
                if topic == state.topic:
                    sizes[index] = max(size, sizes.get(index, 0))
    means = {index: sizes.get(index, 0) / max(1, end - begin) for index, (begin, end) in state.bounds.items()}
    return round(sum(span.size * means.get(span.partition, 0.0) for span in spans))


def _asked(admin: Admin, wanted: Mapping[tuple[str, int], Any], isolation: str) -> dict[int, int]:
    answers: dict[int, int] = {}
    for partition, answer in admin.list_offsets(wanted, isolation_level=isolation).items():
        if isinstance(answer, PenstockError):
            raise answer
        answers[partition.partition] = answer.offset
    return answers
