"""Requests of groups, routed to the shard of the coordinator that holds the group.

The coordinator decides (`penstock.coordination`). JoinGroup, SyncGroup, Heartbeat, LeaveGroup and OffsetDelete name one
group; a request that names several is split by group, and the responses are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.broker.request import Answer, Handler, Request, Responses, Services
from penstock.coordination.responses import Outcome, RequestContext, error_response
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.wire.types import Message

Method = Callable[[GroupCoordinatorShard, Any, RequestContext, int], Outcome]


def by_group(method: Method) -> Handler:
    """A handler for requests that name one group."""

    def handle(services: Services, request: Request, answer: Answer) -> None:
        ask(services, request.message.group_id, request, request.message, method, answer)

    return handle


def ask(services: Services, group_id: str, request: Request, message: Message, method: Method, answer: Answer) -> None:
    context = RequestContext(answer, request.version, request.client_id or "", "/" + request.peer.rsplit(":", 1)[0])
    code = services.groups.handle(group_id, context, lambda shard, ctx, now_ms: method(shard, message, ctx, now_ms))
    if code:
        answer(error_response(message, code, request.version))


def ask_each(
    services: Services,
    request: Request,
    asked: Sequence[tuple[str, Message]],
    method: Method,
    done: Callable[[list[Any]], None],
) -> None:
    responses = Responses(done)
    for group_id, message in asked:
        ask(services, group_id, request, message, method, responses.part())
    responses.end()
