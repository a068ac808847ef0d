"""A consumer group with several threads: message streams, each an iterator for one thread.

    python examples/group_consumer.py [localhost:9092] --topic views --group counters --threads 2

The partitions of the topic are spread over all threads of all processes that run this with the same group; start a
second process, or kill one, and they are spread again. Another group reads everything for itself. Without an address
the program runs a broker of its own and writes some records first. It ends when nothing arrives for --idle-ms.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from penstock import Broker, MessageStreams, Producer
from penstock.client.consumer.message_streams import MessageStream

NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}  # a demonstration need not wait for further members


def count(name: str, stream: MessageStream[bytes, bytes]) -> Counter[str]:
    """Counts the pages of a stream, in a thread of its own."""
    pages: Counter[str] = Counter()
    for record in stream:
        pages[record.value.decode()] += 1
        # In one write: two threads print.
        sys.stdout.write(f"{name}: partition {record.partition} offset {record.offset}: {record.value.decode()}\n")
    return pages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", help="host:port of a broker")
    parser.add_argument("--topic", default="views")
    parser.add_argument("--group", default="page-counters")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--idle-ms", type=int, default=3_000)
    options = parser.parse_args()
    with ExitStack() as stack:
        address = options.address or some_records(stack.enter_context(Broker(settings=NO_DELAY)), options.topic)
        streams = stack.enter_context(
            MessageStreams(
                options.topic,
                streams=options.threads,
                timeout_ms=options.idle_ms,
                bootstrap_servers=address,
                group_id=options.group,
                auto_offset_reset="earliest",
            )
        )
        names = [f"thread {number}" for number in range(options.threads)]
        with ThreadPoolExecutor(options.threads) as threads:
            total = sum(threads.map(count, names, streams), Counter[str]())
        for page, views in total.most_common():
            print(f"{views:6} {page}")


def some_records(broker: Broker, topic: str) -> str:
    broker.create_topic(topic, 4)
    with Producer(broker.address) as producer:
        for number in range(40):
            producer.send(topic, f"/page/{number % 5}", partition=number % 4)
    return broker.address


if __name__ == "__main__":
    main()
