"""A task's reader, without Spark: ranges, gaps, losses, brokers that go away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from tests.broker.wire_client import BEGIN_MS, WireClient, delete_topic
from tests.ports import free_port
from tests.spark.source_stories import fill, log_of, put_sparse, put_transaction, recreate, remove_before, values_of
from tests.timeouts import NEVER_MS, PATIENCE_MS

from penstock.client.errors import RecordUnreadable
from penstock.log.partition_log import PartitionLog
from penstock.records import Codec, encode_batch
from penstock.spark import connections, fetch
from penstock.spark.errors import DataLost, ReadStalled, TopicRecreated
from penstock.spark.fetch import arrow_schema, read_range, source_ddl
from penstock.spark.formats.ddl import parse_schema
from penstock.spark.options import ReaderOptions
from penstock.testing import Broker


@pytest.fixture(autouse=True)
def _sockets_are_given_back() -> Iterator[None]:
    yield
    connections.close_all()


@pytest.mark.parametrize("headers", [False, True])
def test_the_columns_are_what_spark_compares_them_with(headers: bool) -> None:
    wanted = to_arrow_schema(parse_schema(source_ddl(include_headers=headers)), timezone="UTC")
    assert wanted.equals(arrow_schema(include_headers=headers))


def test_a_range_is_read_from_its_start_to_before_its_end(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(100))
    assert values_of(broker.address, topic, 13, 88) == list(range(13, 88))
    assert values_of(broker.address, topic, 50, 50) == []
    assert values_of(broker.address, topic, 0, 1) == [0]


def test_every_column_has_what_was_sent(broker: Broker, topic: str) -> None:
    headers = (("a", b"1"), ("b", None))
    rows = [(BEGIN_MS, b"key", b"value", headers), (BEGIN_MS + 5, None, None, ())]
    with WireClient(broker.port) as client:
        client.produce(topic, encode_batch(rows), partition=1)
    (batch,) = read_range(broker.address, ReaderOptions(include_headers=True), topic, 1, 0, 2)
    first, second = batch.to_pylist()
    assert first.pop("timestamp").timestamp() * 1000 == BEGIN_MS
    assert second.pop("timestamp").timestamp() * 1000 == BEGIN_MS + 5
    same = {"topic": topic, "partition": 1, "timestampType": 0}
    pairs = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert first == {"key": b"key", "value": b"value", "offset": 0, "headers": pairs, **same}
    assert second == {"key": None, "value": None, "offset": 1, "headers": None, **same}


def test_the_type_of_a_timestamp_is_that_of_its_batch(broker: Broker, topic: str) -> None:
    log = log_of(broker, topic)
    for offset, kind in enumerate((0, 1, 1, 0)):
        batch = encode_batch(
            [(BEGIN_MS, None, b"%d" % offset, ())], offsets=[offset], leader_epoch=0, timestamp_type=kind
        )
        log.append_as_follower(batch, now_ms=BEGIN_MS)
    log.advance_high_watermark(4)
    batches = list(read_range(broker.address, ReaderOptions(), topic, 0, 0, 4))
    assert [kind for batch in batches for kind in batch.column("timestampType").to_pylist()] == [0, 1, 1, 0]


def test_a_batch_has_about_as_many_rows_as_asked_for(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(1000), a_batch=10)
    batches = list(read_range(broker.address, ReaderOptions(batch_rows=100), topic, 0, 0, 1000))
    assert [batch.num_rows for batch in batches] == [100] * 10


def test_a_batch_of_large_records_ends_before_it_has_as_many_rows(broker: Broker, topic: str) -> None:
    large = bytes(64 * 1024)
    with WireClient(broker.port) as client:
        for _ in range(50):
            client.produce(topic, encode_batch([(BEGIN_MS, None, large, ())] * 2))
    batches = list(read_range(broker.address, ReaderOptions(), topic, 0, 0, 100))
    assert [batch.num_rows for batch in batches] == [32, 32, 32, 4]


def test_one_stored_batch_of_many_records_is_cut_up(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(1000), a_batch=1000)
    batches = list(read_range(broker.address, ReaderOptions(batch_rows=100), topic, 0, 0, 1000))
    assert [batch.num_rows for batch in batches] == [200] * 5
    assert pa.Table.from_batches(batches).column("offset").to_pylist() == list(range(1000))


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec(broker: Broker, topic: str, codec: Codec) -> None:
    fill(broker, topic, range(50), codec=codec)
    assert values_of(broker.address, topic, 5, 45) == list(range(5, 45))


def test_fetches_smaller_than_a_batch_get_there_too(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(300), a_batch=100)
    assert values_of(broker.address, topic, 0, 300, fetch_bytes=1) == list(range(300))


# ---------------------------------------------------------------------------------------------- gaps


def test_what_was_compacted_away_is_passed_over(broker: Broker, topic: str) -> None:
    put_sparse(broker, topic, [2, 5, 9])
    put_sparse(broker, topic, [40, 41])
    assert values_of(broker.address, topic, 0, 42) == [2, 5, 9, 40, 41]
    assert values_of(broker.address, topic, 3, 10) == [5, 9]
    assert values_of(broker.address, topic, 6, 41) == [9, 40]


def test_a_range_that_was_compacted_away_as_a_whole_is_empty(broker: Broker, topic: str) -> None:
    put_sparse(broker, topic, [2, 5, 9])
    put_sparse(broker, topic, [40, 41])
    assert values_of(broker.address, topic, 10, 40) == []
    assert values_of(broker.address, topic, 6, 9) == []


def test_a_tail_of_the_log_that_holds_nothing_ends_the_range(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log may end beyond its last batch, if compaction removed that; a fetch there brings nothing."""
    fill(broker, topic, range(20))
    read = PartitionLog.read

    def as_if_gone(log: PartitionLog, offset: int, max_bytes: int, **more: Any) -> Any:
        # Only the fetch at the gap: the first one is served up to there.
        return None if offset >= 10 else read(log, offset, 1, **more)

    monkeypatch.setattr(PartitionLog, "read", as_if_gone)
    assert values_of(broker.address, topic, 0, 20) == list(range(10))


