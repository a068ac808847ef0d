"""A producer with an encoder and a partitioner of its own: the log of a site's searches.

    python examples/own_encoder.py [localhost:9092]

A search is `id | user | keyword | time`. The key is the kind of user, and the partitioner keeps one kind in one
partition, so that a reader of one kind of user reads one partition. Without an address the program runs a broker
of its own.
"""

from __future__ import annotations

import argparse
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import quote, unquote

from penstock import Admin, Broker, Consumer, Producer, Text, TopicSpec

PARTITIONS = 4
SEARCHES = [
    ("developer", "chenhui", "china"),
    ("buyer", "alice", "red shoes"),
    ("developer", "bob", "kafka"),
    ("seller", "carol", "price of shoes"),
    ("buyer", "dave", "shoes | sale"),
]


@dataclass(frozen=True)
class Search:
    number: int
    user: str
    keyword: str
    time_ms: int


class SearchFormat:
    """Both directions: producers call `encode`, consumers `decode`."""

    def encode(self, topic: str, value: Search | None) -> bytes | None:
        if value is None:
            return None
        fields = (str(value.number), value.user, value.keyword, str(value.time_ms))
        return "|".join(quote(field, safe=" ") for field in fields).encode()

    def decode(self, topic: str, data: bytes) -> Search:
        number, user, keyword, time_ms = map(unquote, data.decode().split("|"))
        return Search(int(number), user, keyword, int(time_ms))


def by_kind_of_user(topic: str, key: bytes | None, partition_count: int) -> int:
    """The same partition for the same kind, in every process and every run: Python's own hash() would not do."""
    return zlib.crc32(key or b"") % partition_count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", help="host:port of a broker")
    parser.add_argument("--topic", default="searches")
    options = parser.parse_args()
    with ExitStack() as stack:
        address = options.address or stack.enter_context(Broker()).address
        with Admin(address) as admin:
            admin.create_topic(TopicSpec(options.topic, PARTITIONS), exist_ok=True)

        with Producer(address, key=Text(), value=SearchFormat(), partitioner=by_kind_of_user) as producer:
            deliveries = [
                producer.send(options.topic, Search(number, user, keyword, 1_357_539_454_000 + number), key=kind)
                for number, (kind, user, keyword) in enumerate(SEARCHES)
            ]
            stored = [delivery.result(30) for delivery in deliveries]
            ends = {(each.topic, each.partition): each.offset for each in stored}

        with Consumer(bootstrap_servers=address, key=Text(), value=SearchFormat()) as consumer:
            consumer.assign([(options.topic, partition) for partition in range(PARTITIONS)])
            consumer.seek_to_beginning()
            while ends:
                record = next(consumer)
                print(f"partition {record.partition}  {record.key:9}  {record.value}")
                if ends.get((record.topic, record.partition)) == record.offset:
                    del ends[record.topic, record.partition]


if __name__ == "__main__":
    main()
