"""AlterConfigs: all settings of a topic or broker are replaced at once: what is not named goes back to its default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.dynamic_config import ConfigErrors, ConfigRequest, Resource, change_configs
from penstock.broker.errors import duplicates
from penstock.broker.request import Answer, Request
from penstock.cluster.controller.configs import ResourceKind
from penstock.cluster.errors import InvalidRequest
from penstock.cluster.membership.standalone import ConfigChange
from penstock.wire.schemas.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: AlterConfigsRequest = request.message

    def done(explained: ConfigErrors) -> None:
        answer(
            AlterConfigsResponse(
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
        if duplicates(config.name for config in item.configs):
            raise InvalidRequest("a setting is changed twice in one request")
        return ConfigChange(
            kind, item.resource_name, replacement={config.name: config.value for config in item.configs}
        )

    return ConfigRequest(Resource(item.resource_type, item.resource_name), change)
