"""IncrementalAlterConfigs: single settings are set, deleted, extended or reduced; the others stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.dynamic_config import ConfigErrors, ConfigRequest, Resource, change_configs
from penstock.broker.request import Answer, Request
from penstock.cluster.controller.configs import ConfigEdit, EditKind, ResourceKind
from penstock.cluster.errors import InvalidRequest
from penstock.cluster.membership.standalone import ConfigChange
from penstock.wire.schemas.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: IncrementalAlterConfigsRequest = request.message

    def done(explained: ConfigErrors) -> None:
        answer(
            IncrementalAlterConfigsResponse(
                responses=[
                    AlterConfigsResourceResponse(
                        error_code=reason.code,
                        error_message=reason.text,
                        resource_type=resource.type,
                        resource_name=resource.name,
                    )
                    for resource, reason in explained.items()
                ]
            )
        )

    change_configs(broker, [_asked(item) for item in message.resources], done, validate_only=message.validate_only)


def _asked(item: AlterConfigsResource) -> ConfigRequest:
    def change(kind: ResourceKind) -> ConfigChange:
        return ConfigChange(kind, item.resource_name, [_edit(config) for config in item.configs])

    return ConfigRequest(Resource(item.resource_type, item.resource_name), change)


def _edit(config: AlterableConfig) -> ConfigEdit:
    try:
        kind = EditKind(config.config_operation)
    except ValueError:
        raise InvalidRequest(f"{config.config_operation} is no operation on a setting; 0 to 3 are") from None
    return ConfigEdit(config.name, kind, config.value)
