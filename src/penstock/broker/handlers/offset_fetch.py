"""OffsetFetch: how far groups have read. From version 8 on for many groups at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.group_routing import ask, ask_each
from penstock.broker.request import Answer, Request
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.wire.schemas.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: OffsetFetchRequest = request.message
    if request.version < 8:
        ask(broker, message.group_id, request, message, GroupCoordinatorShard.handle_offset_fetch, answer)
        return
    asked = [
        (group.group_id, OffsetFetchRequest(groups=[group], require_stable=message.require_stable))
        for group in message.groups
    ]

    def done(parts: list[OffsetFetchResponse]) -> None:
        answer(OffsetFetchResponse(groups=[group for part in parts for group in part.groups]))

    ask_each(broker, request, asked, GroupCoordinatorShard.handle_offset_fetch, done)
