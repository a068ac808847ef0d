"""PushImage: the controller tells a broker how the cluster is. Brokers ask it of each other, clients never do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.request import Answer, Request
from penstock.cluster.image_propagation import AckError, ImageAck, response_of, update_of

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    update = update_of(request.message)

    async def take() -> None:
        answer(response_of(await broker.membership.take(update)))

    broker.spawn(take(), lambda _: answer(response_of(ImageAck(AckError.FAILED))))