def test_markers_at_the_end_of_a_range_do_not_hold_it_up(broker: Broker, topic: str) -> None:
    put_transaction(broker, topic, [0, 1, 2], producer=7, commit=True)
    assert log_of(broker, topic).log_end_offset == 4
    assert values_of(broker.address, topic, 0, 4) == [0, 1, 2]
    assert values_of(broker.address, topic, 3, 4) == []


def test_aborted_records_are_hidden_from_who_reads_committed_ones(broker: Broker, topic: str) -> None:
    put_transaction(broker, topic, [0, 1], producer=7, commit=False)
    put_transaction(broker, topic, [3, 4], producer=7, commit=True, sequence=2)
    assert values_of(broker.address, topic, 0, 6) == [0, 1, 3, 4]
    assert values_of(broker.address, topic, 0, 6, isolation="read_committed") == [3, 4]
    assert values_of(broker.address, topic, 1, 4, isolation="read_committed") == [3]


def test_an_open_transaction_is_not_read_past_by_who_reads_committed_records(broker: Broker, topic: str) -> None:
    put_transaction(broker, topic, [0, 1], producer=7, commit=None)
    with pytest.raises(DataLost, match="its log ends before that"):
        values_of(broker.address, topic, 0, 2, isolation="read_committed", poll_timeout_ms=300)


# ---------------------------------------------------------------------------------------------- losses


def test_records_that_retention_removed_are_a_loss_or_are_skipped(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(50))
    remove_before(broker, topic, 20)
    with pytest.raises(DataLost, match=r"from offset 5 to 30: its log starts at 20.*failOnDataLoss") as raised:
        values_of(broker.address, topic, 5, 30)
    assert "\n" not in str(raised.value)
    assert values_of(broker.address, topic, 5, 30, fail_on_data_loss=False) == list(range(20, 30))
    assert values_of(broker.address, topic, 5, 15, fail_on_data_loss=False) == []


def test_a_range_beyond_the_end_of_the_log_is_a_loss(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(10))
    with pytest.raises(DataLost, match="its log ends at 10"):
        values_of(broker.address, topic, 50, 60)
    with pytest.raises(DataLost, match="its log ends before that"):
        values_of(broker.address, topic, 5, 60, poll_timeout_ms=300)
    assert values_of(broker.address, topic, 5, 60, poll_timeout_ms=300, fail_on_data_loss=False) == list(range(5, 10))


