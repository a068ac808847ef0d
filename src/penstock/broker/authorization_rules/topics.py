"""Records, topics and metadata.

Topics that the sender may not describe are left out where it asks for all, and answered with
TOPIC_AUTHORIZATION_FAILED where it names them, whether they exist or not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

import msgspec

from penstock.broker.authorization_rules.rule import (
    SLICE,
    TOPIC_FAILED,
    WRITES_TRANSACTION,
    Access,
    ByElement,
    Prepared,
    Rule,
    answered_once,
    by_topic_partition,
    needs_all,
    on_topic,
    partition_rows,
)
from penstock.security.acls import CLUSTER_NAME, Operation, ResourceType
from penstock.wire.protocol import INTERNAL_TOPICS, ApiKey, ErrorCode
from penstock.wire.schemas import (
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_topic_partitions,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from penstock.wire.types import NO_UUID, Message

_O, _R = Operation, ResourceType


def _create_topics(
    access: Access, message: create_topics.CreateTopicsRequest, version: int
) -> Generator[None, None, Prepared]:
    if access.sees(_O.CREATE, _R.CLUSTER, CLUSTER_NAME):
        return Prepared(message)
    return (yield from _CREATE_EACH(access, message, version))


_CREATE_EACH: Final = answered_once(
    ByElement(
        "topics",
        "topics",
        on_topic(_O.CREATE),
        lambda topic, code: create_topics.CreatableTopicResult(
            name=topic.name, error_code=code, error_message=code.meaning, configs=[]
        ),
    )
)


def _delete_topics(
    access: Access, message: delete_topics.DeleteTopicsRequest, version: int
) -> Generator[None, None, Prepared]:
    """Names of topics that the sender may not describe are not revealed by their ids."""
    if access.sees(_O.DELETE, _R.CLUSTER, CLUSTER_NAME):
        return Prepared(message)
    array = "topics" if version >= 6 else "topic_names"
    kept: list[Any] = []
    ready: dict[Any, delete_topics.DeletableTopicResult] = {}
    for number, item in enumerate(getattr(message, array), 1):
        name, topic_id = (item, NO_UUID) if isinstance(item, str) else (item.name, item.topic_id)
        denied = _deletion_denied(access, name, topic_id)
        if denied is None:
            kept.append(item)
        else:
            ready[name or topic_id] = denied
        if not number % SLICE:
            yield
    if not ready:
        return Prepared(message)
    rest = msgspec.structs.replace(message, **{array: kept}) if kept else None
    return Prepared(rest, "responses", list(ready.values()))


def _deletion_denied(access: Access, name: str | None, topic_id: bytes) -> delete_topics.DeletableTopicResult | None:
    image = access.services.cluster.image
    if (name is None) == (topic_id == NO_UUID):
        return None  # rejected by the handler
    if name is not None:
        if access.may(_O.DELETE, _R.TOPIC, name):
            return None
        is_missing = name not in image.topics and access.sees(_O.DESCRIBE, _R.TOPIC, name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_missing else TOPIC_FAILED
        return delete_topics.DeletableTopicResult(name=name, error_code=code, error_message=code.meaning)
    known = image.names_by_id.get(topic_id)
    if known is not None and access.may(_O.DELETE, _R.TOPIC, known):
        return None
    # An id that is unknown here is not passed on: the controller may know it by now, and it was not checked.
    code = ErrorCode.UNKNOWN_TOPIC_ID if known is None else TOPIC_FAILED
    shown = known if known is not None and access.sees(_O.DESCRIBE, _R.TOPIC, known) else None
    return delete_topics.DeletableTopicResult(
        name=shown, topic_id=topic_id, error_code=code, error_message=code.meaning
    )


def _visible_topics(access: Access) -> Generator[None, None, list[str] | None]:
    """The topics that the sender may describe; None if these are all."""
    image = access.services.cluster.image
    found: list[str] = []
    is_all = True
    for number, name in enumerate(image.topics, 1):
        if not access.sees(_O.DESCRIBE, _R.TOPIC, name):
            is_all = False
        elif name not in image.deleting:
            found.append(name)
        if not number % SLICE:
            yield
    return None if is_all else found


def _cluster_described(access: Access, message: Any, response: Any, _: int) -> Generator[None, None, None]:
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _cluster_operations(access)
    yield from ()


def _cluster_operations(access: Access) -> int:
    may_see = access.sees(_O.DESCRIBE, _R.CLUSTER, CLUSTER_NAME)
    return access.operations(_R.CLUSTER, CLUSTER_NAME) if may_see else 0


def _topics_created(access: Access, message: Any, response: Any, version: int) -> Generator[None, None, None]:
    """Settings of a new topic are shown to those who may describe them."""
    for number, topic in enumerate(response.topics, 1):
        if version >= 5 and not topic.error_code and not access.sees(_O.DESCRIBE_CONFIGS, _R.TOPIC, topic.name):
            topic.topic_config_error_code = TOPIC_FAILED
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = []
        if not number % SLICE:
            yield


def _metadata(access: Access, message: metadata.MetadataRequest, version: int) -> Generator[None, None, Prepared]:
    topics = message.topics
    if topics is None or (not topics and version == 0):
        visible = yield from _visible_topics(access)
        if visible is None:
            return Prepared(message)
        named = [metadata.MetadataRequestTopic(name=name) for name in visible]
        return Prepared(msgspec.structs.replace(message, topics=named, allow_auto_topic_creation=False))
    kept: list[Any] = []
    ready: list[Any] = []
    for number, topic in enumerate(topics, 1):
        denied = _metadata_denied(access, message, topic, version)
        if denied is None:
            kept.append(topic)
        else:
            ready.append(denied)
        if not number % SLICE:
            yield
    if not ready:
        return Prepared(message)
    return Prepared(msgspec.structs.replace(message, topics=kept), "topics", ready)


def _metadata_denied(
    access: Access, message: metadata.MetadataRequest, topic: metadata.MetadataRequestTopic, version: int
) -> metadata.MetadataResponseTopic | None:
    services = access.services
    image, name = services.cluster.image, topic.name
    if not name:
        known = image.names_by_id.get(topic.topic_id)
        if known is not None and access.may(_O.DESCRIBE, _R.TOPIC, known):
            return None
        code = ErrorCode.UNKNOWN_TOPIC_ID if known is None else TOPIC_FAILED
        shown = None if version >= 12 else ""
        return metadata.MetadataResponseTopic(error_code=code, name=shown, topic_id=topic.topic_id)
    if not access.may(_O.DESCRIBE, _R.TOPIC, name):
        return metadata.MetadataResponseTopic(error_code=TOPIC_FAILED, name=name)
    would_create = (
        message.allow_auto_topic_creation
        and services.settings.auto_create_topics_enable
        and name not in image.topics
        and not access.sees(_O.CREATE, _R.CLUSTER, CLUSTER_NAME)
    )
    if would_create and not access.may(_O.CREATE, _R.TOPIC, name):
        internal = name in INTERNAL_TOPICS
        return metadata.MetadataResponseTopic(error_code=TOPIC_FAILED, name=name, is_internal=internal)
    return None


def _metadata_answered(
    access: Access, message: metadata.MetadataRequest, response: Any, version: int
) -> Generator[None, None, None]:
    if version >= 8 and message.include_topic_authorized_operations:
        yield from _topic_operations(access, response.topics)
    if 8 <= version <= 10 and message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _cluster_operations(access)


def _topic_operations(access: Access, topics: Iterable[Any]) -> Generator[None, None, None]:
    for number, topic in enumerate(topics, 1):
        if topic.name and topic.error_code != TOPIC_FAILED:
            topic.topic_authorized_operations = access.operations(_R.TOPIC, topic.name)
        if not number % 50:
            yield  # there are eight operations on a topic


def _topic_partitions(
    access: Access, message: describe_topic_partitions.DescribeTopicPartitionsRequest, version: int
) -> Generator[None, None, Prepared]:
    if message.topics:
        return (yield from _NAMED_TOPIC_PARTITIONS(access, message, version))
    visible = yield from _visible_topics(access)
    if visible is None:
        return Prepared(message)
    named = [describe_topic_partitions.TopicRequest(name=name) for name in visible]
    return Prepared(msgspec.structs.replace(message, topics=named) if named else None, "topics", ())


_NAMED_TOPIC_PARTITIONS: Final = ByElement(
    "topics",
    "topics",
    on_topic(_O.DESCRIBE),
    lambda topic, code: describe_topic_partitions.DescribeTopicPartitionsResponseTopic(
        name=topic.name, error_code=code
    ),
)


def _topic_partitions_described(access: Access, message: Any, response: Any, _: int) -> Generator[None, None, None]:
    yield from _topic_operations(access, response.topics)


def _readable(access: Access, message: Any, version: int) -> Callable[[str], bool]:
    """Followers need CLUSTER_ACTION, consumers READ on each topic."""
    replica_id = message.replica_state.replica_id if version >= 15 else message.replica_id
    if replica_id >= 0:
        is_broker = access.on_cluster(_O.CLUSTER_ACTION)
        return lambda _: is_broker
    return lambda topic: access.may(_O.READ, _R.TOPIC, topic)


def _epochs(access: Access, message: Any, version: int) -> Generator[None, None, Prepared]:
    if access.sees(_O.CLUSTER_ACTION, _R.CLUSTER, CLUSTER_NAME):
        return Prepared(message)
    return (yield from _EPOCHS_BY_TOPIC(access, message, version))


_EPOCHS_BY_TOPIC: Final = ByElement(
    "topics",
    "topics",
    on_topic(_O.DESCRIBE, "topic"),
    lambda topic, code: offset_for_leader_epoch.OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=partition_rows(
            offset_for_leader_epoch.EpochEndOffset, (each.partition for each in topic.partitions), code, "partition"
        ),
    ),
)


def _denied_topic_data(topic: Any, code: ErrorCode) -> produce.TopicProduceResponse:
    return produce.TopicProduceResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            produce.PartitionProduceResponse(
                index=data.index, error_code=code, base_offset=-1, error_message=code.meaning
            )
            for data in topic.partition_data
        ],
    )


def _all_denied_data(message: Any, code: ErrorCode, _: int) -> Message:
    return produce.ProduceResponse(responses=[_denied_topic_data(topic, code) for topic in message.topic_data])


TOPICS: Final[dict[int, Rule]] = {
    ApiKey.PRODUCE: Rule(
        needs=needs_all(WRITES_TRANSACTION),
        reject=_all_denied_data,
        prepare=ByElement("topic_data", "responses", on_topic(_O.WRITE), _denied_topic_data),
    ),
    ApiKey.FETCH: Rule(permits=_readable),
    ApiKey.LIST_OFFSETS: Rule(
        prepare=by_topic_partition(
            _O.DESCRIBE, list_offsets.ListOffsetsTopicResponse, list_offsets.ListOffsetsPartitionResponse
        )
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Rule(prepare=_epochs),
    ApiKey.DELETE_RECORDS: Rule(
        prepare=ByElement(
            "topics",
            "topics",
            on_topic(_O.DELETE),
            lambda topic, code: delete_records.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    delete_records.DeleteRecordsPartitionResult(
                        partition_index=each.partition_index, low_watermark=-1, error_code=code
                    )
                    for each in topic.partitions
                ],
            ),
        )
    ),
    ApiKey.METADATA: Rule(
        prepare=_metadata,
        complete=_metadata_answered,
        completes=lambda message, _: (
            message.include_topic_authorized_operations or message.include_cluster_authorized_operations
        ),
        always_served=True,
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Rule(prepare=_topic_partitions, complete=_topic_partitions_described),
    ApiKey.DESCRIBE_CLUSTER: Rule(complete=_cluster_described),
    ApiKey.CREATE_TOPICS: Rule(prepare=_create_topics, complete=_topics_created),
    ApiKey.DELETE_TOPICS: Rule(prepare=_delete_topics),
    ApiKey.CREATE_PARTITIONS: Rule(
        prepare=answered_once(
            ByElement(
                "topics",
                "results",
                on_topic(_O.ALTER),
                lambda topic, code: create_partitions.CreatePartitionsTopicResult(
                    name=topic.name, error_code=code, error_message=code.meaning
                ),
            )
        )
    ),
}
