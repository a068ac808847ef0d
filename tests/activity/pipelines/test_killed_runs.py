"""Processes that run a pipeline, killed with SIGKILL at any moment; then one that is not, and the books add up."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.activity.pipelines.engine_stories import KEPT, kept_windows, plain_windows, send, table, traffic
from tests.timeouts import PATIENCE_S

from penstock.activity.cluster import Cluster
from penstock.activity.events import REQUESTS, SERVERS
from penstock.activity.pipelines.engine import results, status
from penstock.activity.pipelines.engine.backfill import backfill
from penstock.activity.pipelines.engine.runner import PipelinesRun
from penstock.activity.pipelines.operations import PIPELINE
from penstock.testing import Broker

ROOT = Path(__file__).parents[3]
KILLS = int(os.environ.get("PENSTOCK_KILLS", "2"))
SEED = int(os.environ.get("PENSTOCK_SEED", "7"))


def killed_run(address: str, warehouse: str, after_s: float) -> int:
    """A run in a process of its own, killed so long after its first batch; how many batches it had done."""
    command = [sys.executable, "-m", "penstock", "pipeline", "run", "operations", "-b", address, "-w", warehouse]
    process = subprocess.Popen(
        [*command, "--master", "local[2]"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while not (batches := batches_of(warehouse, process.pid)):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        return batches
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)


def batches_of(warehouse: str, pid: int) -> int:
    found = [one for one in status.read_all(warehouse) if one.pid == pid]
    return max((query.batch_id + 1 for one in found for query in one.queries), default=0)


@pytest.mark.long
def test_runs_killed_at_any_moment_count_no_event_twice_and_lose_none(spark: SparkSession, tmp_path: Path) -> None:
    warehouse, chance = str(tmp_path / "warehouse"), random.Random(SEED)
    events = traffic(120, slow=("server-2", 70, 90))
    with Broker(str(tmp_path / "data"), settings=KEPT) as broker:
        for kind in (REQUESTS, SERVERS):
            broker.create_topic(kind.topic, 2)
        size = len(events) // (KILLS + 1)
        for number in range(KILLS):
            send(broker.address, events[number * size : (number + 1) * size])
            assert killed_run(broker.address, warehouse, chance.uniform(0, 4))
            assert not status.read_all(warehouse)[0].is_alive
        send(broker.address, events[KILLS * size :])
        run = PipelinesRun(spark, [PIPELINE], Cluster(broker.address), warehouse)
        run.start()
        expected = plain_windows(broker.address)
        deadline_s = time.monotonic() + PATIENCE_S
        while (
            run.status()[0].lag != 0 or kept_windows(results.read_result_table(warehouse, "server_windows")) != expected
        ):
            assert not run.wait(0.2), run.failure
            assert time.monotonic() < deadline_s, run.status()
        assert run.stop(30)
        assert kept_windows(results.read_result_table(warehouse, "server_windows")) == expected
        again = str(tmp_path / "again")
        backfill(spark, PIPELINE, Cluster(broker.address), again)
        order = ("start", "server", "kind")
        assert table(warehouse, "alerts", *order) == table(again, "alerts", *order) != []