def test_a_topic_that_is_gone_is_a_loss(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(10))
    delete_topic(broker.broker, topic)
    with pytest.raises(DataLost, match="its topic does not exist"):
        values_of(broker.address, topic, 0, 10, poll_timeout_ms=500)
    assert values_of(broker.address, topic, 0, 10, poll_timeout_ms=500, fail_on_data_loss=False) == []


def test_a_topic_that_is_gone_is_not_waited_for_as_long_as_a_broker(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_LOST_AFTER_MS", 200)
    with pytest.raises(DataLost, match="its topic does not exist"):
        values_of(broker.address, f"{topic}-not", 0, 10, poll_timeout_ms=NEVER_MS)


def test_a_topic_that_was_recreated_is_known_by_its_id(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(10))
    with pytest.raises(TopicRecreated, match="deleted and created again"):
        list(read_range(broker.address, ReaderOptions(), topic, 0, 0, 10, topic_id="00" * 16))
    forgiving = ReaderOptions(fail_on_data_loss=False)
    assert list(read_range(broker.address, forgiving, topic, 0, 0, 10, topic_id="00" * 16)) == []


def test_a_connection_kept_from_an_earlier_task_notices_that_the_topic_was_recreated(
    broker: Broker, topic: str
) -> None:
    fill(broker, topic, range(10))
    assert len(values_of(broker.address, topic, 0, 10)) == 10
    recreate(broker, topic)
    fill(broker, topic, range(100, 110))
    assert values_of(broker.address, topic, 0, 10) == list(range(100, 110))


def test_damaged_bytes_are_reported_with_their_offset(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(20))
    (segment,) = Path(broker.data_dir, f"{topic}-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(RecordUnreadable, match="cannot be read at offset 10"):
        values_of(broker.address, topic, 0, 20)
    assert values_of(broker.address, topic, 0, 10) == list(range(10))


# ---------------------------------------------------------------------------------------------- brokers that go away


def test_no_broker_at_all_is_reported_in_one_line() -> None:
    with pytest.raises(
        ReadStalled, match=r"127.0.0.1:1: connection refused.*127.0.0.1:2: connection refused"
    ) as raised:
        values_of("127.0.0.1:1,127.0.0.1:2", "views", 0, 10, poll_timeout_ms=2_000)
    assert "\n" not in str(raised.value)


def test_a_broker_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    with Broker(str(tmp_path), port=port) as first:
        first.create_topic("views", 1)
        fill(first, "views", range(100))
        options = ReaderOptions(poll_timeout_ms=PATIENCE_MS, fetch_bytes=500, batch_rows=1)
        reading = read_range(first.address, options, "views", 0, 0, 100)
        got = next(reading).num_rows
    restarted: list[Broker] = []
    timer = threading.Timer(0.5, lambda: restarted.append(Broker(str(tmp_path), port=port).start()))
    timer.start()
    try:
        got += sum(batch.num_rows for batch in reading)
    finally:
        timer.join()
        restarted[0].stop()
    assert got == 100


def test_a_broker_that_stays_away_is_given_up_in_one_line() -> None:
    with Broker() as broker:
        broker.create_topic("views", 1)
        fill(broker, "views", range(100))
        options = ReaderOptions(poll_timeout_ms=3_000, request_timeout_ms=2_000, fetch_bytes=500, batch_rows=1)
        reading = read_range(broker.address, options, "views", 0, 0, 100)
        next(reading)
    with pytest.raises(ReadStalled, match=r"views-0 was read up to offset \d+ of 100.*pollTimeoutMs") as raised:
        list(reading)
    assert "\n" not in str(raised.value)


def test_taking_only_the_first_rows_leaves_nothing_running(broker: Broker, topic: str) -> None:
    fill(broker, topic, range(1000))
    reading = read_range(broker.address, ReaderOptions(batch_rows=10, fetch_bytes=500), topic, 0, 0, 1000)
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    connections.close_all()
    assert not [one for one in threading.enumerate() if one.name == "penstock-client"]
