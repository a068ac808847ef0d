"""The rows of the result: what is compared, in which unit, and the goal for the ratio of ours to Kafka's.

Rows of one measurement stand together. `UNSYNCED_*` are ours with flush settings by which it does not sync either,
beside Kafka as shipped. Failovers have a row for each fault, as each client sees it and as the brokers do.
"""

from __future__ import annotations

from typing import Final

from benchmarks.faults.clients import CONFLUENT
from benchmarks.faults.clients import OURS as OUR_CLIENT
from benchmarks.peers.figures import AT_LEAST, AT_MOST, Work
from benchmarks.replication.contenders import EQUAL, SHIPPED, Setup
from benchmarks.replication.failover import SENDERS, Fault

SIZES: Final = {"100 B": 100, "1 KB": 1000}
DEPTHS: Final = (1, 2, 4, 8, 16, 32, 64)
DEEPEST: Final = DEPTHS[-1]
_BULK: Final = "Big batches with confluent-kafka, acks=all, three replicas"
_REQUESTS: Final = "Requests with one record on one connection, acks=all, three replicas"

PRODUCE: Final = {size: Work(f"produce {size}", "MB/s", AT_LEAST, 1.0, _BULK) for size in SIZES}
PRODUCE_CPU: Final = {size: Work(f"CPU of the cluster per GB, {size}", "s", AT_MOST, None, _BULK) for size in SIZES}
UNSYNCED_PRODUCE: Final = {
    size: Work(f"neither synced: produce {size}", "MB/s", AT_LEAST, None, _BULK) for size in SIZES
}
TRIP_P50: Final = Work("round trip p50", "µs", AT_MOST, 1.0, _REQUESTS)
TRIP_P99: Final = Work("round trip p99", "µs", AT_MOST, 1.0, _REQUESTS)
TRIP_CPU: Final = Work("CPU of the cluster per request, one at a time", "µs", AT_MOST, 0.5, _REQUESTS)
DEPTH: Final = {
    depth: Work(f"{depth} in flight", "1/s", AT_LEAST, 3.0 if depth == DEEPEST else None, _REQUESTS) for depth in DEPTHS
}
DEPTH_CPU: Final = Work(f"CPU of the cluster per request, {DEEPEST} in flight", "µs", AT_MOST, 0.5, _REQUESTS)
UNSYNCED_P50: Final = Work("neither synced: round trip p50", "µs", AT_MOST, 0.6, _REQUESTS)
UNSYNCED_P99: Final = Work("neither synced: round trip p99", "µs", AT_MOST, 0.6, _REQUESTS)
UNSYNCED_DEEP: Final = Work(f"neither synced: {DEEPEST} in flight", "1/s", AT_LEAST, None, _REQUESTS)
IDLE: Final = Work("CPU of the cluster, idle, of one core", "%", AT_MOST, None, _REQUESTS)

ELECTION: Final = "until another broker leads"
_GOALS: Final = {(SHIPPED.name, Fault.KILLED, CONFLUENT): 0.2}


def _failover(setup: Setup, fault: Fault, seen_by: str) -> Work:
    what = seen_by if seen_by == ELECTION else f"longest gap of {'our client' if seen_by == OUR_CLIENT else seen_by}"
    return Work(
        f"{fault.value}: {what}", "s", AT_MOST, _GOALS.get((setup.name, fault, seen_by)), f"Failover, {setup.name}"
    )


SETUPS: Final = (SHIPPED, EQUAL)
FAILOVER: Final = {
    (setup.name, fault, seen_by): _failover(setup, fault, seen_by)
    for setup in SETUPS
    for fault in Fault
    for seen_by in (*SENDERS, ELECTION)
}

ROWS: Final = (
    *(row for size in SIZES for row in (PRODUCE[size], PRODUCE_CPU[size])),
    *UNSYNCED_PRODUCE.values(),
    TRIP_P50,
    TRIP_P99,
    TRIP_CPU,
    *DEPTH.values(),
    DEPTH_CPU,
    UNSYNCED_P50,
    UNSYNCED_P99,
    UNSYNCED_DEEP,
    IDLE,
    *FAILOVER.values(),
)
