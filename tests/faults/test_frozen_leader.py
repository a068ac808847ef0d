"""A leader is frozen (SIGSTOP): its connections stay open and say nothing, while another broker is elected.

The clients' request time-outs are longer than the test may take: they have gone on with the new leader by themselves.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from benchmarks.faults import namespaces
from benchmarks.faults.penstock_cluster import PenstockCluster
from tests.timeouts import NEVER_MS, PATIENCE_MS, PATIENCE_S, until

from penstock import Consumer, Producer

_TOPIC = "frozen"


@pytest.mark.long
def test_a_frozen_leader_is_left_for_the_next_one_and_nothing_is_stored_twice(tmp_path: Path) -> None:
    with PenstockCluster(namespaces.network(with_cuts=False), tmp_path) as cluster:
        controller = cluster.controller()
        victim = next(node for number, node in cluster.nodes.items() if number != controller)
        cluster.make_topic(_TOPIC, 1, {}, leader=victim.number)
        until(lambda: cluster.is_whole([_TOPIC]), "all replicas are in sync")
        with (
            Producer(cluster.bootstrap, request_timeout_ms=NEVER_MS, delivery_timeout_ms=NEVER_MS) as in_batches,
            Producer(cluster.bootstrap, request_timeout_ms=NEVER_MS, delivery_timeout_ms=NEVER_MS) as one_by_one,
            Consumer(
                _TOPIC, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", group_id="readers",
                request_timeout_ms=NEVER_MS,
            ) as consumer,
        ):  # fmt: skip
            for number in range(20):  # until the thread that waits sends by itself
                one_by_one.send(_TOPIC, b"one %d" % number).result(PATIENCE_S)
            in_batches.send(_TOPIC, b"batch 0").result(PATIENCE_S)
            seen = [next(consumer).value for _ in range(21)]
            victim.pause()
            try:
                waiting = threading.Thread(target=lambda: one_by_one.send(_TOPIC, b"one 20").result(PATIENCE_S))
                waiting.start()
                deliveries = [in_batches.send(_TOPIC, b"batch %d" % number) for number in range(1, 50)]
                assert [delivery.exception(PATIENCE_S) for delivery in deliveries] == [None] * 49
                waiting.join(PATIENCE_S)
                while len(seen) < 71:
                    for records in consumer.poll(PATIENCE_MS).values():
                        seen += [record.value for record in records]
            finally:
                victim.resume()
    assert sorted(seen) == sorted([*(b"one %d" % n for n in range(21)), *(b"batch %d" % n for n in range(50))])
