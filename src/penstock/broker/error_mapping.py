"""Errors of the layers below as protocol error codes: the one edge that translates.

Rule: what a client can do about an error decides its code. What is not in the table is the broker's own fault, and is
logged with its trace.
"""

from __future__ import annotations

import logging

from penstock.log.errors import (
    AppendTooLarge,
    BatchTooLarge,
    DamagedLog,
    DiskFull,
    InvalidBatch,
    InvalidTimestamp,
    LogError,
    LogFailed,
    OffsetOutOfRange,
    RecordsTruncated,
    StaleEpoch,
)
from penstock.log.producers.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    MissingSequence,
    NotInTransaction,
    OutOfOrderSequence,
    TooManyProducers,
)
from penstock.records import CorruptBatch, RecordError, TooLarge, UnsupportedCodec, UnsupportedMagic
from penstock.replication.errors import (
    CommitTimedOut,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderError,
)
from penstock.wire.error_codes import ErrorCode

logger = logging.getLogger(__name__)

# The nearest base class counts, so the special ones need not come first.
_CODES: dict[type[BaseException], ErrorCode] = {
    OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    BatchTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    AppendTooLarge: ErrorCode.RECORD_LIST_TOO_LARGE,
    InvalidTimestamp: ErrorCode.INVALID_TIMESTAMP,
    InvalidBatch: ErrorCode.INVALID_RECORD,
    DamagedLog: ErrorCode.CORRUPT_MESSAGE,
    DiskFull: ErrorCode.KAFKA_STORAGE_ERROR,
    LogFailed: ErrorCode.KAFKA_STORAGE_ERROR,
    RecordsTruncated: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    StaleEpoch: ErrorCode.FENCED_LEADER_EPOCH,
    NotLeaderError: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    NotEnoughReplicas: ErrorCode.NOT_ENOUGH_REPLICAS,
    NotEnoughReplicasAfterAppend: ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    CommitTimedOut: ErrorCode.REQUEST_TIMED_OUT,
    CorruptBatch: ErrorCode.CORRUPT_MESSAGE,
    TooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    UnsupportedCodec: ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    UnsupportedMagic: ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    MissingSequence: ErrorCode.INVALID_RECORD,
    NotInTransaction: ErrorCode.INVALID_TXN_STATE,
    CoordinatorFenced: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    TooManyProducers: ErrorCode.UNKNOWN_SERVER_ERROR,
    RecordError: ErrorCode.INVALID_RECORD,
    LogError: ErrorCode.KAFKA_STORAGE_ERROR,
}

EXPECTED = (LogError, RecordError)
"""What handlers catch and turn into a code; anything else reaches the router."""


def error_code_of(error: BaseException) -> ErrorCode:
    """The code that tells a client what happened."""
    for base in type(error).__mro__:
        code = _CODES.get(base)
        if code is not None:
            return code
    logger.error("unexpected %s: %s", type(error).__name__, error, exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR
