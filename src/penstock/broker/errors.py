"""Errors as clients see them: protocol error codes, messages, and the current leader.

This is the one place where errors of the layers below become error codes. The code is chosen by what the client can
do about it. An exception that is not in the table is a bug: it becomes UNKNOWN_SERVER_ERROR and is logged with its
trace; its text is not sent. Messages quote the client's input and are cut to 4,000 characters, which fits every
version.

A partition is unknown only if the cluster image does not have it. Otherwise another broker leads it, and the response
names that leader where the version allows it (KIP-951), which saves the client a metadata request.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from penstock.cluster.errors import ApiException, NotStarted
from penstock.log.errors import (
    AppendTooLarge,
    BatchTooLarge,
    CoordinatorFenced,
    DamagedLog,
    DiskFull,
    InvalidBatch,
    InvalidProducerEpoch,
    InvalidTimestamp,
    LogError,
    LogFailed,
    MissingSequence,
    NotInTransaction,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordsTruncated,
    StaleEpoch,
    TooManyProducers,
)
from penstock.records import CorruptBatch, RecordError, TooLarge, UnsupportedCodec, UnsupportedMagic
from penstock.replication.errors import CommitTimedOut, NotEnoughReplicas, NotEnoughReplicasAfterAppend, NotLeaderError
from penstock.wire.protocol import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.request import Node, Services

logger = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)

_MAX_CHARACTERS: Final = 4000


class SchemaRegistryAway(LogError):
    """The ids of schemas in records cannot be checked now. Nothing was written."""


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
    # The code that makes every client try again and says that nothing was written.
    SchemaRegistryAway: ErrorCode.NOT_ENOUGH_REPLICAS,
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
"""Errors that handlers turn into a code; others reach the router."""


def error_code_of(error: BaseException) -> ErrorCode:
    """The error code for clients."""
    for base in type(error).__mro__:
        code = _CODES.get(base)
        if code is not None:
            return code
    logger.error("unexpected error: type=%s error=%s", type(error).__name__, error, exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR


class ApiError(NamedTuple):
    """A code, and a reason unless the code is NONE."""

    code: ErrorCode
    text: str | None = None


NO_ERROR: Final = ApiError(ErrorCode.NONE)
DUPLICATE_IN_REQUEST: Final = ApiError(ErrorCode.INVALID_REQUEST, "the request names the same resource twice")
NOT_LEADER_ERRORS: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def api_error_of(error: BaseException | None) -> ApiError:
    if error is None:
        return NO_ERROR
    if isinstance(error, ApiException):
        return ApiError(error.code, str(error)[:_MAX_CHARACTERS])
    if isinstance(error, NotStarted):
        # Clients look for the controller and retry.
        return ApiError(ErrorCode.NOT_CONTROLLER, str(error))
    return ApiError(error_code_of(error), "unexpected error; see the broker's log")


def duplicates(keys: Iterable[Key]) -> frozenset[Key]:
    return frozenset(key for key, count in Counter(keys).items() if count > 1)


def missing_partition_error(services: Services, topic: str, index: int) -> ErrorCode:
    """The error for a partition that this broker does not hold."""
    image = services.cluster.image
    partition = image.partition(topic, index)
    if partition is None or topic in image.deleting:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.leader == services.node_id:
        return ErrorCode.KAFKA_STORAGE_ERROR  # its log is damaged or on a failed disk
    return ErrorCode.NOT_LEADER_OR_FOLLOWER


def current_leader(services: Services, topic: str, index: int) -> tuple[int, int] | None:
    """Leader and leader epoch of a partition; None if it has no live leader."""
    image = services.cluster.image
    partition = image.partition(topic, index)
    if partition is None or image.live_leader(partition) < 0:
        return None
    return partition.leader, partition.leader_epoch


def nodes_with_ids(services: Services, listener: str, ids: Iterable[int]) -> list[Node]:
    """These brokers with their addresses for clients of a listener."""
    wanted = frozenset(ids)
    return [node for node in services.live_brokers(listener) if node.id in wanted]
