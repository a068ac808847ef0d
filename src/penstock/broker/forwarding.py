"""Requests that only the controller can serve, asked of any broker.

Rule: a broker that is not the controller asks the controller and passes on its answer, so that clients need not know
who it is. When the controller cannot be reached the request is handled here, which refuses it with NOT_CONTROLLER:
clients look for the controller then, and try again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.broker.request import Answer, Request
from penstock.broker.served import Handle
from penstock.replication.links import LinkLost
from penstock.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

logger = logging.getLogger(__name__)

FORWARDED: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    }
)
_TIMEOUT_MS: Final = 30_000


def forwarded(handle: Handle) -> Handle:
    """`handle` at the controller, wherever that is."""

    def forward(broker: Broker, request: Request, answer: Answer) -> None:
        if broker.membership.controller is not None:
            handle(broker, request, answer)
            return

        async def ask() -> None:
            try:
                message = await broker.membership.ask_controller(
                    request.api_key, request.version, request.message, _TIMEOUT_MS
                )
            except LinkLost as error:
                logger.warning("%s could not be forwarded: %s", ApiKey(request.api_key).name, error)
                handle(broker, request, answer)
            else:
                answer(message)

        broker.spawn(ask(), lambda _: handle(broker, request, answer))

    return forward
