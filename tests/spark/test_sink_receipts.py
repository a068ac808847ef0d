"""The driver's commit: what it accepts, and what it says about an abort."""

from __future__ import annotations

import logging
import pickle

import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from penstock.spark.ledger import StoredRange
from penstock.spark.sink import (
    BatchKey,
    IncompleteWrite,
    TaskReceipt,
    batch_receipt,
    batch_writer,
    merged_ranges,
    stream_writer,
)

HERE = {"kafka.bootstrap.servers": "broker:9092", "topic": "views"}
SCHEMA = StructType([StructField("value", StringType())])
KEY = BatchKey("query", 7)


def receipt(task: int, *stored: StoredRange, key: BatchKey = KEY, attempt: int = 0) -> TaskReceipt:
    return TaskReceipt(key, task, attempt, sum(each.end - each.start for each in stored), stored)


def test_receipts_of_a_batch_become_one() -> None:
    first = receipt(0, StoredRange("views", 0, 10, 14), StoredRange("views", 1, 0, 3))
    second = receipt(1, StoredRange("views", 0, 14, 20))
    whole = batch_receipt([first, second], 7)
    assert whole.key == KEY
    assert whole.records == 13
    assert whole.stored == (StoredRange("views", 0, 10, 20), StoredRange("views", 1, 0, 3))


def test_the_key_is_the_same_for_another_attempt_of_the_same_batch() -> None:
    assert batch_receipt([receipt(0, attempt=0)], 7).key == batch_receipt([receipt(0, attempt=3)], 7).key


def test_a_batch_with_a_receipt_missing_is_not_committed() -> None:
    with pytest.raises(IncompleteWrite, match="1 of 2 tasks did not confirm"):
        batch_receipt([receipt(0), None], 7)


def test_receipts_of_another_batch_are_not_committed() -> None:
    with pytest.raises(IncompleteWrite, match="cannot commit batch 8: tasks have written batch 7 of query"):
        batch_receipt([receipt(0)], 8)
    with pytest.raises(IncompleteWrite, match="different batches"):
        batch_receipt([receipt(0), receipt(1, key=BatchKey("query", 6))], 7)


def test_a_batch_of_no_tasks_is_committed() -> None:
    assert batch_receipt([], 7).records == 0


def test_receipts_travel() -> None:
    one = receipt(0, StoredRange("views", 0, 10, 14))
    assert pickle.loads(pickle.dumps(one)) == one


def test_ranges_of_a_partition_are_joined_from_first_to_last() -> None:
    ranges = [StoredRange("b", 0, 5, 6), StoredRange("a", 1, 0, 2), StoredRange("a", 1, 9, 10)]
    assert merged_ranges(ranges) == (StoredRange("a", 1, 0, 10), StoredRange("b", 0, 5, 6))


def test_trap_6_commit_and_abort_work_on_a_fresh_writer_built_by_keyword() -> None:
    writer = stream_writer(options=HERE, schema=SCHEMA, overwrite=False)
    writer.commit([receipt(0)], 7)
    writer = stream_writer(options=HERE, schema=SCHEMA, overwrite=False)
    writer.abort([None], 7)


def test_trap_7_an_abort_after_a_commit_touches_nothing_and_says_what_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # There is no broker at that address: whatever asked one would fail.
    writer = batch_writer(options=HERE, schema=SCHEMA, overwrite=False)
    written = TaskReceipt(BatchKey(None, None), 0, 0, 4, (StoredRange("views", 0, 10, 14),))
    messages: list[WriterCommitMessage | None] = [written, None]
    with caplog.at_level(logging.WARNING, "penstock.spark"):
        writer.abort(messages)
    assert caplog.messages == ["write aborted: what='the write' records_left_in_log=views-0 [10, 14)"]


def test_a_complete_result_is_appended_as_the_stock_connector_does() -> None:
    assert stream_writer(options=HERE, schema=SCHEMA, overwrite=True) is not None
