"""Creating topics: CreateTopics, topics that a client names first, and __consumer_offsets.

CreateTopics places replicas by their number or explicitly, or only validates. Each name is answered once. A topic
starts with the preset that the operator's file has for its name, where the client sets nothing else.

`AutoTopicCreation` creates a topic when a client asks for its metadata, and __consumer_offsets when the first group
looks for its coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.broker.errors import DUPLICATE_IN_REQUEST, ApiError, api_error_of, duplicates
from penstock.broker.request import Answer, Request, Services, each_once
from penstock.broker.settings import BrokerSettings, check_topic_settings, describe_topic
from penstock.broker.throttling import MUTATIONS_EXCEEDED
from penstock.cluster.controller.configs import MIN_INSYNC, ResourceKind, check_number
from penstock.cluster.controller.topics import BY_DEFAULT, MAX_PARTITIONS, NewTopic
from penstock.cluster.errors import (
    ApiException,
    ClusterError,
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidRequest,
)
from penstock.cluster.image import TopicImage
from penstock.cluster.topic_names import check_topic_name
from penstock.wire.protocol import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, ErrorCode
from penstock.wire.schemas.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

logger = logging.getLogger(__name__)

_FIRST_VERSION_WITH_CONFIGS: Final = 5
_FIRST_STRICT_VERSION: Final = 6
TOO_MANY_PARTITIONS: Final = ApiError(
    ErrorCode.POLICY_VIOLATION,
    "the cluster would have more partitions than penstock.max.partitions allows: delete topics, or raise the limit",
)
# A description takes a fraction of a millisecond; after this many, other requests are served.
_AT_ONCE: Final = 20

Own = frozenset[tuple[str, str | None]]
"""The settings of a topic's own."""


class TooFewBrokers(ClusterError):
    """An internal topic cannot be created yet."""

    def __init__(self, topic: str, factor: int, brokers: int) -> None:
        setting, who = _WHO_WAITS[topic]
        super().__init__(
            f"cannot create {topic}: replication factor {factor} needs {factor} brokers, {brokers} are available; "
            f"{who} wait for more brokers. Lower {setting} for a smaller cluster"
        )


_WHO_WAITS: Final = {
    OFFSETS_TOPIC: ("offsets.topic.replication.factor", "groups"),
    TRANSACTION_STATE_TOPIC: ("transaction.state.log.replication.factor", "transactions"),
}


class AutoTopicCreation:
    """Creates topics that no CreateTopics request asked for."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def create(self, names: list[str]) -> None:
        """ClusterError, LinkLost."""
        wanted = []
        for name in names:
            if name in INTERNAL_TOPICS:
                await self.create_internal_topic(name)
            else:
                wanted.append(with_preset(self._services.settings, NewTopic(name)))
        if wanted:
            membership = self._services.membership_or_none
            if membership is not None:
                await membership.create_through_controller(wanted)
            else:
                await self._services.cluster.require_controller().create_topics(wanted)

    async def create_internal_topic(self, name: str) -> None:
        """ClusterError, LinkLost."""
        services = self._services
        membership = services.membership_or_none
        topic = _internal_topic(services.settings, name)
        brokers = len(services.cluster.image.brokers)
        if membership is None:
            # Whatever min.insync.replicas the broker has: coordinators could not write otherwise.
            topic = replace(topic, replication_factor=1, configs={**topic.configs, MIN_INSYNC: "1"})
        elif topic.replication_factor > brokers:
            # Brokers start one after the other. Created with fewer replicas, the topic would keep them.
            raise TooFewBrokers(name, topic.replication_factor, brokers)
        if membership is not None:
            await membership.create_through_controller([topic])
            return
        outcome = (await services.cluster.require_controller().create_topics([topic]))[0]
        if outcome.error is not None and name not in services.cluster.image.topics:
            raise outcome.error


def _internal_topic(settings: BrokerSettings, name: str) -> NewTopic:
    configs: dict[str, str | None] = {"cleanup.policy": "compact"}
    if name == OFFSETS_TOPIC:
        configs |= {"compression.type": "producer", "segment.bytes": str(settings.offsets_topic_segment_bytes)}
        partitions, factor = settings.offsets_topic_num_partitions, settings.offsets_topic_replication_factor
    else:
        transactions = settings.transactions
        configs |= {
            "compression.type": "uncompressed",
            "segment.bytes": str(transactions.segment_bytes),
            "unclean.leader.election.enable": "false",
            MIN_INSYNC: str(transactions.min_isr),
        }
        partitions, factor = transactions.num_partitions, transactions.replication_factor
    return NewTopic(name, partitions, factor, configs=configs)


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: CreateTopicsRequest = request.message
    long_requests = services.long_requests
    results: dict[str, CreatableTopicResult] = {}
    throttle_ms = 0

    def respond(reason: ApiError | None = None) -> None:
        rows = (
            results[name] if reason is None else _rejected(name, reason)
            for name in each_once(topic.name for topic in message.topics)
        )
        long_requests.answer_rows(
            request.channel,
            rows,
            lambda made: answer(CreateTopicsResponse(throttle_time_ms=throttle_ms, topics=made)),
        )

    async def create() -> None:
        nonlocal throttle_ms
        new = await _validate(services, message.topics, results)
        known = services.cluster.image.topics
        permits = {name: _partition_count(services, topic) for name, topic in new.items() if name not in known}
        for name in beyond_limit(services, permits):
            results[name] = _rejected(name, TOO_MANY_PARTITIONS)
            del new[name], permits[name]
        if not message.validate_only:
            over, throttle_ms = services.throttling.over_quota(request, permits, _FIRST_STRICT_VERSION)
            for name in over:
                results[name] = _rejected(name, MUTATIONS_EXCEEDED)
                del new[name]
        described: dict[Own, list[CreatableTopicConfigs]] = {}
        outcomes = await services.cluster.require_controller().create_topics(
            list(new.values()), validate_only=message.validate_only
        )
        async for outcome in long_requests.each(outcomes, _AT_ONCE):
            name = outcome.name
            if outcome.topic is None:
                results[name] = _rejected(name, api_error_of(outcome.error))
                continue
            result = results[name] = CreatableTopicResult(name=name, error_message=None)
            if not message.validate_only:
                result.topic_id = outcome.topic.topic_id
                _warn_of_min_insync(services, outcome.topic, new[name])
            if request.version >= _FIRST_VERSION_WITH_CONFIGS:
                _describe(services.settings, outcome.topic, new[name], result, described)
        respond()

    services.spawn(create(), lambda error: respond(api_error_of(error)))


def beyond_limit(services: Services, wanted: Mapping[str, int]) -> list[str]:
    """The topics whose new partitions would exceed penstock.max.partitions, if made in this order."""
    room = services.settings.penstock_max_partitions - sum(
        len(topic.partitions) for topic in services.cluster.image.topics.values()
    )
    beyond = []
    for name, count in wanted.items():
        if count > MAX_PARTITIONS:
            continue  # which the controller rejects
        if count > room:
            beyond.append(name)
        else:
            room -= count
    return beyond


def _partition_count(services: Services, topic: NewTopic) -> int:
    wanted = len(topic.assignments) or topic.partitions
    return services.settings.num_partitions if wanted == BY_DEFAULT else max(1, wanted)


def with_preset(settings: BrokerSettings, topic: NewTopic) -> NewTopic:
    """The topic with the operator's preset for its name, where it sets nothing itself."""
    preset = settings.preset(topic.name)
    partitions = topic.partitions
    if partitions == BY_DEFAULT and preset.partitions is not None and not topic.assignments:
        partitions = preset.partitions
    return replace(topic, partitions=partitions, configs={**preset.settings, **topic.configs})


