"""Reading records for a page: some from each partition, from an offset, a time or the end.

A page is a bounded amount of work: at most `limit` records and some megabytes, whatever the topic holds. Records of
aborted transactions are left out unless they are asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from penstock.client.admin import AsyncAdmin, OffsetResult
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.connection import Connection
from penstock.client.errors import OffsetOutOfRange, PenstockError, error_for
from penstock.client.fetch_state import AbortedTransactions, as_batches
from penstock.client.leader_requests import ask_leaders, fetch_partitions
from penstock.records import BatchHeader, Buffer, CorruptBatch, RecordError, records_of, scan
from penstock.wire.fetch_session import PartitionFetch, records_in
from penstock.wire.schemas.fetch import PartitionData

DECOMPRESSED_LIMIT: Final = 64 * 1024 * 1024
_MOST_RECORDS: Final = 1_000_000
"""Of a batch that is decoded: tiny records of a few bytes would take gigabytes as objects."""
LANE: Final = "console"
_PAGE_BYTES: Final = 8 * 1024 * 1024
_PARTITION_BYTES: Final = 512 * 1024
_ROUNDS: Final = 40
_PAGE_S: Final = 5.0
"""What is not found by then is on a later page: there may be gigabytes of aborted records before it."""
_TIMEOUT_MS: Final = 15_000

Isolation = Literal["read_committed", "read_uncommitted"]


class Shown(NamedTuple):
    """A record on a page. `problem` says why a batch cannot be read; then there is no record."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    problem: str = ""


class Batches(NamedTuple):
    """What a fetch brought of one partition."""

    buffer: Buffer
    headers: list[BatchHeader]
    """The batches that a reader may see."""
    next_offset: int
    end: int
    """Where a reader stops for now: the high watermark, or the last stable offset."""
    problem: str = ""


class PageOfRecords(NamedTuple):
    """Records, the newest first, and where the partitions continue."""

    records: list[Shown]
    first: Mapping[int, int]
    """Where each partition was read from."""
    next: Mapping[int, int]
    """The offset after the last one that was looked at."""
    starts: Mapping[int, int]
    ends: Mapping[int, int]

    @property
    def is_at_end(self) -> bool:
        return all(self.next.get(index, 0) >= end for index, end in self.ends.items())

    @property
    def is_empty_topic(self) -> bool:
        return all(self.starts.get(index, 0) >= end for index, end in self.ends.items())


