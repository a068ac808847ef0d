"""The simple consumer: you say which partition and from which offset, and remember the offsets yourself.

    python examples/simple_consumer.py [localhost:9092] --topic views --offsets offsets.json
    python examples/simple_consumer.py [localhost:9092] --topic views --since 2026-01-31T12:00

There is no group, and nothing is stored at the broker. This program keeps its offsets in a file; run it again and it
continues there, delete the file and it reads everything again. Without an address it runs a broker of its own and
writes some records first.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from penstock import Admin, Broker, Producer, SimpleConsumer
from penstock.client.errors import OffsetOutOfRange


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", help="host:port of a broker")
    parser.add_argument("--topic", default="views")
    parser.add_argument("--offsets", type=Path, help="file that keeps the offsets between runs")
    parser.add_argument("--since", type=datetime.fromisoformat, help="begin at a time instead")
    options = parser.parse_args()
    with ExitStack() as stack:
        address = options.address or some_records(stack.enter_context(Broker()), options.topic)
        with Admin(address) as admin:
            partitions = [each.index for each in admin.describe_topic(options.topic).partitions]
        kept = json.loads(options.offsets.read_text()) if options.offsets and options.offsets.exists() else {}
        with SimpleConsumer(address) as consumer:
            for partition in partitions:
                [begin] = consumer.offsets_before(options.topic, partition, options.since or "earliest")
                [end] = consumer.offsets_before(options.topic, partition, "latest")
                offset = int(kept.get(str(partition), begin))
                kept[str(partition)] = read(consumer, options.topic, partition, offset, end)
        if options.offsets:
            options.offsets.write_text(json.dumps(kept))


def read(consumer: SimpleConsumer[bytes, bytes], topic: str, partition: int, offset: int, end: int) -> int:
    """Print the records of a partition up to its end; returns where to continue."""
    while offset < end:
        try:
            fetched = consumer.fetch(topic, partition, offset)
        except OffsetOutOfRange as error:  # retention has deleted these records
            print(f"partition {partition}: offset {offset} is gone: {error}")
            [offset] = consumer.offsets_before(topic, partition, "earliest")
            continue
        for record in fetched.records:
            print(f"partition {partition}  offset {record.offset}  {record.value.decode()}")
        offset = fetched.next_offset
    return offset


def some_records(broker: Broker, topic: str) -> str:
    broker.create_topic(topic, 2)
    with Producer(broker.address) as producer:
        for number in range(6):
            producer.send(topic, f"page {number}", partition=number % 2)
    return broker.address


if __name__ == "__main__":
    main()
