"""The source files that a warm record and a broker's death pass through, so that these paths grow only on purpose.

A record: a `send` whose consumer waits for it, after two hundred others, with one broker in the same process. A file
counts if functions of it are called meanwhile, on any thread, with most records. Timers are left out.

A death: in the simulator, the leader of a partition is killed. A file counts if a function of it is called before the
new leader is known everywhere that was not called in the seconds before: what a cluster does anyway (fetches,
heartbeats, probes) is left out, and so are `TRANSPORT` files.

If a path has become shorter, remove the file from the list. If it has become longer, first ask whether the file is
needed there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import FrameType

from penstock.broker.broker import Broker
from penstock.cluster.controller.topics import NewTopic
from penstock.testing.simulation.cluster import SimulatedCluster, SimulatedNode
from penstock.testing.simulation.run import SETTINGS, deterministic
from penstock.testing.simulation.scheduler import Scheduler, Trace

RECORD_FILES_MAX = 45
DEATH_FILES_MAX = 20

RECORD_PATH = {
    "client/producer/producer.py",
    "client/producer/core.py",
    "client/producer/accumulator.py",
    "client/producer/producer_batch.py",
    "client/producer/sender.py",
    "client/producer/direct_sender.py",
    "client/cluster_metadata.py",
    "client/connection.py",
    "client/fetch_state.py",
    "client/background.py",
    "client/consumer/core.py",
    "client/consumer/fetcher.py",
    "client/consumer/reader.py",
    "client/consumer/consumer.py",
    "wire/codec.py",
    "wire/framing.py",
    "wire/protocol.py",
    "wire/fetch_session.py",
    "runtime/socket_io.py",
    "runtime/socket_connection.py",
    "runtime/files.py",
    "runtime/clock.py",
    "runtime/threads.py",
    "records/batch.py",
    "broker/router.py",
    "broker/request.py",
    "broker/broker_only.py",
    "broker/handlers/produce.py",
    "broker/handlers/fetch.py",
    "broker/fetch_session.py",
    "broker/metrics.py",
    "broker/broker.py",
    "cluster/image_propagation.py",
    "replication/partition.py",
    "replication/replica_manager.py",
    "replication/isr.py",
    "log/partition_log.py",
    "log/segment.py",
    "log/index.py",
    "log/validation.py",
    "log/producer_state.py",
    "log/leader_epochs.py",
    "log/group_commit.py",
}
TIMERS = {"broker/background_tasks.py", "runtime/socket_limits.py"}
DEATH_PATH = {
    "cluster/membership/failure_detection.py",
    "cluster/membership/broker_lifecycle.py",
    "cluster/tree/tree.py",
    "cluster/tree/layout.py",
    "cluster/controller/controller.py",
    "cluster/controller/failover.py",
    "cluster/controller/store.py",
    "cluster/controller/election.py",
    "cluster/controller/transaction.py",
    "cluster/image.py",
    "cluster/image_propagation.py",
    "broker/cluster_services.py",
    "broker/handlers/push_image.py",
    "broker/broker.py",
    "replication/replica_manager.py",
    "replication/partition.py",
    "replication/isr.py",
    "replication/follower.py",
    "replication/fetch_state.py",
    "coordination/coordinator_runtime.py",
}
# The connections that the death ends and opens, and the log under a partition: every request and record uses them.
TRANSPORT = ("client/", "wire/", "runtime/", "log/", "broker/router.py", "broker/request.py")

# In a process of its own: threads of the broker and the clients are traced from their start.
RECORD_PROGRAM = """
import collections, sys, threading, time
seen, found = set(), collections.Counter()
is_traced = False

def trace(frame, event, _):
    if is_traced and event == "call" and "/penstock/" in (name := frame.f_code.co_filename):
        seen.add(name.rpartition("/penstock/")[2])

threading.setprofile(trace)
sys.setprofile(trace)
from penstock import Broker, Consumer, Producer

def roundtrip():
    producer.send("t", b"v")
    producer.flush()
    next(records)

options = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 60_000}
with Broker() as broker:
    broker.create_topic("t", 1)
    with Producer(broker.address) as producer, Consumer("t", bootstrap_servers=broker.address, **options) as consumer:
        records = iter(consumer)
        for _ in range(200):
            roundtrip()
        for _ in range(40):
            time.sleep(0.05)
            seen.clear()
            is_traced = True
            roundtrip()
            time.sleep(0.01)
            is_traced = False
            found.update(seen)
