"""What a partition holds, read by nothing but the protocol: no client of ours judges itself."""

from __future__ import annotations

from tests.broker.wire_client import WireClient, fetch_request, records_in

from penstock.records import Record
from penstock.wire.protocol import ApiKey


def stored(port: int, topic: str, partition: int = 0) -> list[Record]:
    """All records of a partition."""
    records: list[Record] = []
    with WireClient(port) as client:
        while True:
            offset = records[-1].offset + 1 if records else 0
            answer = client.ask(ApiKey.FETCH, fetch_request({(topic, partition): offset}), 12)
            data = answer.responses[0].partitions[0]
            found = [record for record in records_in(data.records or b"") if record.offset >= offset]
            if not found:
                return records
            records += found


def stored_values(port: int, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in stored(port, topic, partition)]
