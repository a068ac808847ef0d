"""PushImage: the controller tells a broker how the cluster is. Brokers ask it of each other, clients never do."""

from __future__ import annotations

from penstock.broker.request import Answer, Request, Services
from penstock.cluster.image_propagation import AckError, ImageAck, response_of, update_of


def handle(services: Services, request: Request, answer: Answer) -> None:
    update = update_of(request.message)

    async def take() -> None:
        answer(response_of(await services.membership.take(update)))

    services.spawn(take(), lambda _: answer(response_of(ImageAck(AckError.FAILED))))
