"""The tests of reading, with Apache Kafka 4.3 in place of our broker."""

from __future__ import annotations

import pytest
from tests.peers.spark.kafka_cluster import shared
from tests.spark import test_source_batch, test_source_stream
from tests.spark.test_source_stream import folder

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

__all__ = ["folder"]

# These make gaps, losses and failures inside our broker; test_gaps_kafka_4_3 has Kafka make them.
_INSIDE_OURS = (
    "test_gaps_of_compacted_and_transactional_topics",
    "test_a_broker_lost_in_the_middle_of_a_job_is_one_line_after_the_time_out",
)
_STREAMS_INSIDE_OURS = (
    "test_recreated_topic_ends_the_query_and_leaves_its_checkpoint_alone",
    "test_lost_records_end_the_query_or_are_skipped",
    "test_gaps_do_not_hold_a_stream_up",
    "test_a_missing_topic_is_one_line",
    "test_a_wrong_option_is_one_line",
)

globals().update(shared(test_source_batch, without=_INSIDE_OURS))
globals().update(shared(test_source_stream, without=_STREAMS_INSIDE_OURS))
