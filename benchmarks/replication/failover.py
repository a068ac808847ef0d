"""The leader of a partition is killed with SIGKILL: how long confluent-kafka gets no acknowledgement.

Rule: the client's settings and the cluster's are as shipped, but for acks=all. One record after the other is sent every
few milliseconds to one partition; the gap is the longest time between two acknowledgements. Records that fail end the
measurement: none may.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any, Final

from confluent_kafka import Producer

from benchmarks.faults.asking import NoAnswer
from benchmarks.faults.clusters import Cluster, NotInTime, until
from benchmarks.peers.servers import ServerFailed

_PERIOD_S: Final = 0.005
_BEFORE_S: Final = 2.0
_AFTER: Final = 200
_PATIENCE_S: Final = 90.0
_VALUE: Final = bytes(100)


class _Sending:
    """Sends on and on, and knows when there were acknowledgements."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.acked_s: list[float] = []
        self.failures: list[str] = []
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": ",".join(cluster.bootstrap), "acks": "all", "log_level": 0})

    def _done(self, error: Any, _: Any) -> None:
        if error is None:
            self.acked_s.append(time.monotonic())
        else:
            self.failures.append(str(error))

    def go_on_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._producer.produce(self._topic, _VALUE, partition=0, on_delivery=self._done)
            self._producer.poll(_PERIOD_S)

    def end(self) -> None:
        unsent = self._producer.flush(_PATIENCE_S)
        if unsent or self.failures:
            raise ServerFailed(f"{unsent or len(self.failures)} records were not delivered {self.failures[:1]}")


def gap_s(cluster: Cluster, topic: str) -> float:
    """The broker is back, and all replicas in sync, when this returns. NotInTime."""
    cluster.make_topic(topic, 1, {})
    view = cluster.agreed([topic])
    if view is None:
        raise NoAnswer(f"the brokers do not agree on who leads {topic}")
    leader = cluster.nodes[view.partitions[topic, 0].leader]
    sending = _Sending(cluster, topic)
    sending.go_on_for(_BEFORE_S)
    if not sending.acked_s:
        raise NotInTime("nothing was acknowledged even before the leader was killed")
    killed_s = time.monotonic()
    leader.kill()
    while sum(moment > killed_s for moment in sending.acked_s[-_AFTER:]) < _AFTER:
        sending.go_on_for(0.1)
        if time.monotonic() > killed_s + _PATIENCE_S:
            raise NotInTime(f"nothing is acknowledged {_PATIENCE_S:.0f} s after the leader was killed")
    sending.end()
    leader.launch()
    leader.wait_until_up()
    until(lambda: cluster.is_whole([topic]), "all replicas are in sync again", _PATIENCE_S)
    return longest_s(sending.acked_s, killed_s)


def longest_s(acked_s: list[float], since_s: float) -> float:
    """Between two acknowledgements next to each other, of which the later one came after `since_s`."""
    return max((after - before for before, after in pairwise(acked_s) if after > since_s), default=0.0)
