"""Record batches for clients that only read older formats (magic 0 and 1).

A batch is decompressed and written again: one batch of some kilobytes may take up to `MAX_SET_BYTES` (64 MiB). One
response converts a few megabytes, or a single larger batch, on a worker thread, one response at a time. Converted
bytes that have not been sent yet are bounded: above the limit, readers get no records and ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.broker.errors import EXPECTED, error_code_of
from penstock.log.segment import Region
from penstock.records import Codec, TooLarge, UnsupportedCodec, scan
from penstock.records.legacy import downconvert
from penstock.runtime.threads import Outcome, Workers
from penstock.wire.schemas.fetch import PartitionData

FIRST_VERSION_WITH_BATCHES: Final = 4
FIRST_VERSION_WITH_ZSTD: Final = 10
CONVERTED_BYTES: Final = 1024 * 1024
"""Bytes of the log that are converted for one fetch; more only if the first batch is larger."""
SCANNED_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the log that are searched for zstd for one fetch."""

_RESPONSE_BYTES: Final = 4 * 1024 * 1024
MAX_SET_BYTES: Final = 64 * 1024 * 1024
_MAX_BYTES: Final = 128 * 1024 * 1024


class _Converted(bytearray):
    """Converted records, which count as held until they are freed."""

    release: Callable[[int], None] = lambda _: None

    def __del__(self) -> None:
        self.release(len(self))


class DownConverter:
    """The conversions of a broker. `held` is the size of converted records that have not been sent."""

    def __init__(self, workers: Workers, max_bytes: int = _MAX_BYTES) -> None:
        self._workers = workers
        self._max_bytes = max_bytes
        self.held = 0

    async def convert(self, rows: Sequence[tuple[PartitionData, int]], version: int) -> None:
        """Replace the regions in a response by records that this version supports, from the given offsets on."""
        magic = 0 if version < 2 else 1
        left = _RESPONSE_BYTES
        for data, offset in rows:
            region = data.records
            if not isinstance(region, Region):
                continue
            data.records = b""
            if self.held > self._max_bytes or left <= 0:
                continue
            try:
                records = await self._run(partial(_down, region.read(), magic, offset, left))
            except TooLarge as error:
                # The first batch is too large for what is left; it is an error if it is too large for any response.
                if left == _RESPONSE_BYTES:
                    data.error_code = error_code_of(error)
                continue
            except EXPECTED as error:
                data.error_code = error_code_of(error)
                continue
            left -= len(records)
            self.held += len(records)
            converted = _Converted(records)
            converted.release = self._release
            data.records = converted

    async def _run(self, work: Callable[[], bytes]) -> bytes:
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def take(outcome: Outcome[bytes]) -> None:
            if done.done():
                return
            if outcome.error is None:
                done.set_result(outcome.result())
            else:
                done.set_exception(outcome.error)

        self._workers.run(work, take)
        return await done

    def _release(self, size: int) -> None:
        self.held -= size


def _down(stored: bytes, magic: int, offset: int, left: int) -> bytes:
    try:
        return downconvert(stored, magic, limit=left, from_offset=offset)
    except TooLarge:
        if left < _RESPONSE_BYTES:
            raise
    first = scan(stored, verify=False).headers[0]
    return downconvert(stored[: first.position + first.size], magic, limit=MAX_SET_BYTES, from_offset=offset)


def without_zstd(region: Region) -> Region:
    """The part of a region before its first zstd batch; UnsupportedCodec if that is empty."""
    for header in scan(region.read(), verify=False).headers:
        if header.codec == Codec.ZSTD:
            if header.position == 0:
                raise UnsupportedCodec("zstd needs Fetch version 10 or higher")
            return region._replace(size=header.position)
    return region
