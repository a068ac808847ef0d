"""Admin calls about settings of topics and brokers.

A change names only what changes. Brokers before 2.3 can only replace all settings of a resource, so the current ones
are read first and sent along. One request is sent to each broker that has to answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.client.admin.core import AdminCore, only
from penstock.client.admin.results import ConfigEntry, ConfigResource, ConfigSynonym, ConfigValue, Kind
from penstock.client.admin.topics import config_text
from penstock.client.connection import Connection
from penstock.client.errors import ConfigError, PenstockError, error_for
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas import alter_configs, incremental_alter_configs
from penstock.wire.schemas.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)

_TYPES: Final[dict[Kind, int]] = {"topic": 2, "broker": 4}
_KINDS: Final = {number: kind for kind, number in _TYPES.items()}
_SYNONYMS_SINCE: Final = 1
_DOCUMENTATION_SINCE: Final = 3
_SET: Final = 0
_DELETE: Final = 1
_SOURCES: Final = {
    1: "topic",
    2: "dynamic broker",
    3: "dynamic default",
    4: "static",
    5: "default",
}
_DEFAULT: Final = 5
# The sources of values that a change may have set.
_ALTERED: Final = frozenset({"topic", "dynamic broker", "dynamic default"})

Settings = Mapping[str, ConfigEntry]


class ConfigCalls(AdminCore):
    async def describe_config(
        self, resource: ConfigResource, *, include_synonyms: bool = False, timeout_ms: int | None = None
    ) -> Settings:
        """All settings of a topic or broker, by name."""
        return only(await self.describe_configs([resource], include_synonyms=include_synonyms, timeout_ms=timeout_ms))

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        include_synonyms: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ConfigResource, Settings | PenstockError]:
        """The settings of each. Each broker gets one request about its own; one request to any broker covers the rest.

        With `include_synonyms`, each setting has the values of all layers under which it may be set.
        """
        wanted = list(dict.fromkeys(resources))
        by_owner: dict[str, list[ConfigResource]] = {}
        for resource in wanted:
            by_owner.setdefault(_owner_name(resource), []).append(resource)
        answers: dict[ConfigResource, Settings | PenstockError] = {}
        for found in await asyncio.gather(
            *(self._described_by_owner(owned, include_synonyms, timeout_ms) for owned in by_owner.values())
        ):
            answers |= found
        return {resource: answers[resource] for resource in wanted}

    async def _described_by_owner(
        self, resources: list[ConfigResource], include_synonyms: bool, timeout_ms: int | None
    ) -> dict[ConfigResource, Settings | PenstockError]:
        """Of resources that one broker answers for; errors that may pass are retried."""
        answers: dict[ConfigResource, Settings | PenstockError] = {}
        open_ = resources

        async def ask(left_ms: int) -> None:
            nonlocal open_
            answers.update(await self._describe(open_, include_synonyms, left_ms))
            failed = {each: error for each in open_ if isinstance(error := answers[each], PenstockError)}
            open_ = [each for each, error in failed.items() if error.retriable]
            if open_:
                raise failed[open_[0]]

        what = f"the settings of {resources[0]}" + (f" and {len(resources) - 1} more" if len(resources) > 1 else "")
        try:
            await self._retried(f"reading {what}", timeout_ms, ask)
        except PenstockError as error:
            for resource in open_:
                answers.setdefault(resource, error)
        return answers

    async def alter_config(
        self,
        resource: ConfigResource,
        changes: Mapping[str, ConfigValue],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Change settings; None resets one to its default. Raises InvalidSetting..."""
        error = (await self.alter_configs({resource: changes}, validate_only=validate_only, timeout_ms=timeout_ms))[
            resource
        ]
        if error is not None:
            raise error

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, ConfigValue]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ConfigResource, PenstockError | None]:
        """Change settings of several resources; each has a result or an error."""
        answers: dict[ConfigResource, PenstockError | None] = {}
        for resource, values in changes.items():
            texts = {name: config_text(value) for name, value in values.items()}
            try:
                await self._retried(
                    f"changing the settings of {resource}",
                    timeout_ms,
                    lambda left_ms, resource=resource, texts=texts: self._alter(  # type: ignore[misc]
                        resource, texts, validate_only, left_ms
                    ),
                )
                answers[resource] = None
            except PenstockError as error:
                answers[resource] = error
        return answers

    async def _owner(self, resource: ConfigResource) -> Connection:
        """Each broker answers for its own settings, any broker for the rest."""
        if resource.kind == "broker" and resource.name:
            try:
                return await self.cluster.to(int(resource.name))
            except ValueError:
                raise ConfigError(f"{resource.name!r} is not a broker id", hint="Give a number") from None
        return await self.cluster.to_any()

    async def _describe(
        self, resources: Sequence[ConfigResource], include_synonyms: bool, left_ms: int
    ) -> dict[ConfigResource, Settings | PenstockError]:
        """One request about resources that one broker can answer for."""
        connection = await self._owner(resources[0])
        wanted = [
            DescribeConfigsResource(
                resource_type=_TYPES[resource.kind], resource_name=resource.name, configuration_keys=None
            )
            for resource in resources
        ]
        version = connection.version_of(ApiKey.DESCRIBE_CONFIGS)
        request = DescribeConfigsRequest(resources=wanted)
        if version >= _SYNONYMS_SINCE:
            request.include_synonyms = include_synonyms
        if version >= _DOCUMENTATION_SINCE:
            request.include_documentation = True
        answer = await connection.request(ApiKey.DESCRIBE_CONFIGS, request, version=version, timeout_ms=left_ms)
        found: dict[ConfigResource, Settings | PenstockError] = {
            resource: PenstockError(f"the response of {connection.node} does not contain {resource}")
            for resource in resources
        }
        for result in answer.results:
            kind = _KINDS.get(result.resource_type)
            if kind is None:
                continue
            resource = ConfigResource(kind, result.resource_name)
            if result.error_code:
                found[resource] = error_for(result.error_code, where=str(resource), detail=result.error_message)
            else:
                found[resource] = {item.name: _entry(item, version) for item in result.configs}
        return found

    async def _alter(
        self, resource: ConfigResource, changes: Mapping[str, str | None], validate_only: bool, left_ms: int
    ) -> None:
        connection = await self._owner(resource)
        if connection.supports(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0):
            answer = await connection.request(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, _incremental(resource, changes, validate_only), timeout_ms=left_ms
            )
        else:
            present = only(await self._describe([resource], False, left_ms))
            values = {name: item.value for name, item in present.items() if item.source in _ALTERED}
            values.update(changes)
            answer = await connection.request(
                ApiKey.ALTER_CONFIGS, _replacing(resource, values, validate_only), timeout_ms=left_ms
            )
        for result in answer.responses:
            if result.error_code:
                raise error_for(result.error_code, where=str(resource), detail=result.error_message)


