"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: the settings of topics and brokers.

AlterConfigs replaces all settings of a resource: one that is not named returns to its default. IncrementalAlterConfigs
sets, deletes, extends or reduces single settings. A change is validated together with the other settings before it is
stored; a stored value fits into every version of DescribeConfigs.

A broker resource without a name stands for all brokers. A broker's settings are described and changed by that broker,
or changed through the controller, which validates those of another broker one by one. A resource that a request names
twice is answered once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from penstock.broker.dynamic_config import CLUSTER_WIDE, SettingsRules
from penstock.broker.errors import DUPLICATE_IN_REQUEST, NO_ERROR, ApiError, api_error_of, duplicates
from penstock.broker.request import Answer, Request, Services, each_once
from penstock.broker.settings import (
    InvalidSettings,
    Row,
    check_changeable,
    check_topic_settings,
    describe_all_brokers,
    describe_broker,
    describe_topic,
    sound_overrides,
)
from penstock.cluster.controller.configs import (
    ConfigEdit,
    EditKind,
    ResourceKind,
    check_number,
    edited_settings,
    replaced_settings,
)
from penstock.cluster.controller.controller import ConfigChange
from penstock.cluster.errors import ApiException, InvalidConfig, InvalidRequest, InvalidTopicName, UnknownTopic
from penstock.cluster.image import Settings
from penstock.cluster.topic_names import check_topic_name
from penstock.wire.protocol import INTERNAL_TOPICS
from penstock.wire.schemas import alter_configs, incremental_alter_configs
from penstock.wire.schemas.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

_MAX_VALUE_BYTES: Final = 2**15 - 1
# A description takes a fraction of a millisecond; after this many, other requests are served.
_AT_ONCE: Final = 20
_CLEANUP_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"

Names = frozenset[str] | None


class Resource(NamedTuple):
    """A topic or broker as a client names it: the type may be any number."""

    type: int
    name: str


def _resource_kind(services: Services, resource: Resource, *, of_any_broker: bool = False) -> ResourceKind:
    """The kind of a resource that has settings here, or with `of_any_broker` at another broker. InvalidRequest."""
    if resource.type == ResourceKind.TOPIC:
        return ResourceKind.TOPIC
    if resource.type != ResourceKind.BROKER:
        raise InvalidRequest(
            f"resources of type {resource.type} have no settings; topics (type 2) and brokers (type 4) have"
        )
    if of_any_broker and _is_any_id(resource.name):
        return ResourceKind.BROKER
    if resource.name and not _is_id(resource.name, services.node_id):
        raise InvalidRequest(
            f"broker {services.node_id} handles its own settings and those of all brokers (empty resource name), not "
            f"those of broker {resource.name[:60]!r}; send the request to that broker"
        )
    return ResourceKind.BROKER


def _is_any_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def _is_id(text: str, node_id: int) -> bool:
    return _is_any_id(text) and int(text) == node_id


# --- DescribeConfigs


def handle_describe(services: Services, request: Request, answer: Answer) -> None:
    message: DescribeConfigsRequest = request.message
    asked: dict[tuple[Resource, Names], None] = {}
    for item in message.resources:
        # Clients that want everything send null or nothing.
        names = frozenset(item.configuration_keys) if item.configuration_keys else None
        asked[Resource(item.resource_type, item.resource_name), names] = None
    response = DescribeConfigsResponse()

    def describe(questions: Sequence[tuple[Resource, Names]]) -> None:
        for resource, names in questions:
            response.results.append(_describe(services, resource, names, message))

    questions = list(asked)
    if len(questions) <= _AT_ONCE:
        describe(questions)
        answer(response)
        return

    async def describe_in_steps() -> None:
        for start in range(0, len(questions), _AT_ONCE):
            describe(questions[start : start + _AT_ONCE])
            await asyncio.sleep(0)
        answer(response)

    def fail(error: BaseException) -> None:
        answer(DescribeConfigsResponse(results=[_failed(resource, error) for resource, _ in questions]))

    services.spawn(describe_in_steps(), fail)


