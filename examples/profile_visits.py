"""Semantic partitioning: all visits of a member's profile go to one partition, so one consumer counts them alone.

    python examples/profile_visits.py [localhost:9092]

The key is the member whose profile was visited, and the partition is member_id % partitions. Each consumer of the group
keeps the counts of its members in its own memory: nobody else sees their visits, in whatever order the events arrive
and however many consumers there are. When a partition moves, the new owner needs the counts, so each consumer stores
them in a compacted topic with the same partitions, and reads that partition first.

Without an address the program runs a broker of its own.
"""

from __future__ import annotations

import argparse
import random
import threading
from collections import Counter
from contextlib import ExitStack

from penstock import Admin, Broker, Consumer, Producer, Text, TopicPartition, TopicSpec

PARTITIONS = 6


def by_member(topic: str, key: bytes | None, partition_count: int) -> int:
    if key is None:
        raise ValueError("a visit needs the member whose profile was visited as its key")
    return int(key) % partition_count


class VisitCounter(threading.Thread):
    """A consumer of the group: counts the visits of its members until it is told to stop."""

    def __init__(self, address: str, topic: str, group: str, name: str) -> None:
        super().__init__(name=name)
        self._address, self._topic, self._group = address, topic, group
        self._stopping = threading.Event()
        self._counts: Counter[int] = Counter()
        self.partitions: set[int] = set()
        self.counted = 0
        self.counts: Counter[int] = Counter()
        """What it had counted when it was stopped."""

    def run(self) -> None:
        with (
            Consumer(
                self._topic,
                bootstrap_servers=self._address,
                group_id=self._group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                key=Text(),
            ) as consumer,
            Producer(self._address, partitioner=by_member) as producer,
        ):

            @consumer.on_assign
            def take_over(partitions: list[TopicPartition]) -> None:
                self._counts.update(self._stored(partitions))
                self.partitions |= {partition for _, partition in partitions}

            @consumer.on_revoke
            def give_up(partitions: list[TopicPartition]) -> None:
                gone = {partition for _, partition in partitions}
                self.partitions -= gone
                for member in [each for each in self._counts if each % PARTITIONS in gone]:
                    del self._counts[member]

            while not self._stopping.is_set():
                changed = set()
                for records in consumer.poll(timeout=0.2).values():
                    for record in records:
                        member = int(record.key or "0")
                        self._counts[member] += 1
                        self.counted += 1
                        changed.add(member)
                for member in changed:
                    producer.send(f"{self._topic}-counts", str(self._counts[member]), key=str(member))
                if changed:
                    producer.flush(30)  # before the commit: a crash counts some visits again, and loses none
                    consumer.commit()
            self.counts = Counter(self._counts)

    def _stored(self, partitions: list[TopicPartition]) -> dict[int, int]:
        """The counts that the owners before have stored."""
        found: dict[int, int] = {}
        with Consumer(bootstrap_servers=self._address, key=Text(), value=Text()) as reader:
            counts = [TopicPartition(f"{self._topic}-counts", partition) for _, partition in partitions]
            reader.assign(counts)
            reader.seek_to_beginning()
            ends = reader.end_offsets(counts)
            while any(reader.position(where) < end for where, end in ends.items()):
                for records in reader.poll(timeout=0.2).values():
                    found.update((int(record.key or "0"), int(record.value or "0")) for record in records)
        return found

    def stop(self) -> None:
        self._stopping.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", help="host:port of a broker")
    parser.add_argument("--topic", default="profile-visits")
    parser.add_argument("--group", default="visit-counters")
    parser.add_argument("--visits", type=int, default=2_000)
    parser.add_argument("--consumers", type=int, default=3)
    options = parser.parse_args()
    with ExitStack() as stack:
        settings = {"group.initial.rebalance.delay.ms": "0"}
        address = options.address or stack.enter_context(Broker(settings=settings)).address
        with Admin(address) as admin:
            admin.create_topic(TopicSpec(options.topic, PARTITIONS), exist_ok=True)
            compacted = {"cleanup.policy": "compact"}
            admin.create_topic(TopicSpec(f"{options.topic}-counts", PARTITIONS, config=compacted), exist_ok=True)

        counters = [
            VisitCounter(address, options.topic, options.group, f"consumer {number}")
            for number in range(options.consumers)
        ]
        for counter in counters:
            counter.start()
        while not (
            all(each.partitions for each in counters) and sum(len(each.partitions) for each in counters) == PARTITIONS
        ):
            threading.Event().wait(0.05)
        chance = random.Random(1)
        visits = Counter(int(chance.paretovariate(1)) % 50 for _ in range(options.visits))
        with Producer(address, partitioner=by_member) as producer:
            for member in visits.elements():
                producer.send(options.topic, f"visitor {chance.randrange(1_000)}", key=str(member))
        while sum(counter.counted for counter in counters) < options.visits:
            threading.Event().wait(0.05)
        for counter in counters:
            counter.stop()
            counter.join()

    for counter in counters:
        print(f"{counter.name}: {len(counter.counts)} members, {sum(counter.counts.values())} visits")
    for member, number in sum((counter.counts for counter in counters), Counter[int]()).most_common(5):
        owners = [counter.name for counter in counters if member in counter.counts]
        print(f"member {member}: {number} visits, counted by {', '.join(owners)}")


if __name__ == "__main__":
    main()
