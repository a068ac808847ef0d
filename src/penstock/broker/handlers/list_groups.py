"""ListGroups: all groups that this broker coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.request import Answer, Request
from penstock.coordination.events import RequestContext
from penstock.wire.schemas.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.types import Message

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: ListGroupsRequest = request.message
    response = ListGroupsResponse()

    def take(part: Message | None) -> None:
        if isinstance(part, ListGroupsResponse):
            response.groups.extend(part.groups)

    for shard in broker.groups.shards:
        # Listing reads and never waits.
        outcome = shard.handle_list_groups(message, RequestContext(take, request.version), request.now_ms)
        for reply in outcome.replies:
            take(reply.message)
    answer(response)
