"""DeleteGroups: deletes empty groups and their offsets."""

from __future__ import annotations

from penstock.broker.handlers.groups import ask_each
from penstock.broker.request import Answer, Request, Services
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.wire.schemas.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: DeleteGroupsRequest = request.message

    def done(parts: list[DeleteGroupsResponse]) -> None:
        results: list[DeletableGroupResult] = [result for part in parts for result in part.results]
        answer(DeleteGroupsResponse(results=results))

    asked = [(name, DeleteGroupsRequest(groups_names=[name])) for name in message.groups_names]
    ask_each(services, request, asked, GroupCoordinatorShard.handle_delete_groups, done)
