"""TxnOffsetCommit: offsets of a group that are committed with a transaction.

They are a transactional write to the group's partition of `__consumer_offsets`, so they are verified with the
transaction's coordinator as a Produce is (KIP-890); from version 5 on the partition joins the transaction that way.
They become visible with the transaction's marker; until then they are unstable.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.handlers.offset_commit import commit_known
from penstock.broker.request import Answer, Request, Services
from penstock.coordination.responses import error_response
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.coordination.transactions.transaction import VERSION_1, VERSION_2
from penstock.coordination.transactions.transaction_shard import Add, Added
from penstock.replication.partition import Partition, Verification
from penstock.wire.protocol import OFFSETS_TOPIC, ErrorCode
from penstock.wire.schemas.txn_offset_commit import TxnOffsetCommitRequest
from penstock.wire.types import Message

# The first versions of clients that know TRANSACTION_ABORTABLE, and whose offsets join a transaction with the commit.
_FIRST_VERSION_WITH_ABORTABLE: Final = 4
_FIRST_VERSION_THAT_ADDS: Final = 5
_COORDINATOR_MOVES: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Of the transaction's coordinator: the group's is here, so the client need not look for it."""


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: TxnOffsetCommitRequest = request.message
    if not message.group_id:
        _reject(request, ErrorCode.INVALID_GROUP_ID, answer)
        return
    partition = services.groups.partition_of(message.group_id)
    if isinstance(partition, ErrorCode):
        _reject(request, partition, answer)
        return
    verification = partition.begin_verification(message.producer_id, message.producer_epoch)
    adds = request.version >= _FIRST_VERSION_THAT_ADDS
    if verification is None or not (adds or services.settings.transactions.verify_partitions):
        _commit(services, request, partition, verification, answer)
        return
    add = Add(
        message.transactional_id,
        message.producer_id,
        message.producer_epoch,
        frozenset({(OFFSETS_TOPIC, partition.index)}),
        VERSION_2 if adds else VERSION_1,
        verify_only=not adds,
    )

    def verified(added: Added) -> None:
        if added.code:
            partition.end_verification(message.producer_id, verification)
            _reject(request, _code(added.code, request.version), answer)
        else:
            _commit(services, request, partition, verification, answer)

    services.transaction_client.add(add, verified)


def _commit(
    services: Services, request: Request, partition: Partition, verification: Verification | None, answer: Answer
) -> None:
    message: TxnOffsetCommitRequest = request.message
    is_verified = partition.is_verified(message.producer_id, message.producer_epoch, verification)
    if is_verified or not services.settings.transactions.verify_partitions:
        commit_known(services, request, GroupCoordinatorShard.handle_txn_offset_commit, answer)
    else:
        _reject(request, _code(ErrorCode.TRANSACTION_ABORTABLE, request.version), answer)
    if verification is not None:
        partition.end_verification(message.producer_id, verification)


def _code(code: ErrorCode, version: int) -> ErrorCode:
    if code in _COORDINATOR_MOVES:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _FIRST_VERSION_WITH_ABORTABLE:
        return ErrorCode.INVALID_TXN_STATE
    return code


def _reject(request: Request, code: ErrorCode, answer: Answer) -> None:
    response: Message = error_response(request.message, code, request.version)
    answer(response)