async def ends_of(
    admin: AsyncAdmin, partitions: Iterable[TopicPartition], isolation: Isolation
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The first offset of each partition and the one after its last. Raises if a partition does not answer."""
    wanted = list(partitions)
    starts, ends = await asyncio.gather(
        admin.list_offsets(dict.fromkeys(wanted, "earliest"), timeout_ms=_TIMEOUT_MS),
        admin.list_offsets(dict.fromkeys(wanted, "latest"), isolation_level=isolation, timeout_ms=_TIMEOUT_MS),
    )
    return _offsets(starts), _offsets(ends)


def _offsets(found: Mapping[TopicPartition, OffsetResult | PenstockError]) -> dict[TopicPartition, int]:
    offsets = {}
    for partition, result in found.items():
        if isinstance(result, PenstockError):
            raise result
        offsets[partition] = result.offset
    return offsets


async def offsets_at(admin: AsyncAdmin, ends: Mapping[TopicPartition, int], time_ms: int) -> dict[TopicPartition, int]:
    """The first offset at or after a time in each partition, by the brokers' time index; its end if none is."""
    found = _offsets(await admin.list_offsets(dict.fromkeys(ends, time_ms), timeout_ms=_TIMEOUT_MS))
    return {partition: found[partition] if found[partition] >= 0 else end for partition, end in ends.items()}


async def fetch(
    admin: AsyncAdmin,
    positions: Mapping[TopicPartition, int],
    *,
    isolation: Isolation,
    partition_bytes: int = _PARTITION_BYTES,
    max_bytes: int = _PAGE_BYTES,
    max_wait_ms: int = 0,
    timeout_ms: int = _TIMEOUT_MS,
) -> dict[TopicPartition, Batches | PenstockError]:
    """One fetch of each partition from its position on."""

    async def ask(
        connection: Connection, led: list[TopicPartition], left_ms: int
    ) -> dict[TopicPartition, PartitionData | PenstockError]:
        wanted = {each: PartitionFetch(positions[each], partition_bytes) for each in led}
        answers, _ = await fetch_partitions(
            connection, wanted, timeout_ms=left_ms + max_wait_ms, max_bytes=max_bytes, max_wait_ms=max_wait_ms,
            min_bytes=1, isolation_level=int(isolation == "read_committed"),
        )  # fmt: skip
        return {
            each: error_for(data.error_code, where=str(each)) if data.error_code else data
            for each, data in answers.items()
        }

    answers: Mapping[TopicPartition, Any] = await ask_leaders(
        admin.cluster, "reading records", positions, ask, timeout_ms=timeout_ms + max_wait_ms, lane=LANE
    )
    return {
        each: data if isinstance(data, PenstockError) else batches_of(data, positions[each], isolation)
        for each, data in answers.items()
    }


def batches_of(data: PartitionData, position: int, isolation: Isolation) -> Batches:
    """The batches of a response from a position on. A damaged one ends them, with the reason."""
    end = data.last_stable_offset if isolation == "read_committed" else data.high_watermark
    end = data.high_watermark if end < 0 else end
    records = records_in(data)
    if not records:
        return Batches(b"", [], position, end)
    try:
        buffer = as_batches(records, DECOMPRESSED_LIMIT)
    except RecordError as error:
        return Batches(b"", [], position, end, str(error))
    found = scan(buffer)
    hidden = AbortedTransactions((one.producer_id, one.first_offset) for one in data.aborted_transactions or ())
    headers: list[BatchHeader] = []
    next_offset = position
    for header in found.headers:
        is_hidden = hidden.hides(buffer, header) if isolation == "read_committed" else header.is_control
        if header.next_offset <= position:
            continue
        next_offset = header.next_offset
        if not is_hidden:
            headers.append(header)
    problem = "" if found.problem in (None, "incomplete") or found.headers else str(found.problem)
    return Batches(buffer, headers, next_offset, end, problem)


def shown_records(partition: int, batches: Batches, position: int, limit: int) -> list[Shown]:
    """The records of batches from a position on, at most `limit`. A batch that cannot be read is one line."""
    found: list[Shown] = []
    for header in batches.headers:
        if len(found) >= limit:
            break
        try:
            if header.record_count > _MOST_RECORDS:
                raise CorruptBatch(f"a batch of {header.record_count:,} records is not shown", header.position)
            records = records_of(batches.buffer, header, DECOMPRESSED_LIMIT)
        except RecordError as error:
            found.append(Shown(partition, header.base_offset, header.max_timestamp, None, None, (), str(error)))
            continue
        found += [
            Shown(
                partition, each.offset, each.timestamp, _copied(each.key), _copied(each.value),
                tuple((_name(name), _copied(value)) for name, value in each.headers),
            )
            for each in records
            if each.offset >= position
        ]  # fmt: skip
    return found[:limit]


def _copied(data: Buffer | None) -> bytes | None:
    return None if data is None else bytes(data)


def _name(name: str | bytes) -> str:
    return name if isinstance(name, str) else bytes(name).decode("utf-8", "replace")


async def read_page(
    admin: AsyncAdmin,
    topic: str,
    partitions: Iterable[int],
    *,
    limit: int,
    isolation: Isolation = "read_committed",
    start: Mapping[int, int] | None = None,
    time_ms: int | None = None,
) -> PageOfRecords:
    """Up to `limit` records from these offsets, from a time, or by default the newest ones."""
    keys = [TopicPartition(topic, index) for index in partitions]
    if not keys:
        return PageOfRecords([], {}, {}, {}, {})
    starts, ends = await ends_of(admin, keys, isolation)
    if start is not None:
        positions = {each: max(starts[each], min(start.get(each.partition, starts[each]), ends[each])) for each in keys}
    elif time_ms is not None:
        positions = await offsets_at(admin, ends, time_ms)
    else:
        back = max(1, limit)
        positions = {each: max(starts[each], ends[each] - back) for each in keys}
    newest = start is None and time_ms is None
    first = {each.partition: offset for each, offset in positions.items()}
    records = await _read(admin, positions, ends, limit, isolation, newest=newest)
    return PageOfRecords(
        records,
        first,
        {each.partition: offset for each, offset in positions.items()},
        {each.partition: offset for each, offset in starts.items()},
        {each.partition: offset for each, offset in ends.items()},
    )


async def _read(
    admin: AsyncAdmin,
    positions: dict[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    limit: int,
    isolation: Isolation,
    *,
    newest: bool,
) -> list[Shown]:
    """Reads from the positions, which are moved on behind the records that are returned, the newest first."""
    by_partition: dict[TopicPartition, list[Shown]] = {each: [] for each in positions}
    share = limit if newest else max(1, -(-limit // len(positions)))
    deadline = time.monotonic() + _PAGE_S
    for _ in range(_ROUNDS):
        open_ = {each: at for each, at in positions.items() if at < ends[each] and len(by_partition[each]) < share}
        if not open_ or time.monotonic() > deadline:
            break
        per_partition = max(32 * 1024, min(_PARTITION_BYTES, _PAGE_BYTES // len(open_)))
        answers = await fetch(admin, open_, isolation=isolation, partition_bytes=per_partition)
        for each, answer in answers.items():
            if isinstance(answer, OffsetOutOfRange):
                positions[each] = ends[each]  # deleted meanwhile
                continue
            if isinstance(answer, PenstockError):
                raise answer
            at, room = positions[each], share - len(by_partition[each])
            found = await asyncio.to_thread(shown_records, each.partition, answer, at, room)
            by_partition[each] += found
            if answer.problem:
                by_partition[each].append(Shown(each.partition, at, -1, None, None, (), answer.problem))
                positions[each] = at + 1
            elif len(found) >= room:
                positions[each] = found[-1].offset + 1
            else:
                positions[each] = answer.next_offset if answer.next_offset > at else ends[each]
    records = [record for part in by_partition.values() for record in part]
    records.sort(key=lambda record: (record.timestamp, record.partition, record.offset), reverse=True)
    return records[:limit] if newest else records
