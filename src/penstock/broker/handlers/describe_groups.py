"""DescribeGroups: state, members and assignments of groups.

The authorized operations are those of a cluster without an authorizer; `authorization_rules` replaces them.
"""

from __future__ import annotations

from penstock.broker.handlers.groups import ask_each
from penstock.broker.request import Answer, Request, Services
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.security.acls import OPERATIONS_OF, ResourceType, bits_of
from penstock.wire.schemas.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: DescribeGroupsRequest = request.message

    def done(parts: list[DescribeGroupsResponse]) -> None:
        groups = [group for part in parts for group in part.groups]
        if message.include_authorized_operations:
            for group in groups:
                if not group.error_code:
                    group.authorized_operations = bits_of(OPERATIONS_OF[ResourceType.GROUP])
        answer(DescribeGroupsResponse(groups=groups))

    asked = [(name, DescribeGroupsRequest(groups=[name])) for name in message.groups]
    ask_each(services, request, asked, GroupCoordinatorShard.handle_describe_groups, done)
