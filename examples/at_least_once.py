"""At least once: the offset is committed after the work. A crash in between repeats the record; none is lost.

    python examples/at_least_once.py localhost:9092 views results.txt

For work that may be repeated: setting a value, filling a cache, an insert that ignores duplicates.
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
    parser.add_argument("--group", default="at-least-once")
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
            results.write(f"{record.value}\n")
            try:
                consumer.commit(record)  # only now: an uncommitted record is read again
            except CommitFailed:
                continue  # the group was rebalanced; the new owner of the partition repeats the record


if __name__ == "__main__":
    main()
