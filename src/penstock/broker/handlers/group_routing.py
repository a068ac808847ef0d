"""The way of a request to the coordinator of its group.

The decisions are the coordinator's (`penstock.coordination`); here a request finds the shard that holds its group. One
that names several groups is split by group, and the answers are put together again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.broker.request import Answer, Request
from penstock.coordination.events import Outcome, RequestContext
from penstock.coordination.refusals import refuse
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
        answer(refuse(message, code, request.version))


class _Gathering:
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
    gathering = _Gathering(len(asked), done)
    for index, (group_id, message) in enumerate(asked):
        ask(broker, group_id, request, message, method, gathering.part(index))
