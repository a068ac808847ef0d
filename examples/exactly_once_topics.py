"""Exactly once, from topic to topic: results and offsets are committed in one transaction of the brokers.

    python examples/exactly_once_topics.py localhost:9092 views results
    penstock consume results --from-beginning --exit --isolation-level read_committed

A crash leaves both or neither: the transaction is aborted when its time is over, or as soon as the next program with
the same transactional id starts. Readers of committed records never see the results of an aborted transaction. Works
with any Kafka that has transactions (0.11 or newer).
"""

from __future__ import annotations

import argparse

from penstock import Consumer, Producer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="host:port of a broker")
    parser.add_argument("topic")
    parser.add_argument("results", help="topic of the results; a record is sent to it for each record that is read")
    parser.add_argument("--group", default="exactly-once")
    parser.add_argument("--idle-ms", type=int, help="stop if no record arrives for this long")
    options = parser.parse_args()

    with (
        Producer(options.address, transactional_id=options.group) as producer,
        Consumer(
            options.topic,
            bootstrap_servers=options.address,
            group_id=options.group,
            # A static member: after a restart it gets its partitions back at once instead of waiting for its session.
            group_instance_id=f"{options.group}-1",
            auto_offset_reset="earliest",
            exactly_once=True,  # reads committed records, and commits only with the producer's transactions
            consumer_timeout_ms=options.idle_ms,
        ) as consumer,
    ):
        # Aborts what a crash left open: until then the consumer cannot know where to continue.
        producer.init_transactions()
        for batch in consumer.batches(max_records=50):
            with producer.transaction(consumer=consumer):
                for record in batch:
                    producer.send(options.results, record.value, key=record.key)


if __name__ == "__main__":
    main()
