"""Batches that claim more offsets than they have records: rejected, and the log stays usable, also after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.wire_client import BEGIN_MS, WireClient, batch_of, make_topic, values_in

from penstock.log.log_loader import open_log
from penstock.log.segment import segment_name
from penstock.log.settings import LogSettings
from penstock.records import HEADER_SIZE, Codec, encode_batch, scan
from penstock.records.compression import compress
from penstock.records.kernel import write_header
from penstock.runtime.files import PosixFiles
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ErrorCode

MOST = 2**31 - 1


def claiming(count: int, codec: Codec) -> bytearray:
    """One record of a few bytes under a header that speaks of `count`."""
    plain = bytes(encode_batch([(BEGIN_MS, b"k", b"v", ())])[HEADER_SIZE:])
    batch = bytearray(HEADER_SIZE) + (compress(codec, plain) if codec else plain)
    write_header(batch, 0, -1, codec, count - 1, BEGIN_MS, BEGIN_MS, -1, -1, -1, count)
    return batch


def test_false_offset_spans_are_rejected_and_the_log_stays_usable(tmp_path: Path) -> None:
    settings = {"log.dirs": str(tmp_path), "log.index.interval.bytes": "0"}
    with EmbeddedBroker(settings=settings) as embedded, WireClient(embedded.port) as client:
        topic = make_topic(embedded.broker)
        assert client.produce(topic, batch_of(b"first")).base_offset == 0
        for codec in Codec:
            for batches in (claiming(MOST, codec) * 3, claiming(MOST, codec), claiming(2, codec)):
                outcome = client.produce(topic, batches)
                assert outcome.error_code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE), codec
        for number in range(1, 5):
            assert client.produce(topic, batch_of(b"next")).base_offset == number
    with EmbeddedBroker(settings=settings) as embedded, WireClient(embedded.port) as client:
        assert values_in(client.fetch(topic).records) == [b"first"] + [b"next"] * 4
        assert client.produce(topic, batch_of(b"last")).base_offset == 5


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_took_such_claims_before_they_were_rejected_still_opens(tmp_path: Path, clean: bool) -> None:
    """As it was left: a segment under an offset that its batches do not reach from below, its indexes empty."""
    folder, base = tmp_path / "t-0", MOST * 3 - MOST
    folder.mkdir()
    data = b""
    for number in range(3):
        batch = claiming(MOST, Codec.GZIP)
        batch[:8] = (number * MOST).to_bytes(8, "big")
        batch[12:16] = bytes(4)
        data += batch
    for name, content in ((segment_name(0), b""), (segment_name(base), data)):
        (folder / f"{name}.log").write_bytes(content)
        (folder / f"{name}.index").write_bytes(b"")
        (folder / f"{name}.timeindex").write_bytes(b"")
    settings = LogSettings(index_interval_bytes=0)
    log = open_log(PosixFiles(), str(folder), settings, clean=clean, recovery_point=0, now_ms=BEGIN_MS).log
    end = log.log_end_offset
    assert end == (3 * MOST if clean else 0), "what was not durable and has a gap before it is cut"
    for _ in range(100):
        log.append(batch_of(b"next"), leader_epoch=0, now_ms=BEGIN_MS)
    log.close()
    again = open_log(PosixFiles(), str(folder), settings, clean=True, now_ms=BEGIN_MS).log
    offset = end
    while (region := again.read(offset, 10**6)) is not None:
        headers = scan(region.read()).headers
        assert [header.base_offset for header in headers] == list(range(offset, offset + len(headers)))
        offset += len(headers)
    assert offset == end + 100
    again.close()
