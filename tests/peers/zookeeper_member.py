"""Our ZooKeeperConsumer as a process: connect, group, consumer id, topic, session timeout in ms.

Every record is a line of its partition, offset and value, written before its offset is committed.
"""

from __future__ import annotations

import signal
import sys

from penstock import ZooKeeperConsumer


def main(connect: str, group: str, consumer: str, topic: str, session_ms: str) -> None:
    with ZooKeeperConsumer(
        topic,
        zookeeper_connect=connect,
        group_id=group,
        consumer_id=consumer,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        rebalance_backoff_ms=300,
        zookeeper_session_timeout_ms=int(session_ms),
        timeout_ms=100,
    ) as streams:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        while True:
            for record in streams[0]:
                sys.stdout.write(f"{record.partition} {record.offset} {record.value.decode()}\n")
                sys.stdout.flush()
            streams.commit()


if __name__ == "__main__":
    main(*sys.argv[1:])
