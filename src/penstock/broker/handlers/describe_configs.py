"""DescribeConfigs: the settings of topics and of this broker, and where each value comes from.

Rule: a broker without a name stands for all of them, and shows what was changed for all. A question that comes twice is
answered once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.broker.dynamic_config import Resource, resource_kind
from penstock.broker.errors import api_error_of
from penstock.broker.request import Answer, Request
from penstock.broker.settings import Row, describe_all_brokers, describe_broker, describe_topic, sound_overrides
from penstock.cluster.controller.configs import ResourceKind
from penstock.cluster.errors import ApiException, InvalidTopicName, UnknownTopic
from penstock.cluster.topic_names import check_topic_name
from penstock.wire.schemas.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

# A description costs a fraction of a millisecond, and others wait meanwhile.
_AT_ONCE: Final = 20

Names = frozenset[str] | None


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: DescribeConfigsRequest = request.message
    asked: dict[tuple[Resource, Names], None] = {}
    for item in message.resources:
        # Clients that want everything send null or nothing.
        names = frozenset(item.configuration_keys) if item.configuration_keys else None
        asked[Resource(item.resource_type, item.resource_name), names] = None
    response = DescribeConfigsResponse()

    def describe(questions: Sequence[tuple[Resource, Names]]) -> None:
        for resource, names in questions:
            response.results.append(_describe(broker, resource, names, message))

    questions = list(asked)
    if len(questions) <= _AT_ONCE:
        describe(questions)
        answer(response)
        return

    async def describe_by_and_by() -> None:
        for start in range(0, len(questions), _AT_ONCE):
            describe(questions[start : start + _AT_ONCE])
            await asyncio.sleep(0)
        answer(response)

    def fail(error: BaseException) -> None:
        answer(DescribeConfigsResponse(results=[_refused(resource, error) for resource, _ in questions]))

    broker.spawn(describe_by_and_by(), fail)


def _describe(
    broker: Broker, resource: Resource, names: Names, message: DescribeConfigsRequest
) -> DescribeConfigsResult:
    try:
        rows = _rows(broker, resource, names)
    except ApiException as refusal:
        return _refused(resource, refusal)
    return DescribeConfigsResult(
        error_message=None,
        resource_type=resource.type,
        resource_name=resource.name,
        configs=[_config(row, message) for row in rows],
    )


def _rows(broker: Broker, resource: Resource, names: Names) -> list[Row]:
    if resource_kind(broker, resource) is ResourceKind.BROKER:
        describe = describe_broker if resource.name else describe_all_brokers
        return describe(broker.settings, names)
    reason = check_topic_name(resource.name)
    if reason is not None:
        raise InvalidTopicName(reason)
    image = broker.cluster.image
    if resource.name not in image.topics:
        raise UnknownTopic(f"there is no topic {resource.name!r}")
    own, _ = sound_overrides(image.topic_config(resource.name))
    return describe_topic(broker.settings, own, names)


def _config(row: Row, message: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = row.synonyms if message.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=row.name,
        value=row.value,
        read_only=row.read_only,
        config_source=row.source,
        is_sensitive=row.is_sensitive,
        synonyms=[DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source) for each in synonyms],
        config_type=row.type,
        documentation=row.documentation if message.include_documentation else None,
    )


def _refused(resource: Resource, error: BaseException) -> DescribeConfigsResult:
    code, text = api_error_of(error)
    return DescribeConfigsResult(
        error_code=code, error_message=text, resource_type=resource.type, resource_name=resource.name
    )