print(*[file for file, times in found.items() if times >= 30], sep="\\n")
"""


def test_a_warm_record_passes_through_the_listed_files() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RECORD_PROGRAM], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split()) - TIMERS
    assert (sorted(found - RECORD_PATH), sorted(RECORD_PATH - found)) == ([], [])
    assert len(RECORD_PATH) <= RECORD_FILES_MAX


def test_a_broker_s_death_passes_through_the_listed_files() -> None:
    with deterministic(Trace()):
        files = death_files()
    assert (sorted(files - DEATH_PATH), sorted(DEATH_PATH - files)) == ([], [])
    assert len(DEATH_PATH) <= DEATH_FILES_MAX


def test_the_drawings_of_the_architecture_page_show_files_of_the_paths() -> None:
    record, death = drawn_files("The path of a record"), drawn_files("A broker's death")
    assert record, "the drawing is found"
    assert record - RECORD_PATH == set(), "a file that takes no part"
    assert death == {file.rpartition("/")[2] for file in DEATH_PATH}


def drawn_files(title: str) -> set[str]:
    """The files of a section's drawing; those of a broker's death without their folders, which are not repeated."""
    page = (Path(__file__).parent.parent / "docs" / "architecture.md").read_text()
    drawing = page.partition(f"## {title}\n")[2].split("```")[1]
    files = re.findall(r"[\w/]+\.py", drawing)
    return {file.rpartition("/")[2] for file in files} if "death" in title else set(files)


class CallTrace:
    """The functions of Penstock, without the simulator, that are called while it is installed: (file, name)."""

    def __init__(self) -> None:
        self.calls: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        _, package, file = frame.f_code.co_filename.rpartition("/penstock/")
        if event == "call" and package and not file.startswith("testing/"):
            self.calls.add((file, frame.f_code.co_qualname))


def death_files() -> set[str]:
    cluster = SimulatedCluster(Scheduler(3), 3, brokers=3, clients=0, settings=SETTINGS, folders=1)
    scheduler = cluster.scheduler
    cluster.start()
    assert scheduler.run_until(lambda: cluster.all_serving() and bool(_controllers(cluster)), limit_s=30)
    (controller,) = _controllers(cluster)
    leader, follower = (node for node in cluster.nodes if node is not controller)
    _create_topic(cluster, controller, [leader, follower, controller])
    before, death = CallTrace(), CallTrace()
    sys.setprofile(before)
    scheduler.run_until(limit_s=scheduler.now_s + 6)
    sys.setprofile(death)
    leader.kill()
    is_led = scheduler.run_until(
        lambda: _leads(follower) and _follows(controller, follower), limit_s=scheduler.now_s + 30
    )
    sys.setprofile(None)
    cluster.kill_all()
    assert is_led
    return {file for file, _ in death.calls - before.calls if not file.startswith(TRANSPORT)}


def _controllers(cluster: SimulatedCluster) -> list[SimulatedNode]:
    return [node for node in cluster.nodes if _broker(node).cluster.controller is not None]


def _broker(node: SimulatedNode) -> Broker:
    assert node.broker is not None
    return node.broker


def _create_topic(cluster: SimulatedCluster, controller: SimulatedNode, replicas: list[SimulatedNode]) -> None:
    """A topic of one partition with these replicas, the first of which leads."""
    wanted = NewTopic("t", assignments={0: tuple(_broker(node).services.node_id for node in replicas)})
    active = _broker(controller).cluster.controller
    assert active is not None
    creating = controller.spawn(active.create_topics([wanted]))
    assert cluster.scheduler.run_until(creating.done, limit_s=cluster.scheduler.now_s + 30)
    assert creating.result()[0].error is None
    assert cluster.scheduler.run_until(lambda: _leads(replicas[0]), limit_s=cluster.scheduler.now_s + 30)
    cluster.scheduler.run_until(limit_s=cluster.scheduler.now_s + 5)


def _leads(node: SimulatedNode) -> bool:
    partition = _broker(node).replicas.get("t", 0)
    return partition is not None and partition.is_leader


def _follows(node: SimulatedNode, leader: SimulatedNode) -> bool:
    partition = _broker(node).replicas.get("t", 0)
    return partition is not None and partition.leader == _broker(leader).services.node_id
