"""What only brokers of the cluster may ask for, whatever ACLs say.

A connection is a broker's once its peer has proved that it knows the cluster's secret (`handlers.authenticate_broker`).
A row of `api_table` names a function of this module. The router calls it for connections that are not brokers'; it
returns the response that rejects the request, or None if a client may ask this.

Internal topics are written, deleted, cut and given partitions by brokers only: a client that writes to
`__consumer_offsets` forges committed offsets. So is the topic of the audit log, except that it may be given partitions:
a client that writes to it or cuts it forges what was done. Kafka answers INVALID_TOPIC_EXCEPTION to such Produce and
DeleteRecords requests, and TOPIC_AUTHORIZATION_FAILED where a client adds such a topic to a transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.broker.errors import ApiError
from penstock.broker.request import Request, Services
from penstock.security.principal import Session
from penstock.wire.protocol import ErrorCode, find_api
from penstock.wire.schemas.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from penstock.wire.schemas.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from penstock.wire.schemas.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.wire.types import Message

Restriction = Callable[[Services, Request], Message | None]

INTERNAL_TOPIC_REASON: Final = "the topic is internal or the audit log: only brokers change it"
INTERNAL_TOPIC: Final = ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, INTERNAL_TOPIC_REASON)

_FAILED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_FETCH_WITH_ERROR: Final = 7
_FETCH_WITH_STATE: Final = 15
_ADD_FOR_BROKERS: Final = 4
_ALTER: Final = 7
_CLUSTER: Final = 4
_CLUSTER_NAME: Final = "kafka-cluster"


def is_protected(services: Services, session: Session, topic: str) -> bool:
    """Whether the topic is internal or the audit log, and the peer is not a broker."""
    return topic in services.protected_topics and not session.is_broker


def everything(services: Services, request: Request) -> Message | None:
    """Reject the whole request: for APIs between brokers, whose responses have one error code."""
    response: Any = find_api(request.api_key).response()
    response.error_code = _FAILED
    return response  # type: ignore[no-any-return]


def added_by_brokers(services: Services, request: Request) -> Message | None:
    """AddPartitionsToTxn from version 4 on, which adds or verifies for any producer."""
    return everything(services, request) if request.version >= _ADD_FOR_BROKERS else None


def fetched_by_replicas(services: Services, request: Request) -> Message | None:
    """Fetch in the name of a replica: what it asks for counts as replicated."""
    message: FetchRequest = request.message
    replica_id = message.replica_state.replica_id if request.version >= _FETCH_WITH_STATE else message.replica_id
    if replica_id < 0:
        return None
    services.metrics.count_error(request.api_key, _FAILED)
    if request.version >= _FETCH_WITH_ERROR:
        return FetchResponse(error_code=_FAILED)
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(partition_index=each.partition, error_code=_FAILED, high_watermark=-1)
                    for each in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def epochs_for_replicas(services: Services, request: Request) -> Message | None:
    """OffsetForLeaderEpoch in the name of a replica."""
    message: OffsetForLeaderEpochRequest = request.message
    if message.replica_id < 0:
        return None
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[EpochEndOffset(partition=each.partition, error_code=_FAILED) for each in topic.partitions],
            )
            for topic in message.topics
        ]
    )


def committing_markers(services: Services, request: Request) -> Message | None:
    """WriteTxnMarkers: a client that may alter the cluster may abort transactions, as tools do with hanging ones."""
    message: WriteTxnMarkersRequest = request.message
    is_commit = any(marker.transaction_result for marker in message.markers)
    if not is_commit and _may_alter_cluster(services, request.session):
        return None
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=_FAILED)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in message.markers
        ]
    )


def _may_alter_cluster(services: Services, session: Session) -> bool:
    authorizer = getattr(services, "authorizer", None)
    return authorizer is None or bool(authorizer.authorize(session, _ALTER, _CLUSTER, _CLUSTER_NAME))
