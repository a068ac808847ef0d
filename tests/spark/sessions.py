"""How the tests start Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def new_session(folder: Path, master: str = "local[2]", **settings: str) -> SparkSession:
    """A session with everything it leaves behind under `folder`."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("penstock-tests").master(master)
    places = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    for name, value in {**SETTINGS, **places, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
