"""PushImage: the controller sends a broker its image of the cluster. A private API between brokers."""

from __future__ import annotations

from penstock.broker.request import Answer, Request, Services
from penstock.cluster.image_propagation import AckError, ImageAck, response_of, update_of


def handle(services: Services, request: Request, answer: Answer) -> None:
    update = update_of(request.message)

    async def apply() -> None:
        answer(response_of(await services.membership.apply(update)))

    services.spawn(apply(), lambda _: answer(response_of(ImageAck(AckError.FAILED))))
