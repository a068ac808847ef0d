"""ListGroups: all groups that this broker coordinates. Very many are listed in slices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.request import Answer, Request
from penstock.coordination.groups.group import Group
from penstock.coordination.inquiries import listed
from penstock.wire.schemas.list_groups import ListGroupsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

SLICE_GROUPS: Final = 500


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    groups = [group for shard in broker.groups.shards for group in shard.groups]
    if len(groups) <= SLICE_GROUPS:
        answer(ListGroupsResponse(groups=listed(groups, request.message)))
    else:
        work = partial(_list_in_slices, broker, request, groups, answer)
        broker.long_work.start(request.channel, request.size, work)


async def _list_in_slices(broker: Broker, request: Request, groups: list[Group], answer: Answer) -> None:
    response = ListGroupsResponse()
    for begin in range(0, len(groups), SLICE_GROUPS):
        response.groups += listed(groups[begin : begin + SLICE_GROUPS], request.message)
        await broker.long_work.pause(request.channel)
    answer(response)
