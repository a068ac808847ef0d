"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: requests routed to a group's coordinator.

The coordinator decides (`penstock.coordination`); here a request finds the shard that holds its group. A request that
names several groups is split by group and the responses are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.broker.request import Answer, Request
from penstock.coordination.responses import Outcome, RequestContext, error_response
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.wire.types import Message

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


Method = Callable[[GroupCoordinatorShard, Any, RequestContext, int], Outcome]


def by_group(method: Method) -> Callable[[Broker, Request, Answer], None]:
    """A handler for requests that name one group."""

    def handle(broker: Broker, request: Request, answer: Answer) -> None:
        ask(broker, request.message.group_id, request, request.message, method, answer)

    return handle


def ask(broker: Broker, group_id: str, request: Request, message: Message, method: Method, answer: Answer) -> None:
    context = RequestContext(answer, request.version, request.client_id or "", "/" + request.peer.rsplit(":", 1)[0])
    code = broker.groups.handle(group_id, context, lambda shard, ctx, now_ms: method(shard, message, ctx, now_ms))
    if code:
        answer(error_response(message, code, request.version))


class _ShardResponses:
    """Answers of several shards that make up one."""

    def __init__(self, count: int, done: Callable[[list[Any]], None]) -> None:
        self._parts: list[Any] = [None] * count
        self._left = count
        self._done = done

    def part(self, index: int) -> Callable[[Message | None], None]:
        def take(message: Message | None) -> None:
            self._parts[index] = message
            self._left -= 1
            if self._left == 0:
                self._done(self._parts)

        return take


def ask_each(
    broker: Broker,
    request: Request,
    asked: Sequence[tuple[str, Message]],
    method: Method,
    done: Callable[[list[Any]], None],
) -> None:
    if not asked:
        done([])
        return
    gathering = _ShardResponses(len(asked), done)
    for index, (group_id, message) in enumerate(asked):
        ask(broker, group_id, request, message, method, gathering.part(index))


handle_join_group = by_group(GroupCoordinatorShard.handle_join_group)


handle_sync_group = by_group(GroupCoordinatorShard.handle_sync_group)


handle_heartbeat = by_group(GroupCoordinatorShard.handle_heartbeat)


handle_leave_group = by_group(GroupCoordinatorShard.handle_leave_group)
