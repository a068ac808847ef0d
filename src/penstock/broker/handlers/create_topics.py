"""CreateTopics: new topics, by numbers or by explicit replicas, or only a look at what would come of it.

Rule: each name is answered once, whether there is a topic then or a reason why not. A topic that the operator's file
has something to say about starts out with that, where the client says nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.broker.errors import DUPLICATE_IN_REQUEST, ApiError, api_error_of, duplicates
from penstock.broker.request import Answer, Request
from penstock.broker.settings import BrokerSettings, check_topic_settings, describe_topic
from penstock.cluster.controller.configs import MIN_INSYNC
from penstock.cluster.controller.topics import BY_DEFAULT, NewTopic
from penstock.cluster.errors import ApiException, InvalidConfig, InvalidReplicaAssignment, InvalidRequest
from penstock.cluster.image import TopicImage
from penstock.cluster.topic_names import check_topic_name
from penstock.wire.schemas.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.types import NO_UUID

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

logger = logging.getLogger(__name__)

_SHOWS_TOPIC: Final = 5
# Descriptions cost a fraction of a millisecond each, and others wait meanwhile.
_AT_ONCE: Final = 20

Own = frozenset[tuple[str, str | None]]
"""What a topic sets for itself."""


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: CreateTopicsRequest = request.message
    results = {topic.name: CreatableTopicResult(name=topic.name, error_message=None) for topic in message.topics}
    response = CreateTopicsResponse(topics=list(results.values()))

    async def create() -> None:
        new = await _judge(broker, message.topics, results)
        described: dict[Own, list[CreatableTopicConfigs]] = {}
        outcomes = await broker.cluster.create_topics(list(new.values()), validate_only=message.validate_only)
        for number, outcome in enumerate(outcomes):
            result = results[outcome.name]
            if outcome.topic is None:
                _refuse(result, api_error_of(outcome.refusal))
                continue
            if not message.validate_only:
                result.topic_id = outcome.topic.topic_id
                _warn_of_insync(broker, outcome.topic, new[outcome.name])
            if request.version >= _SHOWS_TOPIC:
                _show(broker.settings, outcome.topic, new[outcome.name], result, described)
                if number % _AT_ONCE == _AT_ONCE - 1:
                    await asyncio.sleep(0)
        answer(response)

    def fail(error: BaseException) -> None:
        reason = api_error_of(error)
        for result in response.topics:
            # Whatever was found out before, nothing more is known of it now.
            result.topic_id = NO_UUID
            _refuse(result, reason)
        answer(response)

    broker.spawn(create(), fail)


def with_preset(settings: BrokerSettings, topic: NewTopic) -> NewTopic:
    """The topic with what the operator laid down for its name, where it leaves that open."""
    preset = settings.preset(topic.name)
    partitions = topic.partitions
    if partitions == BY_DEFAULT and preset.partitions is not None and not topic.assignments:
        partitions = preset.partitions
    return replace(topic, partitions=partitions, configs={**preset.settings, **topic.configs})


async def _judge(
    broker: Broker, topics: list[CreatableTopic], results: dict[str, CreatableTopicResult]
) -> dict[str, NewTopic]:
    """The topics that make sense by themselves; the results of the others say why not."""
    twice = duplicates(topic.name for topic in topics)
    new: dict[str, NewTopic] = {}
    sound: set[Own] = set()
    for number, topic in enumerate(topics):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        if topic.name in twice:
            _refuse(results[topic.name], DUPLICATE_IN_REQUEST)
            continue
        try:
            new[topic.name] = _new_topic(broker, topic, sound)
        except ApiException as refusal:
            _refuse(results[topic.name], api_error_of(refusal))
    return new


def _new_topic(broker: Broker, wanted: CreatableTopic, sound: set[Own]) -> NewTopic:
    """Refusal. `sound` are the settings of other topics of the request, which need not be judged again."""
    if duplicates(config.name for config in wanted.configs):
        raise InvalidRequest("a setting is given twice")
    if duplicates(assignment.partition_index for assignment in wanted.assignments):
        raise InvalidReplicaAssignment("a partition is given replicas twice")
    topic = NewTopic(
        wanted.name,
        wanted.num_partitions,
        wanted.replication_factor,
        {assignment.partition_index: assignment.broker_ids for assignment in wanted.assignments},
        {config.name: config.value for config in wanted.configs},
    )
    # That a name is taken or cannot be one is of more interest, and is found out later.
    if check_topic_name(topic.name) is not None or topic.name in broker.cluster.image.topics:
        return topic
    topic = with_preset(broker.settings, topic)
    own = frozenset(topic.configs.items())
    if own not in sound:
        reasons = check_topic_settings(broker.settings, topic.configs)
        if reasons:
            raise InvalidConfig("\n".join(reasons))
        sound.add(own)
    return topic


def _warn_of_insync(broker: Broker, topic: TopicImage, wanted: NewTopic) -> None:
    """What the topic asks for itself was checked; what it has from the brokers is for all topics, and is accepted."""
    if MIN_INSYNC in wanted.configs:
        return
    demanded = broker.settings_in(broker.cluster.image, topic.name).min_insync_replicas
    if demanded > topic.replication_factor:
        logger.warning(
            "topic %s has %d replicas, and the brokers' %s is %d: its writes with acks=all are rejected",
            topic.name,
            topic.replication_factor,
            MIN_INSYNC,
            demanded,
        )


def _refuse(result: CreatableTopicResult, reason: ApiError) -> None:
    result.error_code, result.error_message = reason
    result.num_partitions = result.replication_factor = -1
    result.configs = []


def _show(
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
