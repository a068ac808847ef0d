"""State records: gaps and sequences, shards that never change, and a state topic that cannot be read."""

from __future__ import annotations

import pytest
from tests.mirror.mirrors import RunningMirror, create_topic, produce, settings_of
from tests.timeouts import until

from penstock.client.producer import Producer
from penstock.mirror.state import PartitionState, SourcePartition, as_value, encode_state, partition_state
from penstock.records import decode_batch
from penstock.testing.embedded_broker import EmbeddedBroker


def test_sequences_are_behind_offsets_by_the_gaps_before_them() -> None:
    assert PartitionState().missing_before(100) == 0
    state = PartitionState(gap_offset=10, gap_count=3, before_gap=5)
    assert [state.missing_before(offset) for offset in (10, 11, 12, 13, 99)] == [5, 6, 7, 8, 8]
    # Half of it was filled when the work stopped: the rest is a gap of its own, and the sequences stay.
    rest = PartitionState(gap_offset=12, gap_count=1, before_gap=state.missing_before(12))
    assert rest.missing_before(13) == state.missing_before(13)


def test_a_partition_belongs_to_one_shard_forever() -> None:
    keys = [SourcePartition("live", "views", number) for number in range(100)]
    assert [key.shard(8) for key in keys[:6]] == [key.shard(8) for key in keys[:6]]
    assert {key.shard(8) for key in keys} == set(range(8))
    assert SourcePartition("live", "views", 7).shard(8) == 7


def test_states_are_json_and_unknown_fields_of_newer_ones_are_ignored() -> None:
    state = PartitionState(position=5, runs=((0, 1, 2),), stopped="why")
    [record] = decode_batch(encode_state({"k": as_value(state)}, 7))
    assert (record.key, record.timestamp) == (b"k", 7)
    assert partition_state({**as_value(state), "of the future": 1}) == state
    assert partition_state(None) == PartitionState()


def test_a_state_topic_with_other_records_ends_the_mirror(
    live: EmbeddedBroker, offline: EmbeddedBroker, name: str
) -> None:
    create_topic(live.address, name)
    produce(live.address, name, 5)
    settings = settings_of({"live": live.address}, offline.address, topics=name, name=name)
    create_topic(offline.address, settings.state_topic, 1, cleanup_policy="compact")
    with Producer(offline.address) as producer:
        producer.send(settings.state_topic, b"not of a mirror", key=b"k").result()
    with pytest.raises(BaseExceptionGroup), RunningMirror(settings) as mirror:
        until(lambda: not mirror._thread.is_alive(), "it ends")
