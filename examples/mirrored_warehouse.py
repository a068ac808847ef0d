"""A live cluster, mirrored to an offline one that feeds the loads into a warehouse.

    python examples/mirrored_warehouse.py [--live localhost:9092 --offline localhost:9192] --warehouse warehouse

    site ──> live cluster ── mirror ──> offline cluster ── loads ──> table

Loads read a lot at once, which the live cluster should not feel: they ask the offline one. The mirror keeps offsets, so
`_partition` and `_offset` of a row in the table say where its record is in either cluster, and the table's own commits
say how far it is. Kill the program at any moment and start it again: the mirror continues at the end of the offline
cluster's logs, the next load at the end of the table, and every record is in the table once.

Here mirror and loads are in one program. In production they are commands, each on machines of its own:

    penstock mirror run --source live=live:9092 --target offline:9092 -t 'views.*'
    penstock load views --bootstrap-server offline:9092 --follow

Without addresses the program runs both clusters itself. Needs pyarrow and deltalake.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from contextlib import ExitStack

from penstock import Admin, Broker, Consumer, Producer, TopicPartition, TopicSpec
from penstock.mirror import Mirror, MirrorSettings, mirror_status
from penstock.spark.tables import Warehouse, create, from_mapping, load

PAGES = ("/", "/jobs", "/people", "/news", "/groups")
SCHEMA = "user string not null, page string, at timestamp_ms"
_LOOK_S = 0.2


def write_views(address: str, topic: str, count: int) -> None:
    """What the site does: a record for every page that somebody looks at."""
    with Producer(address) as producer:
        for _ in range(count):
            user = f"user-{random.randrange(50)}"
            view = {"user": user, "page": random.choice(PAGES), "at": int(time.time() * 1000)}
            producer.send(topic, json.dumps(view), key=user)


def ends_of(address: str, topic: str) -> dict[int, int]:
    """Where the partitions of a topic end."""
    with Admin(address) as admin, Consumer(bootstrap_servers=address) as consumer:
        partitions = [TopicPartition(topic, each.index) for each in admin.describe_topic(topic).partitions]
        return {partition.partition: end for partition, end in consumer.end_offsets(partitions).items()}


async def until_mirrored(settings: MirrorSettings, running: asyncio.Task[None], ends: dict[int, int]) -> None:
    """Wait until the offline cluster has everything up to these ends of the live one."""
    while True:
        if running.done():
            running.result()
            raise RuntimeError("the mirror has ended")
        status = await mirror_status(settings)
        stopped = [each for each in status.partitions if each.state == "stopped"]
        if stopped:
            raise RuntimeError(f"{stopped[0].topic}-{stopped[0].partition} is not mirrored: {stopped[0].detail}")
        positions = {each.partition: each.position or 0 for each in status.partitions}
        if all(positions.get(partition, -1) >= end for partition, end in ends.items()):
            return
        await asyncio.sleep(_LOOK_S)


def load_table(warehouse: Warehouse, offline: str, topic: str) -> str:
    """Loads what is new in the offline cluster; the table is created before the first load."""
    if topic not in warehouse.names():
        declared = {"name": topic, "topic": topic, "format": "json", "schema": SCHEMA, "event_time": "at"}
        create(warehouse, from_mapping(declared), offline)
    report = load(warehouse, topic, offline)
    spans = ", ".join(map(str, report.spans))
    return f"{report.counts.landed} rows in {report.commits} commits ({spans or 'nothing new'})"


async def run(options: argparse.Namespace, live: str, offline: str) -> None:
    topic, warehouse = options.topic, Warehouse(options.warehouse)
    with Admin(live) as admin:
        admin.create_topic(TopicSpec(topic, options.partitions), exist_ok=True)
    settings = MirrorSettings.of(
        {
            "name": f"{topic}-to-warehouse",
            "topics": topic,
            "refresh.interval.ms": 500,
            "source.live.bootstrap.servers": live,
            "target.bootstrap.servers": offline,
        }
    )
    async with Mirror(settings) as mirror:
        running = asyncio.create_task(mirror.run())
        for number in range(1, options.loads + 1):
            await asyncio.to_thread(write_views, live, topic, options.records)
            ends = await asyncio.to_thread(ends_of, live, topic)
            await until_mirrored(settings, running, ends)
            print(f"load {number}: {await asyncio.to_thread(load_table, warehouse, offline, topic)}", flush=True)
        running.cancel()
        await asyncio.wait([running])
    rows = warehouse.open(topic).store.read(["_partition"]).column("_partition").to_pylist()
    for partition, end in sorted(ends.items()):
        print(f"partition {partition}: {rows.count(partition)} rows, the live log ends at {end}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", help="host:port of a broker of the live cluster")
    parser.add_argument("--offline", help="host:port of a broker of the offline cluster")
    parser.add_argument("--topic", default="views")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--warehouse", default="warehouse")
    parser.add_argument("--records", type=int, default=500, help="written to the live cluster before each load")
    parser.add_argument("--loads", type=int, default=3)
    options = parser.parse_args()
    if options.loads < 1 or options.records < 0 or options.partitions < 1:
        parser.error("at least one load and one partition are needed")
    with ExitStack() as stack:
        live = options.live or stack.enter_context(Broker()).address
        offline = options.offline or stack.enter_context(Broker()).address
        asyncio.run(run(options, live, offline))


if __name__ == "__main__":
    main()
