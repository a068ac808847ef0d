"""DeleteGroups: empty groups and their offsets go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.groups import ask_each
from penstock.broker.request import Answer, Request
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.wire.schemas.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: DeleteGroupsRequest = request.message

    def done(parts: list[DeleteGroupsResponse]) -> None:
        results: list[DeletableGroupResult] = [result for part in parts for result in part.results]
        answer(DeleteGroupsResponse(results=results))

    asked = [(name, DeleteGroupsRequest(groups_names=[name])) for name in message.groups_names]
    ask_each(broker, request, asked, GroupCoordinatorShard.handle_delete_groups, done)