def _incremental(
    resource: ConfigResource, changes: Mapping[str, str | None], validate_only: bool
) -> incremental_alter_configs.IncrementalAlterConfigsRequest:
    return incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[
            incremental_alter_configs.AlterConfigsResource(
                resource_type=_TYPES[resource.kind],
                resource_name=resource.name,
                configs=[
                    incremental_alter_configs.AlterableConfig(
                        name=name, config_operation=_DELETE if value is None else _SET, value=value
                    )
                    for name, value in changes.items()
                ],
            )
        ],
        validate_only=validate_only,
    )


def _replacing(
    resource: ConfigResource, values: Mapping[str, str | None], validate_only: bool
) -> alter_configs.AlterConfigsRequest:
    return alter_configs.AlterConfigsRequest(
        resources=[
            alter_configs.AlterConfigsResource(
                resource_type=_TYPES[resource.kind],
                resource_name=resource.name,
                configs=[
                    alter_configs.AlterableConfig(name=name, value=value)
                    for name, value in values.items()
                    if value is not None
                ],
            )
        ],
        validate_only=validate_only,
    )


def _entry(item: DescribeConfigsResourceResult, version: int) -> ConfigEntry:
    if version == 0:
        # Version 0 says only whether a value is the default; others were changed, or are in a file.
        source, is_default = ("default" if item.is_default else "topic"), item.is_default
    else:
        source, is_default = _SOURCES.get(item.config_source, "unknown"), item.config_source == _DEFAULT
    synonyms = tuple(
        ConfigSynonym(each.name, each.value, _SOURCES.get(each.source, "unknown")) for each in item.synonyms
    )
    return ConfigEntry(
        item.name,
        item.value,
        source,
        is_default,
        item.read_only,
        item.is_sensitive,
        item.documentation or None,
        synonyms,
    )


def _owner_name(resource: ConfigResource) -> str:
    """The broker that answers for a resource; None if any does."""
    return resource.name if resource.kind == "broker" else ""
