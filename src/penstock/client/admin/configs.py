"""Settings of topics and brokers.

Rule: a change names only what changes; the rest stays. Brokers before 2.3 can only replace all settings of a resource
at once: there the present ones are read first and sent along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.client.admin.core import AdminCore, only
from penstock.client.admin.results import ConfigEntry, ConfigResource, ConfigValue
from penstock.client.admin.topics import config_text
from penstock.client.connection import Connection
from penstock.client.errors import ConfigError, PenstockError, error_for
from penstock.wire.api_keys import ApiKey
from penstock.wire.schemas import alter_configs, incremental_alter_configs
from penstock.wire.schemas.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)

_TYPES: Final = {"topic": 2, "broker": 4}
_KINDS: Final = {number: kind for kind, number in _TYPES.items()}
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
# Of a topic, and of a broker by itself or all brokers: what an alteration may have set.
_ALTERED: Final = frozenset({"topic", "dynamic broker", "dynamic default"})

Settings = Mapping[str, ConfigEntry]


class ConfigCalls(AdminCore):
    async def describe_config(self, resource: ConfigResource, *, timeout_ms: int | None = None) -> Settings:
        """All settings of a topic or broker, by name."""
        return only(await self.describe_configs([resource], timeout_ms=timeout_ms))

    async def describe_configs(
        self, resources: Iterable[ConfigResource], *, timeout_ms: int | None = None
    ) -> dict[ConfigResource, Settings | PenstockError]:
        answers: dict[ConfigResource, Settings | PenstockError] = {}
        for resource in dict.fromkeys(resources):
            try:
                answers[resource] = await self._tried(
                    f"reading the settings of {resource}",
                    timeout_ms,
                    lambda left_ms, resource=resource: self._describe(resource, left_ms),  # type: ignore[misc]
                )
            except PenstockError as error:
                answers[resource] = error
        return answers

    async def alter_config(
        self,
        resource: ConfigResource,
        changes: Mapping[str, ConfigValue],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Change settings; None gives one back to its default. Raises InvalidSetting..."""
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
        answers: dict[ConfigResource, PenstockError | None] = {}
        for resource, values in changes.items():
            texts = {name: config_text(value) for name, value in values.items()}
            try:
                await self._tried(
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
        """A broker answers for its own settings, any broker for the rest."""
        if resource.kind == "broker" and resource.name:
            try:
                return await self.cluster.to(int(resource.name))
            except ValueError:
                raise ConfigError(f"{resource.name!r} is no broker id") from None
        return await self.cluster.to_any()

    async def _describe(self, resource: ConfigResource, left_ms: int) -> Settings:
        connection = await self._owner(resource)
        wanted = DescribeConfigsResource(
            resource_type=_TYPES[resource.kind], resource_name=resource.name, configuration_keys=None
        )
        version = connection.version_of(ApiKey.DESCRIBE_CONFIGS)
        request = DescribeConfigsRequest(resources=[wanted])
        if version >= 3:
            request.include_documentation = True
        answer = await connection.request(ApiKey.DESCRIBE_CONFIGS, request, version=version, timeout_ms=left_ms)
        for result in answer.results:
            if result.error_code:
                raise error_for(result.error_code, where=str(resource), detail=result.error_message)
            return {item.name: _entry(item, version) for item in result.configs}
        raise PenstockError(f"{connection.node} said nothing about {resource}")

    async def _alter(
        self, resource: ConfigResource, changes: Mapping[str, str | None], validate_only: bool, left_ms: int
    ) -> None:
        connection = await self._owner(resource)
        if connection.supports(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0):
            answer = await connection.request(
                ApiKey.INCREMENTAL_ALTER_CONFIGS, _incremental(resource, changes, validate_only), timeout_ms=left_ms
            )
        else:
            present = await self._describe(resource, left_ms)
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
        # It says only whether a value is the default; what is not was altered, or stands in a file.
        source, is_default = ("default" if item.is_default else "topic"), item.is_default
    else:
        source, is_default = _SOURCES.get(item.config_source, "unknown"), item.config_source == _DEFAULT
    return ConfigEntry(
        item.name, item.value, source, is_default, item.read_only, item.is_sensitive, item.documentation or None
    )
