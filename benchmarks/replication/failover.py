"""A leader goes away while clients write: how long they get no acknowledgement, and when another broker leads.

It goes away in three ways. A killed process (SIGKILL) gives itself away on one host: its connections are reset and new
ones refused. A frozen one (SIGSTOP) keeps its connections open and says nothing, and so does one that is cut off, whose
packets are dropped. The page cache survives all of them.

One record after the other is sent every few milliseconds to one partition, by each client in a thread of its own. The
gap is the longest time between two acknowledgements. The leader stays away until every client is acknowledged again.
The broker is not the controller, unless that is what is measured. A record that fails ends the measurement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, Final, Protocol

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from benchmarks.faults.access import CONFLUENT
from benchmarks.faults.access import OURS as OUR_CLIENT
from benchmarks.faults.cluster import Cluster, NoAnswer, Node, WaitTimedOut, until, view_of
from benchmarks.peers.servers import ServerFailed

_PERIOD_S: Final = 0.005
_BEFORE_S: Final = 2.0
_AFTER_S: Final = 0.5
_AGAIN_S: Final = 0.02
_PATIENCE_S: Final = 180.0
_VALUE: Final = bytes(100)
# What decides how soon a broker that says nothing is given up, on either side.
TIMEOUTS: Final = (
    "zookeeper.session.timeout.ms",
    "broker.session.timeout.ms",
    "broker.heartbeat.interval.ms",
    "controller.quorum.fetch.timeout.ms",
    "controller.quorum.election.timeout.ms",
    "replica.lag.time.max.ms",
)


class Fault(Enum):
    KILLED = "leader killed"
    KILLED_CONTROLLER = "leader that is the controller killed"
    FROZEN = "leader frozen"
    CUT = "leader cut off"


@dataclass(frozen=True)
class Failover:
    """`gaps_s` by client; `elected_s` is when the others named another leader, counted from the fault."""

    gaps_s: Mapping[str, float]
    elected_s: float


Acknowledged = Callable[[float, str], None]  # when the record was sent, and what went wrong, if anything


class Sender(Protocol):
    def send(self, sent_s: float, done: Acknowledged) -> None:
        """Send a record; lasts about a period."""

    def end(self, timeout_s: float) -> int:
        """Wait for all that was sent; how many records are not resolved."""


class ConfluentSender:
    def __init__(self, cluster: Cluster, topic: str, settings: Mapping[str, Any]) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._producer = Producer({"bootstrap.servers": ",".join(cluster.bootstrap), **settings})

    def send(self, sent_s: float, done: Acknowledged) -> None:
        def on_delivery(error: Any, _: Any) -> None:
            done(sent_s, "" if error is None else str(error))

        self._producer.produce(self._topic, _VALUE, partition=0, on_delivery=on_delivery)
        self._producer.poll(_PERIOD_S)

    def end(self, timeout_s: float) -> int:
        return self._producer.flush(timeout_s)


class OurSender:
    def __init__(self, cluster: Cluster, topic: str, settings: Mapping[str, Any]) -> None:
        from penstock import Producer

        self._topic = topic
        self._producer: Producer[bytes, bytes] = Producer(cluster.bootstrap, **settings)
        self._open = 0
        self._lock = threading.Lock()

    def send(self, sent_s: float, done: Acknowledged) -> None:
        def ended(delivery: Any) -> None:
            error = delivery.exception(0)
            done(sent_s, "" if error is None else str(error))
            with self._lock:
                self._open -= 1

        with self._lock:
            self._open += 1
        self._producer.send(self._topic, _VALUE, partition=0).add_done_callback(ended)
        time.sleep(_PERIOD_S)

    def end(self, timeout_s: float) -> int:
        from penstock.client.errors import PenstockError

        try:
            self._producer.flush(timeout_s)
        except PenstockError:
            return self._open
        finally:
            self._producer.close(0)
        return 0


SENDERS: Final[dict[str, Callable[[Cluster, str, Mapping[str, Any]], Sender]]] = {
    CONFLUENT: ConfluentSender,
    OUR_CLIENT: OurSender,
}


class Sending(threading.Thread):
    """Sends on and on, and knows when there were acknowledgements."""

    def __init__(self, client: str, sender: Sender) -> None:
        super().__init__(daemon=True, name=client)
        self.acked_s: list[float] = []
        # When the youngest record was sent of those that are acknowledged.
        self.newest_sent_s = 0.0
        self.failures: list[str] = []
        self._sender = sender
        self._is_ending = threading.Event()

    def run(self) -> None:
        try:
            while not self._is_ending.is_set():
                self._sender.send(time.monotonic(), self._done)
        except Exception as error:  # noqa: BLE001 - whatever a library raises here is a record that failed
            self.failures.append(f"{type(error).__name__}: {error}")

    def _done(self, sent_s: float, error: str) -> None:
        if error:
            self.failures.append(error)
        else:
            self.acked_s.append(time.monotonic())
            self.newest_sent_s = max(self.newest_sent_s, sent_s)

    def end(self) -> None:
        """ServerFailed unless every record was acknowledged."""
        self._is_ending.set()
        self.join()
        unresolved = self._sender.end(_PATIENCE_S)
        if unresolved or self.failures:
            count = unresolved or len(self.failures)
            raise ServerFailed(f"{count} records of {self.name} were not delivered {self.failures[:1]}")


def measure(
    cluster: Cluster, topic: str, fault: Fault, producers: Mapping[str, Mapping[str, Any]], turn: int = 0
) -> Failover:
    """The broker is back, and all replicas in sync, when this returns. `turn` chooses among equals. NotInTime."""
    victim = _victim(cluster, fault, turn)
    cluster.make_topic(topic, 1, {}, leader=victim.number)
    sendings = [Sending(name, maker(cluster, topic, producers.get(name, {}))) for name, maker in SENDERS.items()]
    for sending in sendings:
        sending.start()
    try:
        began_s = time.monotonic()
        _until(lambda: all(each.newest_sent_s > began_s + _BEFORE_S for each in sendings), "writes are acknowledged")
        fault_s = time.monotonic()
        _begin(cluster, victim, fault)
        try:
            gone_s = time.monotonic()
            elected_s = _elected(cluster, topic, victim) - fault_s
            _until(lambda: all(each.newest_sent_s > gone_s for each in sendings), f"writes resume ({fault.value})")
            time.sleep(_AFTER_S)
        finally:
            _undo(cluster, victim, fault)
    finally:
        for sending in sendings:
            sending.end()
    victim.wait_until_up()
    until(lambda: cluster.is_whole([topic]), "all replicas are in sync again", _PATIENCE_S)
    return Failover({each.name: longest_s(each.acked_s, fault_s) for each in sendings}, elected_s)


def _victim(cluster: Cluster, fault: Fault, turn: int) -> Node:
    """NotInTime."""
    found: list[int] = []

    def look() -> bool:
        try:
            found.append(cluster.controller())
        except NoAnswer:
            return False
        return True

    _until(look, "there is a controller")
    controller = found[-1]
    if fault is Fault.KILLED_CONTROLLER:
        return cluster.nodes[controller]
    others = [node for number, node in cluster.nodes.items() if number != controller]
    return others[turn % len(others)]


def _begin(cluster: Cluster, victim: Node, fault: Fault) -> None:
    if fault is Fault.FROZEN:
        victim.pause()
    elif fault is Fault.CUT:
        cluster.network.cut(victim.place, None)
    else:
        victim.kill()


def _undo(cluster: Cluster, victim: Node, fault: Fault) -> None:
    if fault is Fault.FROZEN:
        victim.resume()
    elif fault is Fault.CUT:
        cluster.network.heal()
    else:
        victim.launch()


def _elected(cluster: Cluster, topic: str, victim: Node) -> float:
    """When one of the others first named another leader. NotInTime."""
    others = [node for node in cluster.nodes.values() if node is not victim]

    def is_led() -> bool:
        for node in others:
            try:
                leader = view_of(node.place.address, node.port, [topic]).partitions[topic, 0].leader
            except (NoAnswer, KeyError):
                continue
            if leader in cluster.nodes and leader != victim.number:
                return True
        return False

    _until(is_led, "another broker leads")
    return time.monotonic()


def _until(is_so: Callable[[], bool], what: str) -> None:
    """As `until`, but it looks more often. NotInTime."""
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise WaitTimedOut(f"after {_PATIENCE_S:.0f} s it is not so that {what}")
        time.sleep(_AGAIN_S)


def longest_s(acked_s: list[float], since_s: float) -> float:
    """Between two acknowledgements next to each other, of which the later one came after `since_s`."""
    return max((after - before for before, after in pairwise(acked_s) if after > since_s), default=0.0)


def timeouts(cluster: Cluster) -> dict[str, str]:
    """Those of `TIMEOUTS` that the cluster has, as its first broker reports them."""
    admin = AdminClient({"bootstrap.servers": ",".join(cluster.bootstrap), "log_level": 0})
    resource = ConfigResource(ResourceType.BROKER, str(next(iter(cluster.nodes))))
    found = admin.describe_configs([resource])[resource].result(_PATIENCE_S)
    return {name: str(found[name].value) for name in TIMEOUTS if name in found}
