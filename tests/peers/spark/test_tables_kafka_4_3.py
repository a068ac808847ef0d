"""The tests of loading tables, with Apache Kafka 4.3 in place of our broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.peers.spark.kafka_cluster import KafkaCluster, shared
from tests.spark.tables import (
    test_loader,
    test_loader_backfill,
    test_loader_dead_letters,
    test_runner_spark,
    test_tasks_upsert,
)
from tests.spark.tables.table_stories import World, world_of

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

# This one takes a broker of ours away.
_INSIDE_OURS = ("test_a_broker_that_is_lost_in_the_middle_is_one_line_and_the_load_continues_later",)

globals().update(
    shared(
        test_loader,
        test_loader_backfill,
        test_tasks_upsert,
        test_loader_dead_letters,
        test_runner_spark,
        without=_INSIDE_OURS,
    )
)


@pytest.fixture
def world(broker: KafkaCluster, topic: str, tmp_path: Path) -> Iterator[World]:
    with world_of(broker, topic, tmp_path) as made:
        yield made
