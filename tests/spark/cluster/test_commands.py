"""`penstock load` and `penstock spark submit` on a cluster whose machines have Spark's packages and none of ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from tests.spark.cluster.bare import bare_python
from tests.spark.cluster.standalone import SETTINGS, Daemon, Standalone
from tests.spark.cluster.test_standalone import log_of
from tests.spark.tables.table_stories import VIEWS, once, places, rows, world_of
from tests.timeouts import PATIENCE_S

from penstock.spark.session import arguments, submit_variable
from penstock.testing import Broker

OF_ANOTHER = ("PYSPARK_SUBMIT_ARGS", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "SPARK_REMOTE", "JAVA_HOME", "PYTHONPATH")


@pytest.fixture
def environment(standalone: Standalone, tmp_path: Path) -> dict[str, str]:
    """Variables of a command whose executors have nothing of ours."""
    python = bare_python(tmp_path, standalone.work)
    standalone.work.joinpath("here").mkdir(exist_ok=True)
    bare = subprocess.run(
        [python, "-c", "import pyarrow, pyspark; import penstock"],
        cwd=standalone.work / "here", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "No module named 'penstock'" in bare.stderr
    ours = {name: value for name, value in os.environ.items() if name not in OF_ANOTHER}
    return {**ours, "PYSPARK_PYTHON": str(python), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONUNBUFFERED": "1"}


@pytest.mark.long
def test_a_load_delivers_itself_and_outlives_an_executor_that_is_killed(
    standalone: Standalone, broker: Broker, topic: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    # The settings of a cluster's users stand in their files and variables; the last one marks the executors.
    own = {
        **SETTINGS,
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -Dstory=load",
        "spark.master": standalone.url,
    }
    environment["PYSPARK_SUBMIT_ARGS"] = submit_variable(own, {})
    with world_of(broker, topic, tmp_path) as world:
        world.views(1200)
        opened = world.make(schema=VIEWS, event_time="at")
        # A warehouse by a relative name: executors work in other folders.
        command = [
            sys.executable, "-m", "penstock", "load", "views", "-b", broker.address, "-w", "warehouse",
            "--spark", "--commit-records", "100", "--no-maintenance",
        ]  # fmt: skip
        load = Daemon(command, environment, cwd=tmp_path)
        try:
            load.hears("^Version 1: ")
            executors = standalone.executors("-Dstory=load")
            os.kill(executors[0], signal.SIGKILL)
            load.hears("^Version 9: ")
            assert load.process.wait(PATIENCE_S) == 0
        finally:
            load.end()
        assert len(executors) == 2
        assert places(rows(opened)) == once(world.log())


JOB = """
import json, sys
from pyspark.sql import SparkSession

def places(batches):
    import penstock, pyarrow
    from penstock.records.kernel import KERNEL
    for batch in batches:
        yield pyarrow.RecordBatch.from_arrays([pyarrow.array([penstock.__file__]), pyarrow.array([KERNEL])], ["a", "b"])

address, topic, folder = sys.argv[1:]
here = {"kafka.bootstrap.servers": address}
spark = SparkSession.builder.getOrCreate()
df = spark.range(50).selectExpr("CAST(id AS STRING) AS value")
df.write.format("penstock").options(**here, topic=topic).mode("append").save()
read = spark.read.format("penstock").options(**here, subscribe=topic).load()
found = [tuple(row) for row in read.mapInArrow(places, "a string, b string").distinct().collect()]
stream = spark.readStream.format("penstock").options(**here, subscribe=topic, startingOffsets="earliest").load()
query = stream.select("value", "partition").writeStream.format("penstock").options(**here, topic=topic + "-out")
query = query.option("checkpointLocation", folder).trigger(availableNow=True).start()
assert query.awaitTermination(100)
print("FOUND", json.dumps({"rows": read.count(), "master": spark.sparkContext.master, "packages": found}))
spark.stop()
"""


@pytest.mark.long
def test_a_job_is_submitted_with_the_package_for_batch_stream_and_sink(
    standalone: Standalone, broker: Broker, topic: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    broker.create_topic(f"{topic}-out", 2)
    job = tmp_path / "job.py"
    job.write_text(dedent(JOB))
    # One executor is enough to see what it has.
    settings = [*arguments(SETTINGS), "--conf", "spark.cores.max=1"]
    command = [
        sys.executable, "-m", "penstock", "spark", "submit", "--master", standalone.url, *settings, str(job),
        broker.address, topic, str(tmp_path / "checkpoint"),
    ]  # fmt: skip
    ran = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    found = [line for line in ran.stdout.splitlines() if line.startswith("FOUND ")]
    assert ran.returncode == 0, "\n".join(line for line in ran.stderr.splitlines() if not line.startswith("\tat "))
    facts = json.loads(found[0].removeprefix("FOUND "))
    assert (facts["rows"], facts["master"]) == (50, standalone.url)
    # Executors found the archive beside them, with the kernel of this machine.
    from penstock.records.kernel import KERNEL

    assert facts["packages"]
    for file, kernel in facts["packages"]:
        assert (Path(file).is_relative_to(standalone.work), kernel) == (True, KERNEL)
    assert log_of(broker, f"{topic}-out") == log_of(broker, topic)
