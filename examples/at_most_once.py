"""At most once: the offset is committed before the work. A crash in between loses the record; none is processed twice.

    python examples/at_most_once.py localhost:9092 views results.txt

For work that must not be repeated and is worthless when late: a notification, a rate counter.
"""

from __future__ import annotations

import argparse

from penstock import Consumer, Text
from penstock.client.consumer import CommitFailed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="host:port of a broker")
    parser.add_argument("topic")
    parser.add_argument("results", help="file to which a line is appended for each record")
    parser.add_argument("--group", default="at-most-once")
    parser.add_argument("--idle-ms", type=int, help="stop if no record arrives for this long")
    options = parser.parse_args()

    with (
        Consumer(
            options.topic,
            bootstrap_servers=options.address,
            group_id=options.group,
            # A static member: after a restart it gets its partitions back at once instead of waiting for its session.
            group_instance_id=f"{options.group}-1",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=options.idle_ms,
            value=Text(),
        ) as consumer,
        open(options.results, "a", buffering=1) as results,
    ):
        for record in consumer:
            try:
                consumer.commit(record)  # from here on it counts as processed
            except CommitFailed:
                continue  # the group was rebalanced; the new owner of the partition gets the record
            results.write(f"{record.value}\n")


if __name__ == "__main__":
    main()