def _describe(
    services: Services, resource: Resource, names: Names, message: DescribeConfigsRequest
) -> DescribeConfigsResult:
    try:
        rows = _rows(services, resource, names)
    except ApiException as error:
        return _failed(resource, error)
    return DescribeConfigsResult(
        error_message=None,
        resource_type=resource.type,
        resource_name=resource.name,
        configs=[_config(row, message) for row in rows],
    )


def _rows(services: Services, resource: Resource, names: Names) -> list[Row]:
    if _resource_kind(services, resource) is ResourceKind.BROKER:
        describe = describe_broker if resource.name else describe_all_brokers
        return describe(services.settings, names)
    reason = check_topic_name(resource.name)
    if reason is not None:
        raise InvalidTopicName(reason)
    image = services.cluster.image
    if resource.name not in image.topics:
        raise UnknownTopic(f"topic {resource.name!r} does not exist")
    own, _ = sound_overrides(image.topic_config(resource.name))
    return describe_topic(services.settings, own, names)


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


def _failed(resource: Resource, error: BaseException) -> DescribeConfigsResult:
    code, text = api_error_of(error)
    return DescribeConfigsResult(
        error_code=code, error_message=text, resource_type=resource.type, resource_name=resource.name
    )


# --- AlterConfigs, IncrementalAlterConfigs


def handle_alter(services: Services, request: Request, answer: Answer) -> None:
    schemas = alter_configs.AlterConfigsResponse, alter_configs.AlterConfigsResourceResponse
    _alter(services, request, _replacement, schemas, answer)


def handle_incremental_alter(services: Services, request: Request, answer: Answer) -> None:
    schemas = (
        incremental_alter_configs.IncrementalAlterConfigsResponse,
        incremental_alter_configs.AlterConfigsResourceResponse,
    )
    _alter(services, request, _edits, schemas, answer)


def _resource(item: Any) -> Resource:
    return Resource(item.resource_type, item.resource_name)


def _replacement(kind: ResourceKind, item: alter_configs.AlterConfigsResource) -> ConfigChange:
    if duplicates(config.name for config in item.configs):
        raise InvalidRequest("the request changes a setting twice")
    return ConfigChange(kind, item.resource_name, replacement={config.name: config.value for config in item.configs})


def _edits(kind: ResourceKind, item: incremental_alter_configs.AlterConfigsResource) -> ConfigChange:
    return ConfigChange(kind, item.resource_name, [_edit(config) for config in item.configs])


def _edit(config: incremental_alter_configs.AlterableConfig) -> ConfigEdit:
    try:
        kind = EditKind(config.config_operation)
    except ValueError:
        raise InvalidRequest(
            f"{config.config_operation} is not an operation on settings: expected 0 (set), 1 (delete), 2 (append) or "
            "3 (subtract)"
        ) from None
    return ConfigEdit(config.name, kind, config.value)


