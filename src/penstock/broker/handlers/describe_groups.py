"""DescribeGroups: state, members and assignments of groups."""

from __future__ import annotations

from penstock.broker.handlers.groups import ask_each
from penstock.broker.request import Answer, Request, Services
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.wire.schemas.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: DescribeGroupsRequest = request.message
    asked = [(name, DescribeGroupsRequest(groups=[name])) for name in message.groups]
    ask_each(
        services,
        request,
        asked,
        GroupCoordinatorShard.handle_describe_groups,
        lambda parts: answer(DescribeGroupsResponse(groups=[group for part in parts for group in part.groups])),
    )
