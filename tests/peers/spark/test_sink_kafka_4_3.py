"""The tests of writing, with Apache Kafka 4.3 in place of our broker."""

from __future__ import annotations

import pytest
from tests.peers.spark.kafka_cluster import shared
from tests.spark import test_sink_batch, test_sink_stream

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

globals().update(shared(test_sink_batch, without=("test_missing_broker_fails_in_one_line",)))
globals().update(shared(test_sink_stream))