def _alter(
    services: Services,
    request: Request,
    change_of: Callable[[ResourceKind, Any], ConfigChange],
    schemas: tuple[Any, Any],
    answer: Answer,
) -> None:
    """Make the changes and answer with the outcome of each, once for a resource that is named twice. `change_of` raises
    ApiException if the request makes no sense.
    """
    message, long_requests = request.message, services.long_requests
    errors: dict[Resource, ApiError] = {}
    is_controller = services.membership_or_none is not None
    response, row = schemas

    def respond(failure: ApiError | None = None) -> None:
        rows = (
            row(
                error_code=error.code,
                error_message=error.text,
                resource_type=resource.type,
                resource_name=resource.name,
            )
            for resource in each_once(map(_resource, message.resources))
            for error in (failure or errors[resource],)
        )
        long_requests.answer_rows(request.channel, rows, lambda made: answer(response(responses=made)))

    async def make() -> None:
        twice = await long_requests.duplicates(map(_resource, message.resources))
        changes: list[tuple[Resource, ConfigChange]] = []
        async for item in long_requests.each(message.resources, _AT_ONCE):
            resource = _resource(item)
            errors[resource] = NO_ERROR
            if resource in twice:
                errors[resource] = DUPLICATE_IN_REQUEST
                continue
            try:
                kind = _resource_kind(services, resource, of_any_broker=is_controller)
                check_number(kind, len(item.configs))
                change = change_of(kind, item)
                _validate(services, change)
            except ApiException as error:
                errors[resource] = api_error_of(error)
            else:
                changes.append((resource, change))
        controller = services.cluster.require_controller()
        outcomes = await controller.alter_configs(
            [change for _, change in changes], validate_only=message.validate_only
        )
        async for (resource, _), outcome in long_requests.each(zip(changes, outcomes, strict=True)):
            errors[resource] = api_error_of(outcome.error)
        respond()

    services.spawn(make(), lambda error: respond(api_error_of(error)))


# --- validation


def _validate(services: Services, change: ConfigChange) -> None:
    """ApiException if the change would contradict the other settings."""
    image, rules = services.cluster.image, SettingsRules()
    if change.replacement is not None:
        after = replaced_settings(image, change.kind, change.name, change.replacement, rules)
    else:
        after = edited_settings(image, change.kind, change.name, change.edits, rules)
    if change.kind is ResourceKind.TOPIC:
        _check_internal(change.name, image.topic_config(change.name), after)
        _validate_topic(services, after)
        return
    if change.name and services.membership_or_none is not None:
        _check_cluster_wide(image.broker_config(str(int(change.name))), after)
    if not change.name or _is_id(change.name, services.node_id):
        _validate_broker(services, after, cluster_wide=not change.name)
    else:
        _check_sizes(after)


def _check_cluster_wide(before: Settings, after: Settings) -> None:
    """What an earlier version stored for one broker may stay, or be deleted."""
    for name in CLUSTER_WIDE:
        if name in after and after[name] != before.get(name):
            raise InvalidConfig(
                f"{name} is the same for all brokers of a cluster and cannot be set for one: set it for all brokers "
                "(a broker resource with an empty name; penstock configs alter --all-brokers), or for a topic"
            )


def _check_internal(name: str, before: Settings, after: Settings) -> None:
    """Retention must not delete what coordinators keep in internal topics."""
    policies = before.get(_CLEANUP_POLICY), after.get(_CLEANUP_POLICY)
    if name in INTERNAL_TOPICS and policies[0] == _COMPACT and policies[1] != _COMPACT:
        raise InvalidConfig(f"{name} is internal: its {_CLEANUP_POLICY} must stay {_COMPACT}, or its records are lost")


def _validate_topic(services: Services, after: Settings) -> None:
    _check_sizes(after)
    # A setting that another version stored must not block a change of something else.
    sound, _ = sound_overrides(after)
    reasons = check_topic_settings(services.settings, dict(sound))
    if reasons:
        raise InvalidConfig("\n".join(reasons))


def _validate_broker(services: Services, after: Settings, *, cluster_wide: bool) -> None:
    _check_sizes(after)
    changes: dict[str, str | None] = dict.fromkeys(services.settings.dynamic(cluster_wide=cluster_wide))
    changes.update((name, value) for name, value in after.items() if check_changeable(name) is None)
    try:
        services.settings.with_changes(changes, cluster_wide=cluster_wide)
    except InvalidSettings as error:
        raise InvalidRequest(str(error)) from error


def _check_sizes(settings: Settings) -> None:
    """A list can grow with each request."""
    for name, value in settings.items():
        size = len(value.encode())
        if size > _MAX_VALUE_BYTES:
            raise InvalidConfig(f"{name}: a value of {size} bytes is too long; the limit is {_MAX_VALUE_BYTES} bytes")
