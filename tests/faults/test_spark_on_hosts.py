"""Three hosts, each with a broker and a ZooKeeper, two of them with a Spark worker, too; the driver is on a fourth.

A host vanishes in the middle of a stream, and takes a broker, a ZooKeeper and an executor with it. Nobody's connection
is closed. The stream continues with what is left, and writes every record once.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.faults import namespaces
from benchmarks.faults.cluster import Cluster
from benchmarks.faults.namespaces import Hosts, NoNamespaces
from benchmarks.faults.penstock_cluster import PenstockCluster
from tests.demands import lacking
from tests.spark.cluster import stories
from tests.spark.cluster.drivers import Driver, classic
from tests.spark.cluster.standalone import Standalone
from tests.timeouts import PATIENCE_S, until

from penstock import Producer

_ROOT = Path(__file__).resolve().parents[2]
_TOPIC, _PARTITIONS, _RECORDS = "views", 4, 2_400
# How soon the driver gives up an executor that says nothing. As shipped these are minutes.
_PROMPT = {
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "6s",
    "spark.network.timeoutInterval": "1s",
}


@pytest.mark.long
def test_a_host_vanishes_with_broker_zookeeper_and_executor_and_a_stream_writes_everything_once(tmp_path: Path) -> None:
    if not namespaces.is_in_a_namespace():
        _run_again_in_a_namespace(tmp_path)
        return
    hosts = Hosts(delay_ms=1.0)
    with PenstockCluster(hosts, tmp_path / "cluster") as cluster:
        cluster.make_topic(_TOPIC, _PARTITIONS, {"min.insync.replicas": "2"})
        with Producer(",".join(cluster.bootstrap), acks="all") as producer:
            for number in range(_RECORDS):
                producer.send(_TOPIC, b"%d" % number, partition=number % _PARTITIONS)
        own = namespaces.GATEWAY
        places = [cluster.nodes[number].place for number in (1, 2)]
        spark = Standalone(tmp_path, places, own)
        try:
            folder = tmp_path / "driver"
            settings = {**_PROMPT, "spark.driver.host": own, "spark.driver.bindAddress": own}
            driver = Driver(classic, spark.url, str(folder), settings)
            try:
                _stream(cluster, hosts, spark, driver, tmp_path / "stream")
            finally:
                driver.stop()
        finally:
            spark.stop()


def _stream(cluster: Cluster, hosts: Hosts, spark: Standalone, driver: Driver, folder: Path) -> None:
    bootstrap = ",".join(cluster.bootstrap)
    read_on = driver.tells(stories.readers, bootstrap, _TOPIC)
    assert [Path(place).parents[1].name for place in read_on] == ["worker-0", "worker-1"]
    running = driver.begins(
        stories.to_parquet, bootstrap, _TOPIC, str(folder), maxOffsetsPerTrigger=str(_RECORDS // 12)
    )
    commits = folder / "checkpoint" / "commits"
    until(lambda: running.done() or len(list(commits.glob("[0-9]*"))) >= 2, "two batches are written")
    assert not running.done(), running.exception()
    hosts.cut(cluster.nodes[1].place, None)
    _, batches = running.result(PATIENCE_S)
    assert batches == 12
    found = driver.tells(stories.parquet, str(folder))
    assert [(partition, offset) for partition, offset, _ in found] == [
        (partition, offset) for partition in range(_PARTITIONS) for offset in range(_RECORDS // _PARTITIONS)
    ]
    assert sorted(int(value) for _, _, value in found) == list(range(_RECORDS))
    hosts.heal()
    until(lambda: cluster.is_whole([_TOPIC]), "the broker and the ZooKeeper of the host are back")


def _run_again_in_a_namespace(folder: Path) -> None:
    try:
        options = ["-q", "-n0", "-m", "long", "-p", "no:cacheprovider", f"--basetemp={folder / 'inside'}"]
        command = namespaces.in_a_namespace([sys.executable, "-m", "pytest", *options, __file__])
    except NoNamespaces as error:
        lacking("namespaces", f"no hosts can be made here: {error}")
    done = subprocess.run(command, env=namespaces.inside(), cwd=_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout, done.stdout[-2000:]
