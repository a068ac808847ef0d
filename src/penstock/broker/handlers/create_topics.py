"""Creating topics: CreateTopics, topics that a client names first, and __consumer_offsets.

CreateTopics places replicas by their number or explicitly, or only validates. Each name is answered once. A topic
starts with the preset that the operator's file has for its name, where the client sets nothing else.

`AutoTopicCreation` creates a topic when a client asks for its metadata, and __consumer_offsets when the first group
looks for its coordinator.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from penstock.broker.errors import DUPLICATE_IN_REQUEST, ApiError, api_error_of, duplicates
from penstock.broker.request import Answer, Request, Services
from penstock.broker.settings import BrokerSettings, check_topic_settings, describe_topic
from penstock.cluster.controller.configs import MIN_INSYNC
from penstock.cluster.controller.topics import BY_DEFAULT, NewTopic
from penstock.cluster.errors import (
    ApiException,
    ClusterError,
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidRequest,
)
from penstock.cluster.image import TopicImage
from penstock.cluster.topic_names import check_topic_name
from penstock.wire.protocol import OFFSETS_TOPIC
from penstock.wire.schemas.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.types import NO_UUID

logger = logging.getLogger(__name__)

_FIRST_VERSION_WITH_CONFIGS: Final = 5
# A description takes a fraction of a millisecond; after so many, other requests are served.
_AT_ONCE: Final = 20

Own = frozenset[tuple[str, str | None]]
"""The settings of a topic's own."""


class TooFewBrokers(ClusterError):
    """__consumer_offsets cannot be created yet."""

    def __init__(self, topic: str, factor: int, brokers: int) -> None:
        super().__init__(
            f"cannot create {topic}: replication factor {factor} needs {factor} brokers, {brokers} are available; "
            "groups wait for more brokers. Lower offsets.topic.replication.factor for a smaller cluster"
        )


class AutoTopicCreation:
    """Creates topics that no CreateTopics request asked for."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def create(self, names: list[str]) -> None:
        """ClusterError, LinkLost."""
        wanted = []
        for name in names:
            if name == OFFSETS_TOPIC:
                await self.create_offsets_topic()
            else:
                wanted.append(with_preset(self._services.settings, NewTopic(name)))
        if wanted:
            membership = self._services.membership_or_none
            if membership is not None:
                await membership.create_through_controller(wanted)
            else:
                await self._services.cluster.require_controller().create_topics(wanted)

    async def create_offsets_topic(self) -> None:
        """ClusterError, LinkLost."""
        services = self._services
        settings, membership = services.settings, services.membership_or_none
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
        }
        factor = settings.offsets_topic_replication_factor
        brokers = len(services.cluster.image.brokers)
        if membership is None:
            factor = 1
            # Whatever min.insync.replicas the broker has: groups could not commit otherwise.
            configs[MIN_INSYNC] = "1"
        elif factor > brokers:
            # Brokers start one after the other. Created with fewer replicas, the topic would keep them.
            raise TooFewBrokers(OFFSETS_TOPIC, factor, brokers)
        topic = NewTopic(OFFSETS_TOPIC, settings.offsets_topic_num_partitions, factor, configs=configs)
        if membership is not None:
            await membership.create_through_controller([topic])
            return
        outcome = (await services.cluster.require_controller().create_topics([topic]))[0]
        if outcome.error is not None and OFFSETS_TOPIC not in services.cluster.image.topics:
            raise outcome.error


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: CreateTopicsRequest = request.message
    results = {topic.name: CreatableTopicResult(name=topic.name, error_message=None) for topic in message.topics}
    response = CreateTopicsResponse(topics=list(results.values()))

    async def create() -> None:
        new = await _validate(services, message.topics, results)
        described: dict[Own, list[CreatableTopicConfigs]] = {}
        outcomes = await services.cluster.require_controller().create_topics(
            list(new.values()), validate_only=message.validate_only
        )
        for number, outcome in enumerate(outcomes):
            result = results[outcome.name]
            if outcome.topic is None:
                _reject(result, api_error_of(outcome.error))
                continue
            if not message.validate_only:
                result.topic_id = outcome.topic.topic_id
                _warn_of_min_insync(services, outcome.topic, new[outcome.name])
            if request.version >= _FIRST_VERSION_WITH_CONFIGS:
                _describe(services.settings, outcome.topic, new[outcome.name], result, described)
                if number % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
        answer(response)

    def fail(error: BaseException) -> None:
        reason = api_error_of(error)
        for result in response.topics:
            result.topic_id = NO_UUID
            _reject(result, reason)
        answer(response)

    services.spawn(create(), fail)


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
    twice = duplicates(topic.name for topic in topics)
    new: dict[str, NewTopic] = {}
    sound: set[Own] = set()
    for number, topic in enumerate(topics):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        if topic.name in twice:
            _reject(results[topic.name], DUPLICATE_IN_REQUEST)
            continue
        try:
            new[topic.name] = _new_topic(services, topic, sound)
        except ApiException as error:
            _reject(results[topic.name], api_error_of(error))
    return new


def _new_topic(services: Services, wanted: CreatableTopic, sound: set[Own]) -> NewTopic:
    """ApiException. `sound` are settings of other topics of the request, which need not be validated again."""
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


def _reject(result: CreatableTopicResult, reason: ApiError) -> None:
    result.error_code, result.error_message = reason
    result.num_partitions = result.replication_factor = -1
    result.configs = []


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
