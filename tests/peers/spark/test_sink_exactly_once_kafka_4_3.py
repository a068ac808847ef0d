"""Exactly-once delivery with Apache Kafka 4.3, which has no two-phase commit: the tests of our broker, on it."""

from __future__ import annotations

import pytest
from tests.peers.spark.kafka_cluster import shared
from tests.spark import test_exactly_once, test_ledger_topic, test_sink_exactly_once

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

OURS = ("test_with_two_phase_commit_a_prepared_batch_waits_for_its_driver_as_long_as_it_takes",)
globals().update(shared(test_exactly_once, test_ledger_topic, test_sink_exactly_once, without=OURS))
