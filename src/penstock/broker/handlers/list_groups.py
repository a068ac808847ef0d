"""ListGroups: the groups that this broker coordinates. Many are listed in slices."""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.broker.request import Answer, Request, Services
from penstock.coordination.groups.group import Group
from penstock.coordination.shard import list_groups
from penstock.wire.schemas.list_groups import ListGroupsResponse

SLICE_GROUPS: Final = 500


def handle(services: Services, request: Request, answer: Answer) -> None:
    groups = [group for shard in services.groups.shards for group in shard.groups]
    if len(groups) <= SLICE_GROUPS:
        answer(ListGroupsResponse(groups=list_groups(groups, request.message)))
    else:
        work = partial(_list_in_slices, services, request, groups, answer)
        services.long_requests.start(request.channel, request.size, work)


async def _list_in_slices(services: Services, request: Request, groups: list[Group], answer: Answer) -> None:
    response = ListGroupsResponse()
    for begin in range(0, len(groups), SLICE_GROUPS):
        response.groups += list_groups(groups[begin : begin + SLICE_GROUPS], request.message)
        await services.long_requests.pause(request.channel)
    answer(response)
