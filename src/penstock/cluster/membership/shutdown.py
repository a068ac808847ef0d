"""Controlled shutdown, and the file that proves a clean one.

Before it stops, a broker asks the controller to move its leaderships. Shutdown waits while a follower is still
catching up, within the configured time. If the controller or the tree does not answer, it gives up after about 5
seconds: without the tree nobody can take over. What was not moved is led by others once they notice that the broker
is gone.

`.broker-life` in each data folder holds the previous broker epoch and whether that run ended cleanly (KIP-966). A
folder without the file is new, and the broker registers as one whose disk was emptied. A clean end is written last of
all and cleared before anything else is written. Folders that disagree count as unclean.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from penstock.cluster.broker_links import LinkLost
from penstock.cluster.controller.controller import Controller
from penstock.cluster.errors import ClusterError, ConnectionLost
from penstock.cluster.image import ClusterImage
from penstock.cluster.tree.layout import UNKNOWN_EPOCH
from penstock.log.checkpoints import atomic_write
from penstock.runtime.clock import Clock
from penstock.runtime.files import Files
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from penstock.wire.types import Message

logger = logging.getLogger(__name__)

CLEAN_SHUTDOWN_FILE: Final = ".broker-life"
_MAX_BYTES: Final = 4096


class _StoredEpoch(msgspec.Struct):
    epoch: int
    clean: bool


class PreviousBrokerEpoch:
    """`clean_epoch` as `BrokerRegistration` has it. `is_emptied` is looked up when it is asked for: between the reading
    and the registration the logs are opened, and what is found in them may have ended the life of the folders.
    """

    def __init__(self, clean_epoch: int, files: Files, folders: Sequence[str]) -> None:
        self.clean_epoch = clean_epoch
        self._files = files
        self._folders = tuple(folders)

    @property
    def is_emptied(self) -> bool:
        return any(_read(self._files, folder) is None for folder in self._folders)


def read_previous_epoch(files: Files, folders: Sequence[str]) -> PreviousBrokerEpoch:
    """Before the folders are opened. A file that cannot be read is one that tells of no good end."""
    found = [_read(files, folder) for folder in folders]
    lives = {(life.epoch, life.clean) for life in found if life is not None}
    clean_epoch = UNKNOWN_EPOCH
    if len(lives) == 1 and None not in found:
        epoch, clean = lives.pop()
        clean_epoch = epoch if clean else UNKNOWN_EPOCH
    return PreviousBrokerEpoch(clean_epoch, files, folders)


def forget_previous_epoch(files: Files, folders: Sequence[str]) -> None:
    """From here on the folders are new ones. OSError."""
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            files.remove(f"{folder}/{CLEAN_SHUTDOWN_FILE}")
        files.sync_folder(folder)


def clear_clean_shutdown(files: Files, folders: Sequence[str]) -> None:
    """From here on the folders may change. OSError."""
    for folder in folders:
        life = _read(files, folder)
        if life is not None and life.clean:
            _write(files, folder, _StoredEpoch(life.epoch, clean=False))


def write_broker_epoch(files: Files, folders: Sequence[str], epoch: int, *, clean: bool) -> None:
    """OSError."""
    for folder in folders:
        _write(files, folder, _StoredEpoch(epoch, clean))


def _read(files: Files, folder: str) -> _StoredEpoch | None:
    path = f"{folder}/{CLEAN_SHUTDOWN_FILE}"
    try:
        file = files.open(path, writable=False)
        try:
            data = file.read_at(0, _MAX_BYTES)
        finally:
            file.close()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s cannot be read: %s", path, error)
        return _StoredEpoch(UNKNOWN_EPOCH, clean=False)
    try:
        return msgspec.json.decode(data, type=_StoredEpoch)
    except msgspec.MsgspecError as error:
        logger.warning("%s is damaged (%s): the broker's last stop is taken for an unclean one", path, error)
        return _StoredEpoch(UNKNOWN_EPOCH, clean=False)


def _write(files: Files, folder: str, life: _StoredEpoch) -> None:
    atomic_write(files, f"{folder}/{CLEAN_SHUTDOWN_FILE}", msgspec.json.encode(life))


_RETRY_S: Final = 0.25
_ANSWER_MS: Final = 10_000
_UNREACHABLE_MS: Final = 5_000
_LEAST_MS: Final = 1_000
_VERSION: Final = 3

Partitions = Sequence[tuple[str, int]]


class StoppingBroker(Protocol):
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

    def tree_unreachable_ms(self) -> float | None:
        """How long the tree has been out of reach; None if it is not, as far as is known."""

    def note_tree_unreachable(self) -> None:
        """The tree does not answer."""


async def controlled_shutdown(stopping_broker: StoppingBroker, clock: Clock, within_ms: float) -> bool:
    """To whoever is in sync; whether nothing is left that needs the broker."""
    begun_ms = clock.monotonic_ms()
    deadline_ms = begun_ms + within_ms
    told = 0
    while True:
        try:
            left = await _ask(stopping_broker)
        except (LinkLost, ClusterError) as error:
            silent_since_ms = clock.monotonic_ms() - (stopping_broker.tree_unreachable_ms() or 0.0)
            deadline_ms = min(deadline_ms, min(begun_ms, silent_since_ms) + _UNREACHABLE_MS)
            if clock.monotonic_ms() + _RETRY_S * 1000 >= deadline_ms:
                logger.warning(
                    "broker %d stops without handing over what it leads, for nobody could be asked to: %s. Others lead "
                    "it once they know that it is gone",
                    stopping_broker.broker_id,
                    error,
                )
                return False
        else:
            if not left:
                return True
            if len(left) != told:
                logger.info(
                    "%d partitions still need broker %d: %s", len(left), stopping_broker.broker_id, list(left[:3])
                )
            told = len(left)
            if not _is_follower_catching_up(stopping_broker, left) or clock.monotonic_ms() >= deadline_ms:
                logger.warning("broker %d stops although %d partitions need it", stopping_broker.broker_id, told)
                return False
        await asyncio.sleep(_RETRY_S)


def _is_follower_catching_up(stopping_broker: StoppingBroker, partitions: Partitions) -> bool:
    """Whether somebody is alive who holds one of these and is not in sync yet."""
    image = stopping_broker.image
    for topic, index in partitions:
        partition = image.partition(topic, index)
        if partition is not None and any(
            broker in image.brokers and broker not in image.leaving and broker not in partition.isr
            for broker in partition.replicas
            if broker != stopping_broker.broker_id
        ):
            return True
    return False


async def _ask(stopping_broker: StoppingBroker) -> Partitions:
    """What still needs the broker. LinkLost, ClusterError: nobody knows."""
    tree_unreachable_ms = stopping_broker.tree_unreachable_ms()
    patience_ms = _ANSWER_MS if tree_unreachable_ms is None else max(0.0, _UNREACHABLE_MS - tree_unreachable_ms)
    controller = stopping_broker.controller
    if controller is not None:
        return await _ask_here(stopping_broker, controller, patience_ms)
    question = ControlledShutdownRequest(broker_id=stopping_broker.broker_id, broker_epoch=stopping_broker.broker_epoch)
    answer = await stopping_broker.ask_controller(
        ApiKey.CONTROLLED_SHUTDOWN, _VERSION, question, max(_LEAST_MS, patience_ms)
    )
    if not isinstance(answer, ControlledShutdownResponse) or answer.error_code:
        raise LinkLost(f"the controller refused: {error_name(answer)}")
    return [(item.topic_name, item.partition_index) for item in answer.remaining_partitions]


async def _ask_here(stopping_broker: StoppingBroker, controller: Controller, patience_ms: float) -> Partitions:
    work = controller.shut_down(stopping_broker.broker_id, stopping_broker.broker_epoch)
    asked = asyncio.get_running_loop().create_task(work)
    await asyncio.wait({asked}, timeout=patience_ms / 1000)
    if asked.done():
        return asked.result()
    # What becomes of it is told when the session ends, and then nobody cares any more.
    asked.add_done_callback(lambda late: late.cancelled() or late.exception())
    stopping_broker.note_tree_unreachable()
    raise ConnectionLost("the metadata tree does not answer")


def error_name(answer: Message) -> str:
    """The error code of an answer, by its name where it has one."""
    code = getattr(answer, "error_code", ErrorCode.UNKNOWN_SERVER_ERROR)
    return next((known.name for known in ErrorCode if known == code), str(code))
