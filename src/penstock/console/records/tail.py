"""Live tail: new records as they arrive.

A page can show some tens of records a second. Where more arrive, the newest are shown and the others counted, so a tail
neither falls behind nor stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final, NamedTuple

from penstock.client.admin import AsyncAdmin
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import OffsetOutOfRange, PenstockError
from penstock.console.records.reading import Isolation, Shown, ends_of, fetch, shown_records
from penstock.console.records.search import Matcher

_WAIT_MS: Final = 1_000
_PAUSE_S: Final = 0.25
_SHOWN_AT_ONCE: Final = 25
_PARTITION_BYTES: Final = 256 * 1024
_RETRY_S: Final = 1.0


class Arrivals(NamedTuple):
    """Records that have arrived, the oldest first. An empty one says that the tail is alive."""

    records: list[Shown]
    skipped: int
    positions: Mapping[int, int]
    problem: str = ""


async def tail(
    admin: AsyncAdmin,
    topic: str,
    partitions: Iterable[int],
    *,
    isolation: Isolation = "read_committed",
    matcher: Matcher | None = None,
    start: Mapping[int, int] | None = None,
) -> AsyncIterator[Arrivals]:
    """What arrives from now on, or from offsets on, until the reader leaves."""
    keys = [TopicPartition(topic, index) for index in partitions]
    _, ends = await ends_of(admin, keys, isolation)
    positions = {each: (start or {}).get(each.partition, end) for each, end in ends.items()}
    yield Arrivals([], 0, _numbers(positions))
    while True:
        try:
            answers = await fetch(
                admin, positions, isolation=isolation, partition_bytes=_PARTITION_BYTES, max_wait_ms=_WAIT_MS
            )
            found, skipped = await _taken(answers, positions, matcher)
        except OffsetOutOfRange:
            # Deleted, or the topic was created again: go on with what is there now.
            _, positions = await ends_of(admin, keys, isolation)
            yield Arrivals([], 0, _numbers(positions), "records were deleted; continuing at the end")
            continue
        except PenstockError as error:
            yield Arrivals([], 0, _numbers(positions), error.message)
            if not error.retriable:
                return
            await asyncio.sleep(_RETRY_S)
            continue
        yield Arrivals(found, skipped, _numbers(positions))
        await asyncio.sleep(_PAUSE_S)


def _numbers(positions: Mapping[TopicPartition, int]) -> dict[int, int]:
    return {each.partition: at for each, at in positions.items()}


async def _taken(
    answers: Mapping[TopicPartition, object], positions: dict[TopicPartition, int], matcher: Matcher | None
) -> tuple[list[Shown], int]:
    """The newest records of the answers, and how many others there were; moves the positions on."""
    records: list[Shown] = []
    for each, answer in answers.items():
        if isinstance(answer, PenstockError):
            raise answer
        at = positions[each]
        count = sum(header.record_count for header in answer.headers)  # type: ignore[attr-defined]
        found = await asyncio.to_thread(shown_records, each.partition, answer, at, max(1, count))  # type: ignore[arg-type]
        records += found if matcher is None else [record for record in found if matcher.matches(record)]
        positions[each] = max(at, answer.next_offset)  # type: ignore[attr-defined]
    records.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
    return records[-_SHOWN_AT_ONCE:], max(0, len(records) - _SHOWN_AT_ONCE)
