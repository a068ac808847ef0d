"""Feedback from the security pipeline to the site: a block list that the site obeys.

    python examples/block_list.py [localhost:9092] --minutes 3
    python examples/block_list.py localhost:9092 --no-judge      (with `penstock pipeline run security` elsewhere)

    site ── views, posts, api_calls ──> security ── suspects ──> site

The site asks its block list before it serves a request, and rejects those of blocked members and programs. The block
list is the topic `suspects` in memory: the pipeline writes a row for each suspect under the key `kind:actor`, and a
tombstone when an actor is no longer suspect. The topic is compacted, so a site that starts reads all of it in a moment,
and then follows.

The site is that of `penstock activity`, with crawlers, spammers and abusers among its members; time runs as fast as the
program does. The judge here counts in plain Python what the pipeline counts in Spark, minute by minute, and passes it
to the pipeline's own judgement. --no-judge leaves that to a pipeline that runs. Without an address the program runs a
broker of its own.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from penstock import Admin, Broker, Consumer, Json, Producer, Text, TopicPartition, TopicSpec
from penstock.activity.events import API_CALLS, POSTS, VIEWS, Kind
from penstock.activity.pipelines.security import PIPELINE, suspects
from penstock.activity.site import Site, rows_between

MINUTE_MS = 60_000
SUSPECTS = PIPELINE.output_topics[0]
JUDGED = {VIEWS.topic: "member", POSTS.topic: "member", API_CALLS.topic: "client"}
_ZEROS = ("views", "led", "seconds", "posts", "linked", "calls", "refused", "failed")


class Follower:
    """Reads topics from their beginning, up to their present end with each call."""

    def __init__(self, address: str, topics: Iterable[str]) -> None:
        with Admin(address) as admin:
            described = admin.describe_topics(list(topics))
        self._partitions = [
            TopicPartition(name, each.index)
            for name, topic in described.items()
            if not isinstance(topic, Exception)
            for each in topic.partitions
        ]
        self._consumer = Consumer(bootstrap_servers=address, key=Text())
        self._consumer.assign(self._partitions)
        self._consumer.seek_to_beginning()

    def new(self) -> list[tuple[str, str, Any]]:
        """Topic, key and value of what has arrived since; None is a tombstone."""
        found = []
        ends = self._consumer.end_offsets(self._partitions)
        while any(self._consumer.position(where) < end for where, end in ends.items()):
            for records in self._consumer.poll(timeout=0.2).values():
                for record in records:
                    value = json.loads(record.value) if record.value else None
                    found.append((record.topic, record.key or "", value))
        return found

    def close(self) -> None:
        self._consumer.close()


class BlockList:
    """The suspects by kind and actor, as the pipeline has published them."""

    def __init__(self, address: str) -> None:
        self._follower = Follower(address, [SUSPECTS])
        self.blocked: dict[str, dict[str, Any]] = {}
        self.follow()

    def follow(self) -> None:
        for _, key, row in self._follower.new():
            if row is None:
                self.blocked.pop(key, None)
            else:
                self.blocked[key] = row

    def has(self, kind: str, actor: str) -> bool:
        return f"{kind}:{actor}" in self.blocked

    def close(self) -> None:
        self._follower.close()


class Judge:
    """The security pipeline in plain Python: counts by minute and actor, judges, publishes what changed."""

    def __init__(self, address: str, producer: Producer[Any, Any]) -> None:
        self._follower = Follower(address, JUDGED)
        self._producer = producer
        self._behaviour: dict[tuple[int, str, str], dict[str, Any]] = defaultdict(
            lambda: {**dict.fromkeys(_ZEROS, 0), "items": set(), "texts": set()}
        )
        self._published: dict[str, dict[str, Any]] = {}

    def judge(self) -> None:
        for topic, _, event in self._follower.new():
            self._count(topic, event)
        found = {f"{row['kind']}:{row['actor']}": row for row in suspects(self._table()).to_pylist()}
        for key, row in found.items():
            if self._published.get(key) != row:
                times = {name: int(row[name].timestamp() * 1000) for name in ("first_seen", "last_seen")}
                self._producer.send(SUSPECTS, {**row, **times}, key=key)
        for key in self._published.keys() - found.keys():
            self._producer.send(SUSPECTS, None, key=key)
        self._producer.flush(30)
        self._published = found

    def _count(self, topic: str, event: dict[str, Any]) -> None:
        kind = JUDGED[topic]
        one = self._behaviour[event["time"] // MINUTE_MS, kind, str(event[kind])]
        if topic == VIEWS.topic:
            one["views"] += 1
            one["led"] += event["referrer"] in ("list", "search")
            one["items"].add(event["item"])
            one["seconds"] |= 1 << (event["time"] // 1000 % 60)
        elif topic == POSTS.topic:
            one["posts"] += 1
            one["linked"] += event["links"] > 0
            one["texts"].add(" ".join(re.sub("[^a-z ]+", "", event["text"].lower()).split(" ")[:6]))
        else:
            one["calls"] += 1
            one["refused"] += event["status"] == 429
            one["failed"] += 400 <= event["status"] < 500 and event["status"] != 429

    def _table(self) -> pa.Table:
        rows = [
            {
                "minute": datetime.fromtimestamp(minute * 60, UTC), "kind": kind, "actor": actor,
                **one, "items": len(one["items"]), "texts": len(one["texts"]),
            }
            for (minute, kind, actor), one in self._behaviour.items()
        ]  # fmt: skip
        numbers = [pa.field(name, pa.int64()) for name in (*_ZEROS, "items", "texts")]
        head = [("minute", pa.timestamp("us", "UTC")), ("kind", pa.string()), ("actor", pa.string())]
        return pa.Table.from_pylist(rows, schema=pa.schema([*head, *numbers]))

    def close(self) -> None:
        self._follower.close()


def serve(site: Site, since_ms: int, producer: Producer[Any, Any], block_list: BlockList) -> Counter[str]:
    """A minute of the site: every request is served, and becomes an event, unless its actor is blocked."""
    counts: Counter[str] = Counter()
    for kind, row in rows_between(site, since_ms, since_ms + MINUTE_MS):
        if kind.topic not in JUDGED:
            continue
        if block_list.has(JUDGED[kind.topic], actor_of(kind, row)):
            counts["rejected"] += 1
            continue
        counts["served"] += 1
        producer.send(kind.topic, row, key=str(row[kind.key]))
    producer.flush(60)
    return counts


def actor_of(kind: Kind, row: dict[str, Any]) -> str:
    return str(row[JUDGED[kind.topic]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", help="host:port of a broker")
    parser.add_argument("--minutes", type=int, default=3)
    parser.add_argument("--rate", type=float, default=150, help="events per second of the site")
    parser.add_argument("--no-judge", action="store_true", help="the pipeline runs elsewhere")
    options = parser.parse_args()
    origin_ms = int(datetime(2026, 1, 5, 12, tzinfo=UTC).timestamp() * 1000)
    site = Site(seed=1, rate=options.rate, origin_ms=origin_ms)
    planted = {str(truth.subject["id"]) for truth in site.truth(origin_ms) if truth.end_ms is None}
    with ExitStack() as stack:
        address = options.address or stack.enter_context(Broker()).address
        with Admin(address) as admin:
            compacted = {"cleanup.policy": "compact"}
            admin.create_topic(TopicSpec(SUSPECTS, 1, config=compacted), exist_ok=True)
            for topic in JUDGED:
                # Events of another year: retention must not take them.
                admin.create_topic(TopicSpec(topic, 2, config={"retention.ms": -1}), exist_ok=True)
        producer = stack.enter_context(Producer(address, value=Json(), key=Text(), linger_ms=5))
        block_list = BlockList(address)
        stack.callback(block_list.close)
        judge = None if options.no_judge else Judge(address, producer)
        for minute in range(options.minutes):
            counts = serve(site, origin_ms + minute * MINUTE_MS, producer, block_list)
            if judge is not None:
                judge.judge()
            block_list.follow()
            right = sum(row["actor"] in planted for row in block_list.blocked.values())
            print(
                f"minute {minute + 1}: {counts['served']} requests served, {counts['rejected']} rejected; "
                f"{len(block_list.blocked)} actors blocked, {right} of them planted",
                flush=True,
            )
        if judge is not None:
            judge.close()
        for key, row in sorted(block_list.blocked.items()):
            print(f"{key}: {row['verdict']}, {row['evidence']}")


if __name__ == "__main__":
    main()
