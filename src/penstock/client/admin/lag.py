"""How old the first unread record of a partition is.

Rule: no index knows the time of an offset, so the record itself is fetched: one batch a partition. A broker sends at
least one whole batch a request, and cuts the others to the size asked for; who got none is asked again, first in line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.client.connection import Connection
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import PenstockError, error_for
from penstock.records import RecordError, records_of, scan
from penstock.records.batch import NO_TIMESTAMP
from penstock.wire.api_keys import ApiKey
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.types import BUFFERS

# From 13 on topics go by id; before 4 there were no record batches.
_NEWEST: Final = 12
_OLDEST: Final = 4
_PARTITION_BYTES: Final = 64 * 1024
_TOTAL_BYTES: Final = 16 * 1024 * 1024

Answers = dict[TopicPartition, int | PenstockError]


async def record_times(connection: Connection, offsets: Mapping[TopicPartition, int], left_ms: int) -> Answers:
    """The timestamp (-1: not to be had) of the first record at or after an offset of each partition."""
    if not connection.supports(ApiKey.FETCH, _OLDEST):
        return dict.fromkeys(offsets, NO_TIMESTAMP)
    answers: Answers = {}
    open_ = dict(offsets)
    while open_:
        found = await _fetch_times(connection, open_, left_ms)
        if not found:
            answers.update(dict.fromkeys(open_, NO_TIMESTAMP))
            break
        answers.update(found)
        open_ = {key: offset for key, offset in open_.items() if key not in found}
    return answers


async def _fetch_times(connection: Connection, offsets: Mapping[TopicPartition, int], left_ms: int) -> Answers:
    version = connection.version_of(ApiKey.FETCH, at_most=_NEWEST)
    topics: dict[str, FetchTopic] = {}
    for (topic, partition), offset in offsets.items():
        named = topics.setdefault(topic, FetchTopic(topic=topic, partitions=[]))
        named.partitions.append(
            FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=_PARTITION_BYTES)
        )
    request = FetchRequest(max_bytes=_TOTAL_BYTES, topics=list(topics.values()))
    answer = await connection.request(ApiKey.FETCH, request, version=version, timeout_ms=left_ms)
    if answer.error_code:
        raise error_for(answer.error_code, where=connection.node)
    found: Answers = {}
    for topic in answer.responses:
        for part in topic.partitions:
            key = TopicPartition(topic.topic, part.partition_index)
            if part.error_code:
                found[key] = error_for(part.error_code, where=str(key))
            elif part.high_watermark <= offsets[key]:
                found[key] = NO_TIMESTAMP
            elif isinstance(part.records, BUFFERS):
                time_ms = _first_time(part.records, offsets[key])
                if time_ms is not None:
                    found[key] = time_ms
    return found


def _first_time(data: bytes | bytearray | memoryview, offset: int) -> int | None:
    """None if no whole batch is there."""
    headers = scan(data, verify=False, most=1).headers
    if not headers:
        return None
    header = headers[0]
    try:
        times = [record.timestamp for record in records_of(data, header) if record.offset >= offset]
    except RecordError:
        times = []
    # Compaction may have removed every record from here to the end of the batch.
    return times[0] if times else header.max_timestamp
