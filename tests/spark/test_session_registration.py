"""The source as a session has it: what all of its queries share."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.spark.source_stories import fill, run_available, stream

from penstock.spark.session import finish
from penstock.testing import Broker


def _variables(spark: SparkSession) -> dict[str, str]:
    """Those that go into the tasks of all queries that read from the source."""
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    return dict(manager.lookupDataSource("penstock").dataSourceCls().envVars())


@pytest.mark.long
def test_the_start_of_a_query_adds_nothing_to_what_the_tasks_of_others_hold(
    spark: SparkSession, broker: Broker, topic: str, checkpoint: str
) -> None:
    known = dict(spark.sparkContext.environment)
    session = spark.newSession()
    finish(session, visible_lag=False)
    assert spark.sparkContext.environment == known
    before = _variables(session)
    fill(broker, topic, range(10))
    run_available(stream(session, broker, topic, startingOffsets="earliest"), f"{checkpoint}-out", checkpoint)
    after = _variables(session)
    assert after["SPARK_LOCAL_DIRS"] != before["SPARK_LOCAL_DIRS"] == ""  # Spark sets them in that very map
    assert after.keys() == before.keys()
