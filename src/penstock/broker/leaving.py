"""Letting others lead what a broker leads, before it stops.

Noun: the handing over of a broker's partitions, by asking the controller, which may be the broker itself.

Rule: it is waited for as long as somebody is there who may be catching up right now, within the time that is given. For
a controller, or a tree, that does not answer it is waited for seconds only: without the tree nobody can take over, and
nobody becomes the controller who could be asked. What was not handed over is led by others once they know that the
broker is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from penstock.cluster.controller import Controller
from penstock.cluster.errors import ClusterError, ConnectionLost
from penstock.cluster.image import ClusterImage
from penstock.replication.links import LinkLost
from penstock.runtime.clock import Clock
from penstock.wire.api_keys import ApiKey
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from penstock.wire.types import Message

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 0.25
_ANSWER_MS: Final = 10_000
_UNHEARD_MS: Final = 5_000
_LEAST_MS: Final = 1_000
_VERSION: Final = 3

Partitions = Sequence[tuple[str, int]]


class Leaver(Protocol):
    """A member of a cluster."""

    @property
    def broker_id(self) -> int: ...

    @property
    def broker_epoch(self) -> int: ...

    @property
    def image(self) -> ClusterImage: ...

    @property
    def controller(self) -> Controller | None: ...

    async def ask_controller(self, api_key: int, version: int, message: Message, timeout_ms: float) -> Message: ...

    def silent_ms(self) -> float | None:
        """How long the tree has been out of reach; None if it is not, as far as is known."""

    def note_silence(self) -> None:
        """The tree does not answer."""


async def hand_over(leaver: Leaver, clock: Clock, within_ms: float) -> bool:
    """To whoever is in sync; whether nothing is left that needs the broker."""
    begun_ms = clock.monotonic_ms()
    deadline_ms = begun_ms + within_ms
    told = 0
    while True:
        try:
            left = await _ask(leaver)
        except (LinkLost, ClusterError) as error:
            silent_since_ms = clock.monotonic_ms() - (leaver.silent_ms() or 0.0)
            deadline_ms = min(deadline_ms, min(begun_ms, silent_since_ms) + _UNHEARD_MS)
            if clock.monotonic_ms() + _AGAIN_S * 1000 >= deadline_ms:
                logger.warning(
                    "broker %d stops without handing over what it leads, for nobody could be asked to: %s. Others lead "
                    "it once they know that it is gone",
                    leaver.broker_id,
                    error,
                )
                return False
        else:
            if not left:
                return True
            if len(left) != told:
                logger.info("%d partitions still need broker %d: %s", len(left), leaver.broker_id, list(left[:3]))
            told = len(left)
            if not _may_be_relieved(leaver, left) or clock.monotonic_ms() >= deadline_ms:
                logger.warning("broker %d stops although %d partitions need it", leaver.broker_id, told)
                return False
        await asyncio.sleep(_AGAIN_S)


def _may_be_relieved(leaver: Leaver, partitions: Partitions) -> bool:
    """Whether somebody is alive who holds one of these and is not in sync yet."""
    image = leaver.image
    for topic, index in partitions:
        partition = image.partition(topic, index)
        if partition is not None and any(
            broker in image.brokers and broker not in image.leaving and broker not in partition.isr
            for broker in partition.replicas
            if broker != leaver.broker_id
        ):
            return True
    return False


async def _ask(leaver: Leaver) -> Partitions:
    """What still needs the broker. LinkLost, ClusterError: nobody knows."""
    silent_ms = leaver.silent_ms()
    patience_ms = _ANSWER_MS if silent_ms is None else max(0.0, _UNHEARD_MS - silent_ms)
    controller = leaver.controller
    if controller is not None:
        return await _ask_here(leaver, controller, patience_ms)
    question = ControlledShutdownRequest(broker_id=leaver.broker_id, broker_epoch=leaver.broker_epoch)
    answer = await leaver.ask_controller(ApiKey.CONTROLLED_SHUTDOWN, _VERSION, question, max(_LEAST_MS, patience_ms))
    if not isinstance(answer, ControlledShutdownResponse) or answer.error_code:
        raise LinkLost(f"the controller refused: {named_error(answer)}")
    return [(item.topic_name, item.partition_index) for item in answer.remaining_partitions]


async def _ask_here(leaver: Leaver, controller: Controller, patience_ms: float) -> Partitions:
    work = controller.shut_down(leaver.broker_id, leaver.broker_epoch)
    asked = asyncio.get_running_loop().create_task(work)
    await asyncio.wait({asked}, timeout=patience_ms / 1000)
    if asked.done():
        return asked.result()
    # What becomes of it is told when the session ends, and then nobody cares any more.
    asked.add_done_callback(lambda late: late.cancelled() or late.exception())
    leaver.note_silence()
    raise ConnectionLost("the metadata tree does not answer")


def named_error(answer: Message) -> str:
    """The error code of an answer, by its name where it has one."""
    code = getattr(answer, "error_code", ErrorCode.UNKNOWN_SERVER_ERROR)
    return next((known.name for known in ErrorCode if known == code), str(code))