async def _validate(
    services: Services, topics: list[CreatableTopic], results: dict[str, CreatableTopicResult]
) -> dict[str, NewTopic]:
    """The topics that are valid by themselves; the results of the others say why not."""
    twice = await services.long_requests.duplicates(topic.name for topic in topics)
    new: dict[str, NewTopic] = {}
    sound: set[Own] = set()
    async for topic in services.long_requests.each(topics, _AT_ONCE):
        if topic.name in twice:
            results[topic.name] = _rejected(topic.name, DUPLICATE_IN_REQUEST)
            continue
        try:
            new[topic.name] = _new_topic(services, topic, sound)
        except ApiException as error:
            results[topic.name] = _rejected(topic.name, api_error_of(error))
    return new


def _new_topic(services: Services, wanted: CreatableTopic, sound: set[Own]) -> NewTopic:
    """ApiException. `sound` are settings of other topics of the request, which need not be validated again."""
    check_number(ResourceKind.TOPIC, len(wanted.configs))
    if duplicates(config.name for config in wanted.configs):
        raise InvalidRequest("the request sets a setting twice")
    if duplicates(assignment.partition_index for assignment in wanted.assignments):
        raise InvalidReplicaAssignment("the request assigns replicas to a partition twice")
    topic = NewTopic(
        wanted.name,
        wanted.num_partitions,
        wanted.replication_factor,
        {assignment.partition_index: assignment.broker_ids for assignment in wanted.assignments},
        {config.name: config.value for config in wanted.configs},
    )
    # The controller reports an invalid or existing name, which matters more than its settings.
    if check_topic_name(topic.name) is not None or topic.name in services.cluster.image.topics:
        return topic
    topic = with_preset(services.settings, topic)
    own = frozenset(topic.configs.items())
    if own not in sound:
        reasons = check_topic_settings(services.settings, topic.configs)
        if reasons:
            raise InvalidConfig("\n".join(reasons))
        sound.add(own)
    return topic


def _warn_of_min_insync(services: Services, topic: TopicImage, wanted: NewTopic) -> None:
    """The topic's own min.insync.replicas was validated; one that it inherits is accepted, with a warning."""
    if MIN_INSYNC in wanted.configs:
        return
    demanded = services.config.topic(services.cluster.image, topic.name).min_insync_replicas
    if demanded > topic.replication_factor:
        logger.warning(
            "writes with acks=all will be rejected: topic=%s replicas=%d %s=%d",
            topic.name, topic.replication_factor, MIN_INSYNC, demanded,
        )  # fmt: skip


def _rejected(name: str, reason: ApiError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=reason.code, error_message=reason.text)


def _describe(
    settings: BrokerSettings,
    topic: TopicImage,
    wanted: NewTopic,
    result: CreatableTopicResult,
    described: dict[Own, list[CreatableTopicConfigs]],
) -> None:
    result.num_partitions = len(topic.partitions)
    result.replication_factor = topic.replication_factor
    own = frozenset(wanted.configs.items())
    configs = described.get(own)
    if configs is None:
        configs = described[own] = [
            CreatableTopicConfigs(
                name=row.name,
                value=row.value,
                read_only=row.read_only,
                config_source=row.source,
                is_sensitive=row.is_sensitive,
            )
            for row in describe_topic(settings, {name: value for name, value in own if value is not None})
        ]
    result.configs = configs
